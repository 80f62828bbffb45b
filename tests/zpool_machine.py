"""A machine for the zpool script: real bytes on sparse disks, sysfs as the kernel lays it out, and a recording `zpool`."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cozystack_iac.storage import zfs
from cozystack_iac.storage.zfs import PoolReport, report

MIB = 1024**2
SIZE = 8 * MIB
CREATE = "create -o ashift=12 -o failmode=continue -O compression=lz4 -O atime=off -m none data "


class Machine:
    """A machine's root file system as far as the script looks at it, with sparse files for disks and a recording zpool."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.calls = root / "root", root / "bin", root / "calls"
        for folder in ("sys/block", "sys/module/zfs", "dev/disk/by-id", "usr/local/sbin", "proc/1"):
            (self.root / folder).mkdir(parents=True)
        self.bin.mkdir()
        self.shell, self.before = ["/bin/sh"], ""
        self.script(self.bin / "nsenter", 'shift 4; program="$1"; shift; exec "$HOST_ROOT$program" "$@"')
        self.module("2.3.3-1")
        self.zpool("")

    def script(self, path: Path, body: str) -> None:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def module(self, version: str) -> None:
        (self.root / "sys/module/zfs/version").write_text(version + "\n")

    def zpool(
        self, pools: str, *, members: str = "/dev/sdb1", health: str = "ONLINE", group: str = "",
        create: str = "exit 0", ashift: str = "12", version: str = "2.3.3-1",
    ) -> None:  # fmt: skip
        """A zpool command that knows `pools` (one a line); creating one makes it known."""
        known = self.root.parent / "pools"
        known.write_text(pools)
        lines = [f"\t{group}\t8M"] if group else []
        lines += [f"\t{member}\t8M" for member in members.split()]
        listing = self.root.parent / "listing"
        listing.write_text("data\t8M\n" + "".join(line + "\n" for line in lines))
        self.script(
            self.root / "usr/local/sbin/zpool",
            f"""echo "$@" >> {self.calls}
case "$*" in
  version) printf 'zfs-{version}\\nzfs-kmod-9.9.9\\n' ;;
  "list -H -o name") cat {known} ;;
  "list -H -o name,health") cat {known} ;;
  "list -H -p -o health,size "*) printf '{health}\\t{SIZE}\\n' ;;
  "list -v -H -L -P "*) cat {listing} ;;
  "get -H -p -o value ashift data") echo {ashift} ;;
  create*) {create.replace("exit 0", f"echo data > {known}; exit 0")} ;;
esac""",
        )

    def disk(
        self, name: str, *, serial: str = "", content: Mapping[int, bytes] | None = None, size: int = SIZE
    ) -> Path:
        folder = self._block(self.root / "sys/block" / name, size)
        (folder / "device").mkdir()
        if serial:
            (folder / "device/serial").write_text(f"  {serial} \n")
        self.write(name, content or {}, size)
        return folder

    def partition(self, disk: str, name: str, label: str = "", content: Mapping[int, bytes] | None = None) -> None:
        folder = self._block(self.root / "sys/block" / disk / name, SIZE // 2)
        (folder / "partition").write_text("1\n")
        (folder / "uevent").write_text(f"DEVNAME={name}\n" + (f"PARTNAME={label}\n" if label else ""))
        self.write(name, content or {}, SIZE // 2)

    def link(self, name: str, target: str) -> None:
        (self.root / "dev/disk/by-id" / name).symlink_to(f"../../{target}")

    def hold(self, folder: str, holder: str, name: str, uuid: str = "") -> None:
        """`holder` (dm-0) with the device-mapper name `name` uses what is in sysfs at `folder`."""
        (self.root / "sys/block" / folder / "holders" / holder).mkdir()
        (self.root / "sys/block" / holder / "dm").mkdir(parents=True, exist_ok=True)
        (self.root / "sys/block" / holder / "dm/name").write_text(name + "\n")
        (self.root / "sys/block" / holder / "dm/uuid").write_text(uuid + "\n")

    def write(self, name: str, content: Mapping[int, bytes], size: int = SIZE) -> None:
        with (self.root / "dev" / name).open("wb") as file:
            file.truncate(size)
            for offset, data in content.items():
                file.seek(offset)
                file.write(data)

    def _block(self, folder: Path, size: int) -> Path:
        (folder / "holders").mkdir(parents=True)
        (folder / "size").write_text(f"{size // 512}\n")
        (folder / "ro").write_text("0\n")
        return folder

    def run(
        self,
        *disks: str,
        layout: str = "single",
        minimum: int = MIB,
        phase: zfs.Phase = "make",
        must_say: bool = True,
    ) -> tuple[int, PoolReport]:
        log = self.root.parent / "termination"
        log.unlink(missing_ok=True)
        done = subprocess.run(
            [*self.shell, "-c", self.before + zfs.SCRIPT],
            env={
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "POOL": "data",
                "LAYOUT": layout,
                "DISKS": "\n".join(disks or ["serial=B1"]),
                "MINIMUM_BYTES": str(minimum),
                "ASHIFT": "12",
                "PHASE": phase,
                "HOST_ROOT": str(self.root),
                "TERMINATION_LOG": str(log),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert log.exists() or not must_say, done.stderr
        message = log.read_bytes() if log.exists() else b""
        assert len(message) <= 4096
        return done.returncode, report("cp1", "data", message.decode())

    @property
    def created(self) -> list[str]:
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [call for call in calls if call.startswith("create")]


def kinds(found: PoolReport) -> list[str]:
    return [problem.kind for problem in found.problems]
