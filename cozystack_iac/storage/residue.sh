# What a block device carries, by reading it: `traces DEVICE BYTES` prints one line per trace, KIND<TAB>EVIDENCE, or `blank`.
# No output means that the reading itself went wrong, never that nothing is there. Functions only, nothing is written.
# Kinds are those of residue.py. POSIX shell and what busybox has.
# shellcheck shell=sh

# Every signature below lies in the first or last MiB. More is not asked for: `talosctl wipe disk` clears just these two.
EDGE_BYTES=1048576

bytes() { dd if="$1" bs=512 skip=$(($2 / 512)) count=$(($3 / 512)) 2>/dev/null; } # device offset count

signatures() { # bytes gap: KIND POSITION HEX LABEL_POSITION LABEL_BYTES NAME, from the formats' own documents
  md10=$((($1 - 8192) / 4096 * 4096 - $2))
  md090=$(($1 / 65536 * 65536 - 65536 - $2))
  drbd=$(($1 / 4096 * 4096 - 4096 + 60 - $2)) # DRBD keeps its metadata in the last whole 4 KiB
  end=$(($1 - $2))
  cat <<END
lvm 0 4c4142454c4f4e45 0 0 LVM physical volume
lvm 512 4c4142454c4f4e45 0 0 LVM physical volume
lvm 1024 4c4142454c4f4e45 0 0 LVM physical volume
lvm 1536 4c4142454c4f4e45 0 0 LVM physical volume
drbd $drbd 8374026b 0 0 DRBD 8 metadata
drbd $drbd 8374026c 0 0 DRBD 8 metadata, not closed
drbd $drbd 8374026d 0 0 DRBD 9 metadata
mdraid 0 fc4e2ba9 32 32 md array member, metadata 1.1
mdraid 4096 fc4e2ba9 4128 32 md array member, metadata 1.2
mdraid $md10 fc4e2ba9 $((md10 + 32)) 32 md array member, metadata 1.0
mdraid $md090 fc4e2ba9 0 0 md array member, metadata 0.90
mdraid $((end - 512)) de11de11 0 0 DDF RAID member
mdraid $((end - 1024)) 496e74656c2052616964 0 0 Intel RAID member
ceph 0 626c756573746f726520626c6f636b20646576696365 0 0 Ceph OSD, bluestore
luks 0 4c554b53babe 168 40 LUKS encryption
luks 0 534b554cbabe 168 40 LUKS encryption, second header
swap 4086 53574150535041434532 1052 16 swap space
swap 16374 53574150535041434532 1052 16 swap space
swap 65526 53574150535041434532 1052 16 swap space
iso9660 32769 4344303031 32808 32 ISO 9660 image
filesystem 1080 53ef 1144 16 ext2/3/4
filesystem 0 58465342 108 12 XFS
filesystem 65600 5f42485266535f4d 65835 64 Btrfs
filesystem 3 4e54465320202020 0 0 NTFS
filesystem 3 4558464154202020 0 0 exFAT
filesystem 54 4641543132 43 11 FAT12
filesystem 54 4641543136 43 11 FAT16
filesystem 82 4641543332 71 11 FAT32
filesystem 1024 1020f5f2 0 0 F2FS
filesystem 0 68737173 0 0 SquashFS
talos 0 5a4b3c2d 0 0 META of a Talos installation
gpt 512 4546492050415254 0 0 GPT partition table
gpt 4096 4546492050415254 0 0 GPT partition table for 4 KiB sectors
gpt-backup $((end - 512)) 4546492050415254 0 0 backup of a GPT at the end
gpt-backup $((end - 4096)) 4546492050415254 0 0 backup of a GPT at the end
mbr 510 55aa 0 0 MBR partition table or boot sector
END
}

