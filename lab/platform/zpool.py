"""The `zpool` command of a simulated machine, over its simulated disks. Pure over the world.

Knows what the product's job and a person at the lab use: `version`, `list` in its machine forms, `get`, `create`, `status -x`.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from lab.platform.answer import Answer
from lab.world import Disk, MachineState, World, Zpool

_LAYOUTS = ("mirror", "raidz", "raidz1", "raidz2", "raidz3")
_VALUED = {"-o", "-O", "-m", "-R", "-t"}


def command(world: World, machine: MachineState, argv: list[str]) -> Answer:
    """Run `zpool ARGV` on `machine`; `create` changes the world and is recorded."""
    if "zfs" not in machine.spec.modules or "zfs" not in machine.spec.extensions:
        return Answer(stderr="The ZFS modules cannot be auto-loaded.\n", code=1)
    commands = {"version": _version, "list": _list, "get": _get, "status": _status, "create": _create}
    known = commands.get(argv[0]) if argv else None
    if known is None:
        return Answer(stderr=f"unrecognized command '{' '.join(argv)}'\n", code=2)
    scripted = world.faults.answer(machine.subject, f"zpool {argv[0]}")
    if scripted is None:
        return known(world, machine, argv[1:])
    if scripted.performed:
        known(world, machine, argv[1:])
    return Answer(stderr=(scripted.message or "internal error") + "\n", code=1)


def _version(world: World, machine: MachineState, argv: list[str]) -> Answer:
    del world, argv
    zfs = machine.spec.zfs
    return Answer(f"zfs-{zfs.userland}\nzfs-kmod-{zfs.module}\n")


def _get(world: World, machine: MachineState, argv: list[str]) -> Answer:
    """`get -H -p -o value ashift POOL`, the one property that anybody asks for."""
    del world
    _, _, words = _parse(argv)
    pool = machine.zpools.get(words[-1]) if words else None
    if pool is None or words[0] != "ashift":
        return Answer(stderr=f"bad property list or no such pool: {' '.join(words)}\n", code=1)
    return Answer(f"{pool.ashift}\n")


def _list(world: World, machine: MachineState, argv: list[str]) -> Answer:
    del world
    options, columns, names = _parse(argv)
    missing = [name for name in names if name not in machine.zpools]
    if missing:
        return Answer(stderr=f"cannot open '{missing[0]}': no such pool\n", code=1)
    pools = [pool for name, pool in sorted(machine.zpools.items()) if not names or name in names]
    if not pools and "H" not in options:
        return Answer("no pools available\n")
    exact = "p" in options
    wanted = columns.get("-o", "name,size,allocated,free,health").split(",")
    lines = []
    for pool in pools:
        lines.append("\t".join(_column(machine, pool, column, exact=exact) for column in wanted))
        if "v" in options:
            lines += _members(machine, pool, exact=exact)
    return Answer("".join(line + "\n" for line in lines))


def _members(machine: MachineState, pool: Zpool, *, exact: bool) -> list[str]:
    """The indented lines of `list -v`: one per vdev, one per device, with whole-disk partitions as ZFS makes them."""
    lines = []
    if pool.layout != "single":
        lines.append(f"\t{pool.layout}-0\t{_size(pool_bytes(machine, pool), exact=exact)}\t-\t-\t{pool.health}")
    for dev in pool.devices:
        disk = machine.disks.get(dev)
        size = _size(disk.spec.size if disk else 0, exact=exact)
        lines.append(f"\t/dev/{partition(dev)}\t{size}\t-\t-\t{pool.health if disk else 'UNAVAIL'}")
    return lines


def _status(world: World, machine: MachineState, argv: list[str]) -> Answer:
    del world
    _, _, names = _parse(argv)
    for name in names or sorted(machine.zpools):
        pool = machine.zpools.get(name)
        if pool is None:
            return Answer(stderr=f"cannot open '{name}': no such pool\n", code=1)
        if pool.health != "ONLINE":
            return Answer(f"  pool: {name}\n state: {pool.health}\n")
    return Answer("".join(f"pool '{name}' is healthy\n" for name in names) or "all pools are healthy\n")


def _create(world: World, machine: MachineState, argv: list[str]) -> Answer:
    options, values, words = _parse(argv)
    name, *rest = words or [""]
    layout = rest.pop(0) if rest and rest[0] in _LAYOUTS else "single"
    if not name or not rest:
        return Answer(stderr="missing pool name or vdev specification\n", code=2)
    if name in machine.zpools:
        return Answer(stderr=f"cannot create '{name}': pool already exists\n", code=1)
    found: list[Disk] = []
    for path in rest:
        disk = machine.disks.get(path.removeprefix("/dev/"))
        if disk is None:
            return Answer(stderr=f"cannot open '{path}': no such device in /dev\n", code=1)
        if disk.in_use or disk.spec.readonly:
            return Answer(stderr=f"cannot open '{path}': Device or resource busy\n", code=1)
        if disk.residue is not None and "f" not in options:
            text = "invalid vdev specification\nuse '-f' to override the following errors:\n"
            return Answer(stderr=f"{text}{path} contains a filesystem of type '{disk.residue}'\n", code=1)
        found.append(disk)
    layout = "raidz1" if layout == "raidz" else layout
    guid = crc32(f"{machine.name}/{name}".encode())
    ashift = machine.spec.zfs.ashift or (12 if "ashift=12" in values.get("-o", "").split() else 9)
    pool = Zpool(name, layout, tuple(disk.dev for disk in found), guid=guid, ashift=ashift)
    machine.zpools[name] = pool
    for disk in found:
        disk.pool, disk.residue = name, None
    machine.touch()
    world.log.record(machine.subject, "zpool create", pool=name, layout=layout, devices=list(pool.devices))
    return Answer()


def damage(machine: MachineState, name: str, health: str) -> None:
    """Set a pool's health, as a failing disk would."""
    machine.zpools[name] = replace(machine.zpools[name], health=health)
    machine.touch()


def partition(dev: str) -> str:
    """The partition ZFS makes on a whole disk: sdb1, nvme0n1p1."""
    return f"{dev}p1" if dev[-1].isdigit() else f"{dev}1"


def _parse(argv: list[str]) -> tuple[str, dict[str, str], list[str]]:
    """Single-letter options, the values of each valued option, and the other words."""
    options, words = "", []
    values: dict[str, str] = {}
    rest = iter(argv)
    for word in rest:
        if word in _VALUED:
            values[word] = f"{values.get(word, '')} {next(rest, '')}".strip()
        elif word.startswith("-"):
            options += word[1:]
        else:
            words.append(word)
    return options, values, words


def _column(machine: MachineState, pool: Zpool, column: str, *, exact: bool) -> str:
    size = _size(pool_bytes(machine, pool), exact=exact)
    known = {"name": pool.name, "size": size, "free": size, "allocated": "0", "alloc": "0", "health": pool.health}
    return known.get(column, str(pool.guid) if column == "guid" else "-")


def pool_bytes(machine: MachineState, pool: Zpool) -> int:
    """`zpool list` counts raidz with its parity, a mirror once."""
    sizes = [machine.disks[dev].spec.size for dev in pool.devices if dev in machine.disks]
    raw = min(sizes, default=0) if pool.layout == "mirror" else sum(sizes)
    return raw - raw // 200  # labels and slack


def _size(amount: int, *, exact: bool) -> str:
    if exact:
        return str(amount)
    value = float(amount)
    for unit in ("B", "K", "M", "G"):
        if value < 1024:
            return f"{value:.3g}{unit}"
        value /= 1024
    return f"{value:.3g}T"
