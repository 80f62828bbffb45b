"""The few files of a machine that anybody reads through the API. Pure."""

from __future__ import annotations

from lab.machines.resources import MODULE_SIZES, MODULE_USERS, upstream_version
from lab.world import MachineState

LVM_CONF = "/etc/lvm/lvm.conf"


def read(machine: MachineState, path: str) -> bytes:
    """Content of a file. Raises FileNotFoundError, IsADirectoryError."""
    present = _files(machine)
    if path in present:
        return present[path].encode()
    if path == "/" or any(name.startswith(path.rstrip("/") + "/") for name in present):
        raise IsADirectoryError(path)
    raise FileNotFoundError(path)


def _files(machine: MachineState) -> dict[str, str]:
    written = machine.config.files if machine.config is not None and machine.services_up else {}
    return {
        "/proc/modules": _proc_modules(machine),
        "/proc/cmdline": "talos.platform=metal console=tty0 init_on_alloc=1 pti=on printk.devkmsg=on\n",
        "/proc/meminfo": f"MemTotal:       {machine.spec.memory // 1024} kB\n",
        "/etc/os-release": f'NAME="Talos"\nID=talos\nVERSION_ID={machine.talos}\n',
        **_module_versions(machine),
        **{f"/proc/spl/kstat/zfs/{pool.name}/state": f"{pool.health}\n" for pool in machine.zpools.values()},
        LVM_CONF: "devices {\n    scan_lvs = 0\n}\n",
        **written,
    }


def _module_versions(machine: MachineState) -> dict[str, str]:
    versions = {name: upstream_version(name, machine.talos) for name in machine.loaded_modules}
    return {f"/sys/module/{name}/version": f"{text}\n" for name, text in versions.items() if text}


def _proc_modules(machine: MachineState) -> str:
    loaded = machine.loaded_modules
    lines = []
    for name in loaded:
        users = [user for user in MODULE_USERS.get(name, ()) if user in loaded]
        used_by = "".join(f"{user}," for user in users) or "-"
        lines.append(f"{name} {MODULE_SIZES.get(name, 20480)} {len(users)} {used_by} Live 0x0000000000000000\n")
    return "".join(lines)