# Reads both edges as one `od` dump: positions count through it, and what repeats is a `*`.
# shellcheck disable=SC2016  # an awk program
RECOGNISE='
  function byte(pos,   at, i) {
    at = pos - pos % 16
    if (at in line) return substr(line[at], pos % 16 * 3 + 1, 2)
    for (i = 1; i <= runs; i++) if (at >= from[i] && at < upto[i]) return substr(same[i], pos % 16 * 3 + 1, 2)
    return ""
  }
  function hex(pos, n,   s) { s = ""; while (n-- > 0) s = s byte(pos++); return s }
  function value(pos,   b) { b = byte(pos); return (index(DIGITS, substr(b, 1, 1)) - 1) * 16 + index(DIGITS, substr(b, 2)) - 1 }
  function word(pos) { return ((value(pos) * 256 + value(pos + 1)) * 256 + value(pos + 2)) * 256 + value(pos + 3) }
  function text(pos, n,   s, c) {
    for (s = ""; n-- > 0 && (c = value(pos++)) >= 32 && c < 127;) s = s sprintf("%c", c)
    sub(/ +$/, "", s)
    return s
  }
  function say(kind, evidence) {
    if ((kind, evidence) in said) return
    said[kind, evidence]
    kinds[++n_said] = kind
    told[n_said] = evidence
  }

  function lvm(   at) { # the metadata area says where its newest text begins: NAME {
    if (hex(4100, 5) != "204c564d32") return ""
    at = 4096 + value(4136) + 256 * value(4137) + 65536 * value(4138)
    at = text(at, 128)
    return at ~ / \{$/ ? "volume group " substr(at, 1, length(at) - 2) : ""
  }
  function label(pos,   at, size, name, kind, found, states) { # XDR: pairs of sizes, name, type (8 number, 9 text), count, value
    if (value(pos) != 1 || word(pos + 8) != 1) return 0
    for (at = pos + 12; at < pos + 4096 && (size = word(at)) >= 24; at += size) {
      name = text(at + 12, word(at + 8))
      kind = at + 12 + int((word(at + 8) + 3) / 4) * 4
      if (word(kind) == 9) found[name] = text(kind + 12, word(kind + 8))
      if (word(kind) == 8) found[name] = hex(kind + 12, 4) # what matters here is below 2^32
    }
    if (!("name" in found)) return 0
    split("active exported destroyed spare cache", states)
    zfs((found["name"] == ENVIRON["POOL"] ? "zfs-own" : "zfs"), "ZFS label: pool " found["name"] \
      (found["hostname"] != "" ? " of host " found["hostname"] : "") (found["hostid"] != "" ? " (hostid " found["hostid"] ")" : "") \
      ", " states[substr(found["state"], 8) + 1])
    return 1
  }
  function zfs(kind, evidence) { zfs_kind[evidence] = kind; labels[evidence]++ }
  function uberblock(pos,   i) {
    for (i = 0; i < 128; i++) if (hex(pos + i * 1024, 4) == "0cb1ba00" || hex(pos + i * 1024 + 4, 4) == "00bab10c") return 1
    return 0
  }

  BEGIN { DIGITS = "0123456789abcdef" }
  /^\*/ { repeats = 1; next }
  { at = $1; sub(/^0+/, "", at); at += 0 } # some take 010 for eight
  repeats { from[++runs] = last + 16; upto[runs] = at; same[runs] = line[last]; repeats = 0 }
  NF == 1 { total = at; next }
  { last = at; sub(/^[^ ]+ +/, ""); line[last] = $0; if (first == "" && /[1-9a-f]/) first = last }
  END {
    if (total != ENVIRON["WANTED"] + 0) { print "unreadable\tthe device cannot be read"; exit }
    if (first == "") { print "blank"; exit }
    rows = split(ENVIRON["SIGNATURES"], row, "\n")
    for (i = 1; i <= rows; i++) {
      split(row[i], field, " ")
      if (field[2] < 0 || hex(field[2], length(field[3]) / 2) != field[3]) continue
      title = field[1] == "lvm" ? lvm() : text(field[4], field[5])
      name = row[i]
      for (j = 1; j <= 5; j++) sub(/^[^ ]+ /, "", name)
      say(field[1], name (title != "" ? " (" title ")" : ""))
      seen[field[1]] = 1
    }
    n = split(ENVIRON["LABELS"], start, " ")
    for (i = 1; i <= n; i++)
      if (!label(start[i] + 16384) && uberblock(start[i] + 131072)) zfs("zfs", "ZFS uberblocks without a readable label")
    for (evidence in labels) say(zfs_kind[evidence], evidence " (" labels[evidence] " of 4 labels)")
    if (!n_said) say("unknown", "bytes of unknown origin " \
      (first < ENVIRON["EDGE_BYTES"] + 0 ? "from " first " on" : total - first " bytes before the end") ": " line[first])
    inner = seen["gpt"] || seen["filesystem"] || seen["iso9660"] # these bring a boot sector of their own
    for (i = 1; i <= n_said; i++)
      if (!(kinds[i] == "mbr" && inner) && !(kinds[i] == "gpt-backup" && seen["gpt"])) print kinds[i] "\t" told[i]
  }'

traces() { # device bytes
  gap=0 # between the edges
  [ "$2" -le $((EDGE_BYTES * 2)) ] || gap=$(($2 - EDGE_BYTES * 2))
  labels=""
  if [ "$2" -ge "$EDGE_BYTES" ]; then # ZFS keeps two labels at each end
    labels="0 262144 $(($2 / 262144 * 262144 - 524288 - gap)) $(($2 / 262144 * 262144 - 262144 - gap))"
  fi
  if [ "$gap" -eq 0 ]; then bytes "$1" 0 "$2"; else bytes "$1" 0 "$EDGE_BYTES"; bytes "$1" $(($2 - EDGE_BYTES)) "$EDGE_BYTES"; fi |
    od -Ad -tx1 |
    WANTED=$(($2 - gap)) EDGE_BYTES="$EDGE_BYTES" LABELS="$labels" SIGNATURES="$(signatures "$2" "$gap")" awk "$RECOGNISE"
}
