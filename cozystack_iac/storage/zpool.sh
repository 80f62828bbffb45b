# Makes or confirms one zpool. Safe to run any number of times; never touches a disk that carries anything.
#   POOL LAYOUT DISKS("serial=… wwid=… byId=…") MINIMUM_BYTES ASHIFT HOST_ROOT
# Result: one JSON line in the termination message. Exit 0: the pool is there. Exit 3: refused, nothing was changed.
set -eu

TERMINATION_LOG="${TERMINATION_LOG:-/dev/termination-log}"
EDGE_BYTES=1048576  # labels of ZFS, LVM, mdraid, GPT and file systems all live in the first or last MiB

quote() { printf '%s' "$1" | tr '\n\t"\\' "  ''"; }
finish() { # state reason extra-json
  printf '{"pool":"%s","state":"%s","reason":"%s"%s}\n' "$POOL" "$1" "$(quote "$2")" "${3:-}" | tee "$TERMINATION_LOG"
}
refuse() { finish refused "$1"; exit 3; }
fail() { finish failed "$1"; exit 1; }

zpool_path=""
for directory in /usr/local/sbin /usr/sbin /sbin; do
  if [ -x "$HOST_ROOT$directory/zpool" ]; then zpool_path="$directory/zpool"; break; fi
done
[ -n "$zpool_path" ] || refuse "this node has no zpool command: the zfs extension (Talos) or zfsutils-linux is missing"
host_zpool() { nsenter --target 1 --mount -- "$zpool_path" "$@"; }

identities() { # block device name -> every identity sysfs has for it, one per line
  base="$HOST_ROOT/sys/block/$1"
  for file in "$base/device/serial" "$base/serial"; do
    [ -r "$file" ] && printf 'serial=%s\n' "$(tr -d '\000' < "$file" | sed 's/^ *//; s/ *$//')"
  done
  if [ -r "$base/device/vpd_pg80" ]; then # SCSI and SATA keep the serial number in a page with a 4-byte header
    printf 'serial=%s\n' "$(tail -c +5 "$base/device/vpd_pg80" | tr -d '\000' | sed 's/^ *//; s/ *$//')"
  fi
  for file in "$base/device/wwid" "$base/wwid"; do
    [ -r "$file" ] && printf 'wwid=%s\n' "$(tr -d '\000' < "$file" | sed 's/^ *//; s/ *$//')"
  done
  for link in "$HOST_ROOT"/dev/disk/by-id/*; do
    target=$(readlink "$link") || continue
    [ "${target##*/}" = "$1" ] && printf 'byId=%s\n' "${link##*/}"
  done
  return 0
}

find_disk() { # identity -> prints the device name; refuses unless exactly one disk has it
  matches=""
  for entry in "$HOST_ROOT"/sys/block/*; do
    name="${entry##*/}"
    case "$name" in loop*|zd*|drbd*|dm-*|ram*|sr*|md*) continue ;; esac
    if identities "$name" | grep -qxF -- "$1"; then matches="$matches $name"; fi
  done
  set -- "$1" $matches
  [ $# -eq 2 ] || refuse "$1 matches $(($# - 1)) disks on this node, it must match exactly one:$matches"
  printf '%s' "$2"
}

confirm() { # state: the pool is there, healthy, and on the disks the stack file names
  line=$(host_zpool list -H -p -o health,size "$POOL") || fail "zpool list $POOL failed after it was seen"
  health=$(printf '%s' "$line" | cut -f1)
  size=$(printf '%s' "$line" | cut -f2)
  members=$(host_zpool list -v -H -L -P "$POOL" | awk '$1 ~ "^/" { print $1 }')
  for identity in $DISKS; do
    name=$(find_disk "$identity") || exit $?
    printf '%s\n' "$members" | grep -qE "^/dev/$name(p?[0-9]+)?$" ||
      refuse "pool $POOL exists already, but not on $identity ($name); it is on: $(quote "$members")"
  done
  [ "$health" = ONLINE ] || fail "pool $POOL exists and is $health"
  list=$(printf '%s\n' "$members" | awk '{ printf "%s\"%s\"", separator, $1; separator = "," }')
  finish "$1" "" ",\"health\":\"$health\",\"size\":$size,\"devices\":[$list]"
  exit 0
}

# An error of `zpool list` must not read like "no such pool": ask for all names and look for ours.
names=$(host_zpool list -H -o name 2>&1) || fail "zpool list does not work on this node: $names"
if printf '%s\n' "$names" | grep -qxF -- "$POOL"; then confirm present; fi

must_be_blank() { # device first-block: the rest of the device from there, at most one edge, holds nothing but zeros
  blocks=$((EDGE_BYTES / 65536 + 1))
  read_bytes=$(dd if="$1" bs=65536 skip="$2" count="$blocks" 2>/dev/null | wc -c)
  [ "$read_bytes" -ge "$EDGE_BYTES" ] || refuse "${1##*/} cannot be read: what it carries is unknown"
  [ "$(dd if="$1" bs=65536 skip="$2" count="$blocks" 2>/dev/null | tr -d '\000' | head -c 1 | wc -c)" -eq 0 ] ||
    refuse "${1##*/} carries data or labels of an earlier use. Nothing was wiped; wipe it deliberately"
}

inspect() { # device name: refuse unless it is empty, idle, writable and large enough
  base="$HOST_ROOT/sys/block/$1"
  device="$HOST_ROOT/dev/$1"
  size=$(($(cat "$base/size") * 512))
  [ "$size" -ge "$MINIMUM_BYTES" ] || refuse "$1 has $size bytes, the stack file asks for at least $MINIMUM_BYTES"
  [ "$(cat "$base/ro")" = 0 ] || refuse "$1 is read-only"
  for entry in "$base"/holders/* "$base/$1"*; do
    [ -e "$entry" ] || continue
    refuse "$1 is in use or partitioned: ${entry##*/}. Nothing was wiped; release it or wipe it deliberately"
  done
  must_be_blank "$device" 0
  must_be_blank "$device" $(((size - EDGE_BYTES) / 65536))
}

devices=""
for identity in $DISKS; do
  name=$(find_disk "$identity") || exit $?
  case " $devices " in *" /dev/$name "*) refuse "two identities name the same disk $name" ;; esac
  inspect "$name"
  devices="$devices /dev/$name"
done
[ -n "$devices" ] || refuse "no disk was named"

case "$LAYOUT" in single) vdev="" ;; *) vdev="$LAYOUT" ;; esac
# failmode=continue: an I/O error must not hang every volume of the node.
# shellcheck disable=SC2086  # word splitting is the point: a list of devices
output=$(host_zpool create -o ashift="$ASHIFT" -o failmode=continue -O compression=lz4 -O atime=off \
  "$POOL" $vdev $devices 2>&1) || fail "zpool create: $output"
confirm created
