# Looks at the disks of one zpool, and makes it (PHASE=make) or says that it could be made (PHASE=look).
# Safe to run any number of times; never touches a disk that carries anything. Follows residue.sh in one script.
#   POOL LAYOUT DISKS(per line one disk: serial=… wwid=… byId=…, with tabs between several) MINIMUM_BYTES ASHIFT PHASE HOST_ROOT
# Result: one JSON line in the termination message. Exit 0: the pool is there, or can be made. 3: refused, nothing was changed.
# 1: something broke, and a write may have begun.
# shellcheck shell=sh
set -eu
export LC_ALL=C POOL

TERMINATION_LOG="${TERMINATION_LOG:-/dev/termination-log}"
BLOCK="$HOST_ROOT/sys/block"
MESSAGE_BYTES=3000 # of problems: the kubelet keeps 4096 bytes of the message, and half a JSON is none

count() { printf '%s\n' "$1" | grep -c . || true; } # lines that are not empty
quote() { printf '%s' "$1" | tr -c '\040-\176' ' ' | tr '\042\134' "''"; }
problem() { # kind disk device evidence
  printf '%s\t%s\t%s\t%s\n' "$1" "$(printf '%s' "$2" | tr '\t' ' ')" "$3" "$(printf '%s' "$4" | tr -c '\040-\176' ' ')"
}

finish() { # state reason extra-json
  printf '{"pool":"%s","state":"%s","reason":"%s"%s}\n' "$POOL" "$1" "$(quote "$2" | cut -c 1-800)" "${3:-}" | tee "$TERMINATION_LOG"
}
fail() { finish failed "$1" "${2:-}"; exit 1; }
refuse() { # reason problem-lines
  finish refused "$1" ",$(printf '%s\n' "$2" | tr '\042\134' "''" | awk -F '\t' -v limit="$MESSAGE_BYTES" '
    NF >= 4 {
      one = sprintf("{\"kind\":\"%s\",\"disk\":\"%s\",\"device\":\"%s\",\"evidence\":\"%s\"}", $1, $2, $3, substr($4, 1, 300))
      if (length(all) + length(one) > limit) { omitted++; next }
      all = all (all == "" ? "" : ",") one
    }
    END { printf "\"problems\":[%s],\"omitted\":%d", all, omitted }')"
  exit 3
}

# The host's own tools: its zpool fits its kernel module. Talos has them in /usr/local/sbin, other systems in /usr/sbin.
tool() { for folder in /usr/local/sbin /usr/sbin /sbin; do [ ! -x "$HOST_ROOT$folder/$1" ] || { echo "$folder/$1"; return; }; done; }
host() { nsenter --target 1 --mount -- "$@"; }
zpool() { host "$zpool_path" "$@"; }

trimmed() { tr -d '\000' < "$1" | sed 's/^ *//; s/ *$//'; }
inventory() { # NAME<TAB>IDENTITY of every disk, and of what the by-id links lead to
  for base in "$BLOCK"/*; do
    name="${base##*/}"
    case "$name" in
      loop* | zd* | drbd* | dm-* | md* | ram* | zram* | sr* | fd* | nbd*) continue ;; # no disks
      mmcblk*boot* | mmcblk*rpmb | nvme*c*n*) continue ;; # parts and paths that carry the serial number of their disk
    esac
    for file in "$base/device/serial" "$base/serial"; do
      [ ! -r "$file" ] || printf '%s\tserial=%s\n' "$name" "$(trimmed "$file")"
    done
    if [ -r "$base/device/vpd_pg80" ]; then # SCSI and SATA keep the serial number in a page with a 4-byte header
      printf '%s\tserial=%s\n' "$name" "$(tail -c +5 "$base/device/vpd_pg80" | tr -d '\000' | sed 's/^ *//; s/ *$//')"
    fi
    for file in "$base/device/wwid" "$base/wwid"; do
      [ ! -r "$file" ] || printf '%s\twwid=%s\n' "$name" "$(trimmed "$file")"
    done
  done
  for link in "$HOST_ROOT"/dev/disk/by-id/*; do
    target=$(readlink "$link") || continue
    printf '%s\tbyId=%s\n' "${target##*/}" "${link##*/}"
  done
}
named() { # inventory disk: the names of what has every identity of the disk
  printf '%s\n' "$1" | sort -u | wanted="$2" awk -F '\t' '
    BEGIN { all = split(ENVIRON["wanted"], list, "\t"); for (i in list) wanted[list[i]] }
    $2 in wanted && ++fits[$1] == all { print $1 }'
}
absent() { case "$1" in *"	"*) echo "no disk of this node has all of these identities" ;; *) echo "no disk of this node has this identity" ;; esac; }
sysfs() { # name of a disk or partition -> its folder
  for base in "$BLOCK/$1" "$BLOCK"/*/"$1"; do [ ! -d "$base" ] || { echo "$base"; return; }; done
}
first_partition() { case "$1" in *[0-9]) echo "${1}p1" ;; *) echo "${1}1" ;; esac; } # sdb1, nvme0n1p1, mmcblk0p1
whole() { [ -d "$BLOCK/$1" ]; }

devices() { # one name per wanted disk, as they are called now; nothing for a disk that is not exactly one
  now=$(inventory)
  printf '%s\n' "$DISKS" | while IFS= read -r identity; do
    names=$(named "$now" "$identity")
    [ "$(count "$names")" -ne 1 ] || echo "$names"
  done
}

used() { # identity name folder: who holds a disk or one of its partitions
  for entry in "$3"/holders/*; do
    [ -e "$entry" ] || continue
    holder="${entry##*/}"
    dm="$BLOCK/$holder/dm"
    kind=holder title="$holder"
    [ ! -r "$dm/name" ] || title="$holder ($(cat "$dm/name"))"
    case "$holder" in dm-*) kind=device-mapper ;; md*) kind=mdraid ;; drbd*) kind=drbd ;; esac
    case "$(cat "$dm/uuid" 2>/dev/null || true)" in mpath-*) kind=multipath ;; esac
    problem "$kind" "$1" "$2" "in use by $title"
  done
  for table in "$HOST_ROOT/proc/1/mounts" "$HOST_ROOT/proc/swaps"; do
    [ -r "$table" ] || continue
    place=$(device="/dev/$2" awk '$1 == ENVIRON["device"] { print $2; exit }' "$table")
    [ -z "$place" ] || problem mounted "$1" "$2" "in use as $place"
  done
}

