"""Disks and pools: identities that survive a reboot, nothing written twice, layouts that add up, approvals."""

import re
from collections.abc import Iterator, Sequence

from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import short
from cozystack_iac.settings import Disk, Node, Site
from cozystack_iac.settings.base import size_text
from cozystack_iac.settings.paths import Step
from cozystack_iac.settings.storage import GIB
from cozystack_iac.storage import ledger, zfs

STO_001 = Rule(
    "STO-001",
    ERROR,
    title="every machine names its install disk",
    why="no disk is ever guessed: the first one may hold data",
    remedy="give serial, wwid or byId of the disk Talos goes to",
)
STO_002 = Rule(
    "STO-002",
    ERROR,
    title="disks are named by what does not change",
    why="kernel names change between boots, so the next one may name another disk",
    remedy="give serial, wwid or a link below /dev/disk/by-id",
)
STO_003 = Rule(
    "STO-003",
    ERROR,
    title="whole disks are named, not partitions",
    why="Talos reports whole disks only: what is on the rest of the disk, and on the partition, could not be looked at before",
    remedy="name the disk",
)
STO_004 = Rule(
    "STO-004",
    ERROR,
    title="a disk has one purpose",
    why="Talos and ZFS, or two vdevs, would overwrite each other",
    remedy="name another disk",
)
STO_005 = Rule(
    "STO-005",
    ERROR,
    title="one disk is in one machine",
    why="serial numbers and world-wide names are unique: one of the two machines has another disk",
    remedy="read the identity from the machine",
)
STO_006 = Rule(
    "STO-006",
    ERROR,
    title="the number of data disks suits the layout",
    why="zpool refuses it, or makes a pool that survives less than it seems",
    remedy="add disks, or choose another layout",
)
STO_007 = Rule(
    "STO-007",
    WARNING,
    title="the install disk is pinned to one identity",
    why="an expression may match another disk after a repair, and Talos installs on whatever matches first",
    remedy="give serial, wwid or byId",
)
STO_008 = Rule(
    "STO-008",
    ERROR,
    title="every data disk is approved",
    why="nothing is written to a disk that no person has approved by its identity",
    remedy="add the identity to storage.approvedDisks",
)
STO_009 = Rule(
    "STO-009",
    ERROR,
    title="approvals name machines and disks of the site",
    why="an approval that fits nothing is a slip: the disk that was meant is not the one that would be written",
    remedy="correct or remove it",
)
STO_010 = Rule(
    "STO-010",
    ERROR,
    title="pools have valid names",
    why="zpool or LINSTOR refuses it",
    remedy="use `data`",
)
STO_011 = Rule(
    "STO-011",
    ERROR,
    title="replicas fit the storage nodes",
    why="each copy needs a node of its own: volumes would never be placed, and everything that waits for one hangs",
    remedy="leave replicas out",
)
STO_012 = Rule(
    "STO-012",
    WARNING,
    title="data survives the loss of a machine",
    why="with fewer than three storage nodes DRBD has no quorum, or there is only one copy",
    remedy="add storage nodes",
    overridable=True,
)
STO_013 = Rule(
    "STO-013",
    ERROR,
    title="some machine stores data",
    why="without a pool and a default storage class, volumes stay pending and the platform never gets ready",
    remedy="add dataDisks to at least one node",
)
STO_014 = Rule(
    "STO-014",
    ERROR,
    title="data disks are not smaller than the platform needs",
    why="the platform's own volumes take more than 10 GiB at once; the pool would be full during the install",
    remedy="at least 50GiB",
)
STO_015 = Rule(
    "STO-015",
    ERROR,
    title="a disk is named by one identity, or by several that mean the same",
    why="nothing identifies it",
    remedy="give serial, wwid or byId",
)
STO_017 = Rule(
    "STO-017",
    NOTE,
    title="approvals by an identity that only the machine knows",
    why="the stack file names the disk by another identity, so that both are the same disk is judged live",
    remedy="nothing to do; name the disk by the approved identity to have it judged offline",
)
STO_018 = Rule(
    "STO-018",
    NOTE,
    title="the image of the privileged job is pinned",
    why="a tag can be moved to another image, and this one may do anything on the storage nodes",
    remedy="name it by its digest: registry.example.org/image:tag@sha256:…",
)
STO_016 = Rule(
    "STO-016",
    NOTE,
    title="storage classes exist that the platform expects",
    why="volumes without a class need a default one, logs one called `replicated`",
    remedy="make sure that they exist, or use create",
)

