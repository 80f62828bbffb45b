"""What holds only where LINSTOR makes the pools itself (`storage.provisioner: linstor`)."""

from collections.abc import Iterator

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import short
from cozystack_iac.settings import Disk, Site
from cozystack_iac.settings.paths import Step

STO_030 = Rule(
    "STO-030",
    ERROR,
    title="Pools created by LINSTOR use one disk",
    why="LINSTOR stripes several disks into one pool without redundancy, so the loss of any disk loses all data",
    remedy="use one data disk per node, or set `storage.provisioner: job`",
)
STO_031 = Rule(
    "STO-031",
    ERROR,
    title="Disks for LINSTOR on an existing host have a by-id link and a serial or WWID",
    why="LINSTOR takes a path and overwrites the disk; only identities in the stack file can be compared "
    "with LINSTOR's list",
    remedy="set `byId` and `serial` (or `wwid`)",
)


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about disks that LINSTOR makes pools of."""
    site = survey.site
    if site.storage.provisioner != "linstor":
        return
    for position, node in enumerate(site.nodes):
        here: tuple[Step, ...] = ("nodes", position, "dataDisks")
        layout = node.layout or site.storage.layout
        if node.data_disks and layout != "single":
            fix = "use layout single, or set `storage.provisioner: job`"
            yield STO_030.at(site.where(*here), problem=f"{node.name} has layout {layout}", fix=fix)
        elif len(node.data_disks) > 1:
            problem = f"{node.name} has {len(node.data_disks)} data disks"
            yield STO_030.at(
                site.where(*here), problem=problem, fix="keep one data disk, or set `storage.provisioner: job`"
            )
        for index, disk in enumerate(node.data_disks) if site.existing else ():
            yield from _named(site, (*here, index), node.name, disk)


def _named(site: Site, steps: tuple[Step, ...], node: str, disk: Disk) -> Iterator[Finding]:
    path = site.where(*steps)
    if not disk.by_id:
        yield STO_031.at(path, problem=f"{node}: {short(str(disk))} has no by-id link", fix="add `byId`")
    elif not (disk.serial or disk.wwid):
        problem = f"{node}: only the link {short(disk.by_id)} can be compared with LINSTOR's list"
        fix = "add `serial` (or `wwid`) as shown by `lsblk -o name,serial,wwn`"
        yield STO_031.at(path, problem=problem, fix=fix, severity=WARNING)