inspect() { # identity name: everything that speaks against writing to it
  base=$(sysfs "$2")
  case "$2" in loop* | zd* | drbd* | dm-* | md* | ram* | zram* | sr*) problem virtual "$1" "$2" "$2 is not a disk"; return ;; esac
  [ -n "$base" ] || { problem missing "$1" "$2" "no such block device"; return; }
  bytes=$(($(cat "$base/size") * 512))
  [ "$bytes" -ge "$MINIMUM_BYTES" ] || problem small "$1" "$2" "it has $bytes bytes, but the stack file requires at least $MINIMUM_BYTES"
  [ "$(cat "$base/ro")" = 0 ] || problem read-only "$1" "$2" "the kernel reports it as read-only"
  carried "$1" "$2" "$base"
  for part in "$base"/*/partition; do
    [ -e "$part" ] || continue
    part="${part%/partition}"
    title=$(sed -n 's/^PARTNAME=//p' "$part/uevent" 2>/dev/null || true)
    case "$title" in META | STATE | EPHEMERAL) kind=talos ;; *) kind=partition ;; esac
    problem "$kind" "$1" "$2" "has partition ${part##*/}${title:+ ($title)}"
    carried "$1" "${part##*/}" "$part"
  done
}
carried() { # identity name folder
  used "$@"
  found=$(traces "$HOST_ROOT/dev/$2" $(($(cat "$3/size") * 512))) || found=""
  [ "$found" != blank ] || return 0
  printf '%s\n' "${found:-unreadable	what is on it could not be told}" | while IFS='	' read -r kind evidence; do
    problem "$kind" "$1" "$2" "$evidence"
  done
}

problems() { # of every disk at once
  now=$(inventory)
  seen=""
  printf '%s\n' "$DISKS" | while IFS= read -r identity; do
    names=$(named "$now" "$identity" | tr '\n' ' ')
    case "$names" in
      "") problem missing "$identity" "" "$(absent "$identity")"; continue ;;
      *" "*[!\ ]*) problem ambiguous "$identity" "" "several disks have this identity: $names" ;;
    esac
    for name in $names; do
      case " $seen " in *" $name "*) problem twice "$identity" "$name" "another listed identity matches the same disk" ;; esac
      seen="$seen $name"
      inspect "$identity" "$name"
    done
  done
}

arity() { # least number of disks of the layout; single takes exactly one
  number=$(count "$DISKS")
  case "$LAYOUT" in single) least=1 ;; mirror) least=2 ;; raidz1) least=3 ;; raidz2) least=4 ;; raidz3) least=5 ;; *) least=999 ;; esac
  if [ "$number" -lt "$least" ] || { [ "$LAYOUT" = single ] && [ "$number" -ne 1 ]; }; then
    problem layout "" "" "$number disks do not fit layout $LAYOUT"
  fi
}

versions() { # a pool made by tools newer or older than the module may have features that the module cannot import
  userland=$(zpool version 2>/dev/null | sed -n 's/^zfs-\([0-9].*\)/\1/p' | head -n 1) || true
  module=$(cat "$HOST_ROOT/sys/module/zfs/version" 2>/dev/null) || true
}
fitting() { # whether userland may write for module
  printf '%s %s\n' "$userland" "$module" | awk '{
    split($1, u, /[^0-9]+/); split($2, m, /[^0-9]+/)
    exit !(NF == 2 && u[1] == m[1] && u[2] == m[2] && u[3] + 0 >= m[3] + 0)
  }'
}

