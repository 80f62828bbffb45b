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
    title="Every node names its install disk",
    why="the program never guesses a disk, because the first one may hold data",
    remedy="set serial, wwid or byId of the disk that Talos is installed on",
)
STO_002 = Rule(
    "STO-002",
    ERROR,
    title="Disks are identified by stable names",
    why="kernel names such as /dev/sda can change at every boot and then point at another disk",
    remedy="set serial, wwid or a link in /dev/disk/by-id",
)
STO_003 = Rule(
    "STO-003",
    ERROR,
    title="Whole disks are used, not partitions",
    why="Talos reports whole disks only, so existing data on the partition and the rest of the disk cannot "
    "be checked first",
    remedy="name the whole disk",
)
STO_004 = Rule(
    "STO-004",
    ERROR,
    title="Each disk has one purpose",
    why="Talos and ZFS, or two vdevs, would overwrite each other's data",
    remedy="name a different disk",
)
STO_005 = Rule(
    "STO-005",
    ERROR,
    title="Each disk belongs to one node",
    why="serial numbers and WWIDs are unique, so one of the two nodes has a different disk",
    remedy="read the disk's identity on the machine and correct it",
)
STO_006 = Rule(
    "STO-006",
    ERROR,
    title="The number of data disks fits the layout",
    why="the zpool command rejects the layout, or creates a pool with less redundancy than expected",
    remedy="add disks, or choose another layout",
)
STO_007 = Rule(
    "STO-007",
    WARNING,
    title="The install disk is pinned to one identity",
    why="a selector may match a different disk after a repair, and Talos installs on the first match",
    remedy="set serial, wwid or byId",
)
STO_008 = Rule(
    "STO-008",
    ERROR,
    title="Every data disk is approved",
    why="the program writes only to disks whose identity a person has approved",
    remedy="add the disk's identity to storage.approvedDisks",
)
STO_009 = Rule(
    "STO-009",
    ERROR,
    title="Approvals match nodes and disks of this site",
    why="an approval that matches nothing is usually a typo, so the intended disk is not approved",
    remedy="correct or remove the approval",
)
STO_010 = Rule(
    "STO-010",
    ERROR,
    title="Pool names are valid",
    why="the zpool command or LINSTOR rejects the name",
    remedy="use `data`",
)
STO_011 = Rule(
    "STO-011",
    ERROR,
    title="There are enough storage nodes for the replicas",
    why="every replica needs its own node; volumes would never be placed, and everything that waits for one would hang",
    remedy="remove replicas to use the default",
)
STO_012 = Rule(
    "STO-012",
    WARNING,
    title="Data survives the loss of a node",
    why="with fewer than three storage nodes DRBD has no quorum, or there is only one replica",
    remedy="use at least three storage nodes",
    overridable=True,
)
STO_013 = Rule(
    "STO-013",
    ERROR,
    title="At least one node stores data",
    why="without a storage pool and a default storage class, volumes stay Pending and the platform never becomes ready",
    remedy="add dataDisks to at least one node",
)
STO_014 = Rule(
    "STO-014",
    ERROR,
    title="Data disks are large enough for the platform",
    why="the platform's own volumes need more than 10 GiB, so the pool would fill up during the install",
    remedy="set minimumSize to 50GiB or more",
)
STO_015 = Rule(
    "STO-015",
    ERROR,
    title="Every disk has an identity",
    why="without an identity the disk cannot be found",
    remedy="set serial, wwid or byId; several are allowed if they all name the same disk",
)
STO_017 = Rule(
    "STO-017",
    NOTE,
    title="The approved identity is also in the stack file",
    why="the approval uses an identity that the stack file does not list, so only the machine itself can "
    "confirm that both are the same disk",
    remedy="add the approved identity to the disk in the stack file if it should be checked offline too",
)
STO_018 = Rule(
    "STO-018",
    NOTE,
    title="The image of the privileged job is pinned by digest",
    why="a tag can be moved to a different image, and this image has full access to the storage nodes",
    remedy="add the digest: registry.example.org/image:tag@sha256:…",
)
STO_016 = Rule(
    "STO-016",
    NOTE,
    title="The storage classes that the platform expects exist",
    why="volumes without a class need a default one, and logs need one called `replicated`",
    remedy="make sure that both exist, or set storage.classes to create",
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
            problem = f"{node.name}'s install disk is chosen by a selector only"
            path = site.where(*here, "installDisk", "selector")
            yield STO_007.at(path, problem=problem, fix="set serial, wwid or byId of the intended disk")
    elif not site.existing and not site.partly_unread(*here, "installDisk") and not site.unread(*here):
        problem = f"{node.name or f'node {position + 1}'} has no install disk"
        yield STO_001.at(site.where(*here), problem=problem, fix="add `installDisk: {serial: …}`")
    seen = dict.fromkeys(_keys(node.install_disk), "the install disk") if node.install_disk else {}
    for index, disk in enumerate(node.data_disks):
        steps = (*here, "dataDisks", index)
        yield from _disk(site, steps, disk)
        shared = next((identity for identity in _keys(disk) if identity in seen), None)
        if shared is not None:
            problem = f"{node.name}'s data disk {shared[1]} is also {seen[shared]}"
            yield STO_004.at(site.where(*steps), problem=problem, fix="name a different disk")
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
            fix = "set serial, wwid or byId as the machine reports it"
            yield STO_015.at(site.where(*steps), problem="the disk has no identity", fix=fix)
        return
    for kind, value in disk.identities:
        path = site.where(*steps, kind)
        bare = value.removeprefix(_BY_ID)
        if kind != "selector" and _KERNEL_NAME.match(bare):
            problem = f"`{short(value)}` is a kernel name"
            yield STO_002.at(path, problem=problem, fix="set serial, wwid or a link in /dev/disk/by-id")
        elif kind == "byId" and _PARTITION.search(bare) and not (site.existing and "dataDisks" in steps):
            problem = f"`{short(value)}` is a partition"
            yield STO_003.at(path, problem=problem, fix=f"write `{short(_PARTITION.sub('', bare))}`")
        elif kind == "byId" and (not bare or "/" in bare or bare != bare.strip() or bare in {".", ".."}):
            problem = f"`{short(value)}` is not the name of a link in /dev/disk/by-id"
            yield STO_002.at(
                path, problem=problem, fix="write the name of the link, for example nvme-eui.0025385b21404321"
            )
        elif kind in {"serial", "wwid"} and (value != value.strip() or not value.isprintable()):
            problem = f"`{short(value.strip())}` contains whitespace or control characters"
            yield STO_002.at(path, problem=problem, fix=f"write `{short(value.strip())}`")


def _layout(site: Site, position: int, node: Node) -> Iterator[Finding]:
    count = len(node.data_disks)
    if not count:
        return
    layout = node.layout or site.storage.layout
    _, most = zfs.ARITY[layout]
    place: tuple[Step, ...] = ("nodes", position, "dataDisks")
    if wrong := zfs.arity(layout, count):
        fix = "use layout single" if count == 1 else "choose mirror or raidz1 for this node, or add disks"
        yield STO_006.at(site.where(*place), problem=f"{node.name} has {wrong}", fix=fix)
    elif count > most:
        problem = f"{node.name} has {count} disks in one {layout} vdev"
        fix = f"use at most {most} disks per vdev; larger ones take very long to resilver"
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
                    problem = f"{kind} {short(value)} is listed for both {node.name} and {site.nodes[owner].name}"
                    fix = "read the identity on the machine and correct it"
                    yield STO_005.at(site.where(*steps, kind), problem=problem, fix=fix)


def _approvals(site: Site) -> Iterator[Finding]:
    """Disks that nobody has approved, and approvals that name none. Where machines can be asked, both may be right."""
    approved = site.storage.approved_disks
    nodes = {node.name: node for node in site.nodes}
    if not site.partly_unread("nodes"):
        for name in approved:
            if name not in nodes:
                path = site.where("storage", "approvedDisks", name)
                yield STO_009.at(
                    path, problem=f"`{short(name)}` is not a node of this site", fix="correct or remove the entry"
                )
    missing: dict[str, dict[str, str]] = {}
    kept: dict[str, list[str]] = {}
    for node in site.nodes:
        open_, left = _open(node, approved.get(node.name, ()))
        if open_ and len(left) >= len(open_) and not site.existing and site.checks == "live":
            problem = (
                f"{node.name}: dataDisks lists {', '.join(open_.values())}, but the approval is for "
                f"{', '.join(map(short, left.values()))}"
            )
            at = site.where("storage", "approvedDisks", node.name)
            yield STO_017.at(at, problem=problem, fix="no action needed: the live check on the machine decides")
            continue
        for index, text in left.items() if not site.partly_unread("nodes") else ():
            at = site.where("storage", "approvedDisks", node.name, index)
            yield STO_009.at(
                at, problem=f"{node.name} has no data disk `{short(text)}`", fix="correct or remove the entry"
            )
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
            problem = f"`{short(name)}` is not a valid {key} name"
            yield STO_010.at(site.where("storage", key), problem=problem, fix="use a name such as `data`")
    size, path = site.storage.minimum_size, site.where("storage", "minimumSize")
    if size < _SIZE_REFUSED_BYTES:
        yield STO_014.at(
            path,
            problem=f"disks of {size_text(size)} are accepted, which is too small for the platform",
            fix="set minimumSize to 50GiB or more",
        )
    elif size < _SIZE_WARNED_BYTES:
        yield STO_014.at(
            path,
            problem=f"disks of {size_text(size)} are accepted, which may be too small for the platform",
            fix="set minimumSize to 50GiB or more",
            severity=WARNING,
        )
    image = site.storage.job_image
    if image is not None and "@sha256:" not in image and site.storage.provisioner == "job":
        problem = f"`{short(image)}` is pinned by tag only"
        yield STO_018.at(site.where("storage", "jobImage"), problem=problem, fix="add the digest: …@sha256:…")
    if site.storage.classes == "skip":
        yield STO_016.at(
            site.where("storage", "classes"),
            problem="storage.classes is skip, so no storage class is created",
            fix="make sure that a default class and `replicated` exist, or use create",
        )


def _copies(site: Site) -> Iterator[Finding]:
    count, replicas = len(site.storage_nodes), site.storage.replicas
    if site.partly_unread("nodes") or site.platform_variant in {"isp-hosted", "default"}:
        return
    if site.nodes and not count:
        yield STO_013.at(site.where("nodes"), problem="no node has data disks", fix="add `dataDisks` to a node")
    if replicas is not None and count and not 1 <= replicas <= count:
        problem = f"{replicas} replicas do not fit on {count} storage node{'s' if count != 1 else ''}"
        path = site.where("storage", "replicas")
        yield STO_011.at(path, problem=problem, fix=f"set replicas to {min(3, count)}, or remove it")
    if 0 < count < 3:
        # A site of one machine is a decision; a larger one with too few disks is more likely an oversight.
        severity = NOTE if len(site.nodes) == 1 else WARNING
        problem = f"the site has only {count} storage node{'s' if count != 1 else ''}"
        fix = "add data disks to at least three nodes"
        yield STO_012.at(site.where("nodes"), problem=problem, fix=fix, severity=severity)
