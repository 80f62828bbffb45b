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
    title="a pool that LINSTOR makes is one disk",
    why="LINSTOR stripes several disks into one pool without redundancy: any one of them would take all data with it",
    remedy="one data disk per node, or `storage.provisioner: job`",
)
STO_031 = Rule(
    "STO-031",
    ERROR,
    title="a disk that LINSTOR is given on an existing host has its link and a number",
    why="LINSTOR is given a path and overwrites what is there; only what the stack file says can be compared with LINSTOR's list",
    remedy="give `byId` and `serial` (or `wwid`)",
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
            fix = "choose layout single, or `storage.provisioner: job`"
            yield STO_030.at(site.where(*here), problem=f"{node.name} has layout {layout}", fix=fix)
        elif len(node.data_disks) > 1:
            problem = f"{node.name} has {len(node.data_disks)} data disks"
            yield STO_030.at(site.where(*here), problem=problem, fix="name one, or use `storage.provisioner: job`")
        for index, disk in enumerate(node.data_disks) if site.existing else ():
            yield from _named(site, (*here, index), node.name, disk)


def _named(site: Site, steps: tuple[Step, ...], node: str, disk: Disk) -> Iterator[Finding]:
    path = site.where(*steps)
    if not disk.by_id:
        yield STO_031.at(path, problem=f"{node}: {short(str(disk))} has no link", fix="add `byId`")
    elif not (disk.serial or disk.wwid):
        problem = f"{node}: of {short(disk.by_id)} only the name can be compared with what LINSTOR lists"
        fix = "add `serial` (or `wwid`) as `lsblk -o name,serial,wwn` shows it"
        yield STO_031.at(path, problem=problem, fix=fix, severity=WARNING)