members() { zpool list -v -H -L -P "$POOL" | awk '$1 ~ "^/" { print $1 }'; }
layout() { # of the pool as it is: the kinds of its groups, `single` or `stripe`
  zpool list -v -H -L -P "$POOL" | awk '
    NR > 1 && $1 ~ "^/" { disks++; next }
    NR > 1 { name = $1; sub(/-[0-9]+$/, "", name); groups = groups (groups == "" ? "" : "+") (name == "raidz" ? "raidz1" : name) }
    END { print groups != "" ? groups : disks == 1 ? "single" : "stripe" }'
}
sector_shift() { # of the pool as it is; a label is the truth, the property only what was asked for
  zdb_path=$(tool zdb)
  labels=""
  if [ -n "$zdb_path" ]; then
    labels=$(members | while IFS= read -r member; do
      host "$zdb_path" -l "$member" | sed -n 's/^ *ashift: *//p'
    done | sort -n | head -n 1)
  fi
  if [ -n "$labels" ]; then echo "$labels"; else zpool get -H -p -o value ashift "$POOL"; fi
}

confirm() { # state: the pool is there, healthy, of the wanted layout and on exactly the wanted disks
  line=$(zpool list -H -p -o health,size "$POOL") || fail "zpool list $POOL failed after it was seen"
  health=$(printf '%s' "$line" | cut -f1)
  found=$(members)
  shape=$(layout)
  shift_found=$(sector_shift) || shift_found=""
  list=$(printf '%s\n' "$found" | awk '{ printf "%s\"%s\"", separator, $1; separator = "," }')
  extra=",\"health\":\"$health\",\"size\":$(printf '%s' "$line" | cut -f2),\"devices\":[$list],\"layout\":\"$shape\""
  extra="$extra,\"ashift\":\"$shift_found\",\"userland\":\"$(quote "$userland")\",\"module\":\"$(quote "$module")\""
  [ "$health" = ONLINE ] || fail "pool $POOL exists and is $health; its devices are: $found" "$extra"
  now=$(inventory)
  wrong=$(
    printf '%s\n' "$DISKS" | while IFS= read -r identity; do
      name=$(named "$now" "$identity" | head -n 1)
      if [ -z "$name" ]; then problem missing "$identity" "" "$(absent "$identity")"; continue; fi
      own="/dev/$name"
      if whole "$name"; then own="/dev/$name|/dev/$(first_partition "$name")"; fi
      printf '%s\n' "$found" | grep -qxE "$own" || problem elsewhere "$identity" "$name" "pool $POOL is on: $found"
    done
    [ "$(count "$found")" -le "$(count "$DISKS")" ] ||
      problem elsewhere "" "" "pool $POOL has more devices than the stack file lists: $found"
    [ "$shape" = "$LAYOUT" ] || problem other-layout "" "" "pool $POOL is $shape, but the stack file says $LAYOUT"
    [ "$shift_found" = "$ASHIFT" ] ||
      problem ashift "" "" "pool $POOL has ashift ${shift_found:-unknown}, but $ASHIFT is required; it cannot be changed later"
  )
  [ -z "$wrong" ] || refuse "a pool $POOL already exists and does not match the stack file" "$wrong"
  finish "$1" "" "$extra"
  exit 0
}

zpool_path=$(tool zpool)
[ -n "$zpool_path" ] || refuse "this node has no zpool command" \
  "$(problem no-zfs "" "" "no zpool in /usr/local/sbin, /usr/sbin or /sbin: the zfs extension (Talos) or zfsutils-linux is missing")"
versions
# An error of `zpool list` must not read like "no such pool": ask for all names and look for ours.
names=$(zpool list -H -o name 2>&1) || fail "zpool list does not work on this node: $names"
if printf '%s\n' "$names" | grep -qxF -- "$POOL"; then confirm present; fi

inspected=$(devices)
against=$(arity; problems)
fitting || against="$against
$(problem versions "" "" "zpool is ${userland:-of unknown version}, but the kernel module is ${module:-of unknown version}")"
[ -z "$(printf '%s' "$against" | tr -d '\n')" ] || refuse "some disks cannot be used; nothing was wiped or changed" "$against"
if [ "$PHASE" != make ]; then finish fit "" ",\"userland\":\"$(quote "$userland")\",\"module\":\"$(quote "$module")\""; exit 0; fi

case "$LAYOUT" in single) vdev="" ;; *) vdev="$LAYOUT" ;; esac
# The identities are read again: what follows is the write. No -f, ever.
[ "$(devices)" = "$inspected" ] && [ "$(count "$inspected")" -eq "$(count "$DISKS")" ] ||
  refuse "the disks changed during the check; nothing was written" \
    "$(problem changed "" "" "they were $inspected, and are now $(devices)")"
# failmode=continue: an I/O error must not hang every volume of the node. -m none: LINSTOR uses volumes only, and where the root
# is read-only, as with Talos, mounting /data would fail after the pool was made.
# shellcheck disable=SC2046,SC2086  # word splitting is the point: a list of devices
output=$(zpool create -o ashift="$ASHIFT" -o failmode=continue -O compression=lz4 -O atime=off -m none "$POOL" $vdev \
  $(printf '/dev/%s ' $inspected) 2>&1) || fail "zpool create: $output; pools are now: $(zpool list -H -o name,health 2>&1)"
confirm created
