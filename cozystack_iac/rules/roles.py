"""Control planes and workers: quorum."""

from collections.abc import Iterator

from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.rules.survey import Survey
from cozystack_iac.settings.paths import config_set

ROL_001 = Rule(
    "ROL-001",
    ERROR,
    title="The site has a control plane",
    why="there is nowhere for etcd and the API server to run",
    remedy="make one, three or five nodes control plane nodes",
)
ROL_002 = Rule(
    "ROL-002",
    ERROR,
    title="The number of control plane nodes is odd",
    why="an even number tolerates no more failures than the next lower odd number, and two nodes tolerate "
    "none: losing either takes down the API and the VIP",
    remedy="use one, three or five",
    overridable=True,
    soft_on_existing=True,
)
ROL_003 = Rule(
    "ROL-003",
    NOTE,
    title="The cluster survives the loss of a control plane node",
    why="with a single control plane node, every maintenance is an outage, and its disk holds the only copy of etcd",
    remedy="use three control plane nodes in production",
)
ROL_004 = Rule(
    "ROL-004",
    WARNING,
    title="There are at most seven etcd members",
    why="every write waits for a majority, so more members make etcd slower but hardly safer",
    remedy="make the other nodes workers",
)

ROL_005 = Rule(
    "ROL-005",
    ERROR,
    title="Pods have nodes to run on",
    why="there are no workers, and pods may not run on control plane nodes, so the platform is never scheduled",
    remedy="leave talos.scheduleOnControlPlanes on, or add workers",
)


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about roles."""
    site = survey.site
    if not site.nodes or site.cluster.variant == "hosted" or _role_unknown(survey):
        return
    count, path = len(site.control_planes), site.where("nodes")
    if count == 0:
        yield ROL_001.at(
            path, problem="no node has the role controlPlane", fix="set `role: controlPlane` on one or three nodes"
        )
    elif count == 1:
        yield ROL_003.at(
            path, problem="the site has one control plane node", fix="use three control plane nodes in production"
        )
    elif count % 2 == 0:
        severity = ERROR if count == 2 else WARNING
        tolerated = (count - 1) // 2
        problem = f"{count} control plane nodes tolerate the loss of {tolerated or 'none'}"
        yield ROL_002.at(
            path, problem=problem, fix=f"use {count - 1} or {count + 1} control plane nodes", severity=severity
        )
    elif count > 7:
        yield ROL_004.at(path, problem=f"the site has {count} control plane nodes", fix="use five or seven")
    if not site.existing and not site.workers and not site.talos.schedule_on_control_planes:
        path = site.where("talos", "scheduleOnControlPlanes")
        problem = "control plane nodes accept no pods, and there are no workers"
        yield ROL_005.at(
            path,
            problem=problem,
            fix="leave scheduleOnControlPlanes on, or add workers",
            command=config_set(path, "true"),
        )


def _role_unknown(survey: Survey) -> bool:
    site = survey.site
    return any("role" not in node.model_fields_set for node in site.nodes) or site.unread("nodes")