_KERNEL_NAME = re.compile(
    r"^(?:/dev/)?(?:[shv]d[a-z]{1,3}|xvd[a-z]|nvme\d+n\d+|mmcblk\d+|loop\d+|dm-\d+|md\d+|zd\d+)(?:p?\d+)?$", re.ASCII
)
_PARTITION = re.compile(r"-part\d+$", re.ASCII)
_POOL = re.compile(r"^[a-zA-Z][a-zA-Z0-9_.-]{0,47}$", re.ASCII)
_RESERVED_POOL = re.compile(r"^(?:mirror|raidz|draid|spare|log|c\d)", re.ASCII)  # zpool-create(8)
_BY_ID = "/dev/disk/by-id/"
_SIZE_REFUSED_BYTES = 10 * GIB
_SIZE_WARNED_BYTES = 50 * GIB


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about disks and pools."""
    site = survey.site
    for position, node in enumerate(site.nodes):
        yield from _node(site, position, node)
    yield from _elsewhere(site)
    yield from _approvals(site)
    yield from _pool(site)
    yield from _copies(site)


def _node(site: Site, position: int, node: Node) -> Iterator[Finding]:
    here: tuple[Step, ...] = ("nodes", position)
    if node.install_disk is not None:
        yield from _disk(site, (*here, "installDisk"), node.install_disk)
        if node.install_disk.selector and not _pinned(node.install_disk):
            problem = f"{node.name}'s install disk is chosen by an expression"
            path = site.where(*here, "installDisk", "selector")
            yield STO_007.at(path, problem=problem, fix="give serial, wwid or byId of the disk it should be")
    elif not site.existing and not site.partly_unread(*here, "installDisk") and not site.unread(*here):
        problem = f"{node.name or f'node {position + 1}'} has no install disk"
        yield STO_001.at(site.where(*here), problem=problem, fix="add `installDisk: {serial: …}`")
    seen = dict.fromkeys(_keys(node.install_disk), "the install disk") if node.install_disk else {}
    for index, disk in enumerate(node.data_disks):
        steps = (*here, "dataDisks", index)
        yield from _disk(site, steps, disk)
        shared = next((identity for identity in _keys(disk) if identity in seen), None)
        if shared is not None:
            problem = f"{node.name}'s data disk {shared[1]} is {seen[shared]} too"
            yield STO_004.at(site.where(*steps), problem=problem, fix="name another disk")
        seen |= {identity: f"data disk {index + 1}" for identity in _keys(disk) if identity not in seen}
    yield from _layout(site, position, node)


def _pinned(disk: Disk) -> bool:
    return bool(disk.wwid or disk.serial or disk.by_id)


def _keys(disk: Disk) -> list[tuple[str, str]]:
    """Identities in one spelling; expressions may be equal and still mean several disks, so they do not count."""
    keys = []
    for kind, value in disk.identities:
        if kind != "selector":
            plain = value.strip().removeprefix(_BY_ID)
            keys.append((kind, plain.lower() if kind == "wwid" else plain))
    return keys


def _disk(site: Site, steps: tuple[Step, ...], disk: Disk) -> Iterator[Finding]:
    if not any(value.strip() for _, value in disk.identities):
        if not site.partly_unread(*steps):
            fix = "give serial, wwid or byId, as the machine reports it"
            yield STO_015.at(site.where(*steps), problem="a disk without an identity", fix=fix)
        return
    for kind, value in disk.identities:
        path = site.where(*steps, kind)
        bare = value.removeprefix(_BY_ID)
        if kind != "selector" and _KERNEL_NAME.match(bare):
            problem = f"`{short(value)}` is a name the kernel gives"
            yield STO_002.at(path, problem=problem, fix="give serial, wwid or a link below /dev/disk/by-id")
        elif kind == "byId" and _PARTITION.search(bare) and not (site.existing and "dataDisks" in steps):
            problem = f"`{short(value)}` is a partition"
            yield STO_003.at(path, problem=problem, fix=f"write `{short(_PARTITION.sub('', bare))}`")
        elif kind == "byId" and (not bare or "/" in bare or bare != bare.strip() or bare in {".", ".."}):
            problem = f"`{short(value)}` is no link below /dev/disk/by-id"
            yield STO_002.at(path, problem=problem, fix="write the link's name, e.g. nvme-eui.0025385b21404321")
        elif kind in {"serial", "wwid"} and (value != value.strip() or not value.isprintable()):
            problem = f"`{short(value.strip())}` has white space or control characters around or in it"
            yield STO_002.at(path, problem=problem, fix=f"write `{short(value.strip())}`")


def _layout(site: Site, position: int, node: Node) -> Iterator[Finding]:
    count = len(node.data_disks)
    if not count:
        return
    layout = node.layout or site.storage.layout
    _, most = zfs.ARITY[layout]
    place: tuple[Step, ...] = ("nodes", position, "dataDisks")
    if wrong := zfs.arity(layout, count):
        fix = "choose single" if count == 1 else "choose mirror or raidz1 for this node, or add disks"
        yield STO_006.at(site.where(*place), problem=f"{node.name} has {wrong}", fix=fix)
    elif count > most:
        problem = f"{node.name} has {count} disks in one {layout}"
        fix = f"at most {most} disks in one vdev rebuild in reasonable time"
        yield STO_006.at(site.where(*place), problem=problem, fix=fix, severity=WARNING)


def _elsewhere(site: Site) -> Iterator[Finding]:
    owners: dict[tuple[str, str], int] = {}
    for position, node in enumerate(site.nodes):
        disks: list[tuple[tuple[Step, ...], Disk]] = [
            (("nodes", position, "dataDisks", index), disk) for index, disk in enumerate(node.data_disks)
        ]
        if node.install_disk is not None:
            disks.insert(0, (("nodes", position, "installDisk"), node.install_disk))
        for steps, disk in disks:
            for kind, value in _keys(disk):
                owner = owners.setdefault((kind, value), position)
                if owner != position:
                    problem = f"{kind} {short(value)} is in {node.name} and in {site.nodes[owner].name}"
                    fix = "read the identity from the machine"
                    yield STO_005.at(site.where(*steps, kind), problem=problem, fix=fix)


def _approvals(site: Site) -> Iterator[Finding]:
    """Disks that nobody has approved, and approvals that name none. Where machines can be asked, both may be right."""
    approved = site.storage.approved_disks
    nodes = {node.name: node for node in site.nodes}
    if not site.partly_unread("nodes"):
        for name in approved:
            if name not in nodes:
                path = site.where("storage", "approvedDisks", name)
                yield STO_009.at(path, problem=f"there is no node `{short(name)}`", fix="correct or remove it")
    missing: dict[str, dict[str, str]] = {}
    kept: dict[str, list[str]] = {}
    for node in site.nodes:
        open_, left = _open(node, approved.get(node.name, ()))
        if open_ and len(left) >= len(open_) and not site.existing and site.checks == "live":
            problem = f"{node.name}: {', '.join(map(short, left.values()))} for {', '.join(open_.values())}"
            at = site.where("storage", "approvedDisks", node.name)
            yield STO_017.at(at, problem=problem, fix="nothing: judged live")
            continue
        for index, text in left.items() if not site.partly_unread("nodes") else ():
            at = site.where("storage", "approvedDisks", node.name, index)
            yield STO_009.at(at, problem=f"{node.name} has no data disk `{short(text)}`", fix="correct or remove it")
        if open_:
            missing[node.name] = open_
            kept[node.name] = [text for index, text in enumerate(approved.get(node.name, ())) if index not in left]
    if missing and not site.unread("storage", "approvedDisks"):
        yield ledger.unapproved(STO_008, site.where("storage", "approvedDisks"), missing, kept)


def _open(node: Node, given: Sequence[str]) -> tuple[dict[str, str], dict[int, str]]:
    """Data disks without an approval (by their identity), and approvals (by their place) that name none of its disks."""
    spoken = [(ledger.spoken(disk), disk) for disk in node.data_disks]
    known = {identity for identities, _ in spoken for identity in identities}
    open_ = {own[0]: short(disk) for own, disk in spoken if own and not ledger.approval(given, own)}
    return open_, {index: text for index, text in enumerate(given) if not ledger.approval([text], known)}


def _pool(site: Site) -> Iterator[Finding]:
    for key, name in (("zpool", site.storage.zpool), ("pool", site.storage.pool)):
        if not _POOL.match(name) or (key == "zpool" and _RESERVED_POOL.match(name)):
            problem = f"`{short(name)}` cannot be the name of a {key}"
            yield STO_010.at(site.where("storage", key), problem=problem, fix="use `data`")
    size, path = site.storage.minimum_size, site.where("storage", "minimumSize")
    if size < _SIZE_REFUSED_BYTES:
        yield STO_014.at(path, problem=f"{size_text(size)} are accepted", fix="use 50GiB or more")
    elif size < _SIZE_WARNED_BYTES:
        yield STO_014.at(path, problem=f"{size_text(size)} are accepted", fix="use 50GiB or more", severity=WARNING)
    image = site.storage.job_image
    if image is not None and "@sha256:" not in image and site.storage.provisioner == "job":
        problem = f"`{short(image)}` is named by a tag"
        yield STO_018.at(site.where("storage", "jobImage"), problem=problem, fix="add its digest: …@sha256:…")
    if site.storage.classes == "skip":
        yield STO_016.at(
            site.where("storage", "classes"), problem="storage classes are left alone", fix="or use create"
        )


def _copies(site: Site) -> Iterator[Finding]:
    count, replicas = len(site.storage_nodes), site.storage.replicas
    if site.partly_unread("nodes") or site.platform_variant in {"isp-hosted", "default"}:
        return
    if site.nodes and not count:
        yield STO_013.at(site.where("nodes"), problem="no node has data disks", fix="add `dataDisks` to a node")
    if replicas is not None and count and not 1 <= replicas <= count:
        problem = f"{replicas} copies on {count} storage node{'s' if count != 1 else ''}"
        path = site.where("storage", "replicas")
        yield STO_011.at(path, problem=problem, fix=f"use {min(3, count)}, or leave it out")
    if 0 < count < 3:
        # A site of one machine is a decision; a larger one with too few disks is more likely an oversight.
        severity = NOTE if len(site.nodes) == 1 else WARNING
        problem = f"{count} storage node{'s' if count != 1 else ''}"
        fix = "add data disks to three nodes or more"
        yield STO_012.at(site.where("nodes"), problem=problem, fix=fix, severity=severity)
