"""Control planes and workers: quorum."""

from collections.abc import Iterator

from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.rules.survey import Survey
from cozystack_iac.settings.paths import config_set

ROL_001 = Rule(
    "ROL-001",
    ERROR,
    title="there is a control plane",
    why="etcd and the API server have nowhere to run",
    remedy="make one, three or five machines control planes",
)
ROL_002 = Rule(
    "ROL-002",
    ERROR,
    title="the number of control planes is odd",
    why="an even number tolerates no more failures than one less, and two tolerate none: losing either loses the API and the VIP",
    remedy="use one, three or five",
    overridable=True,
    soft_on_existing=True,
)
ROL_003 = Rule(
    "ROL-003",
    NOTE,
    title="the cluster survives the loss of a control plane",
    why="with a single control plane every maintenance of it is an outage, and its disk is the only copy of etcd",
    remedy="use three for anything that matters",
)
ROL_004 = Rule(
    "ROL-004",
    WARNING,
    title="etcd has at most seven members",
    why="every write waits for a majority; more members make it slower and hardly safer",
    remedy="make the others workers",
)

ROL_005 = Rule(
    "ROL-005",
    ERROR,
    title="pods have machines to run on",
    why="without workers, and with control planes kept free, nothing of the platform is ever scheduled",
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
            path, problem="no node is a control plane", fix="set `role: controlPlane` on one or three nodes"
        )
    elif count == 1:
        yield ROL_003.at(path, problem="one control plane", fix="use three for anything that matters")
    elif count % 2 == 0:
        severity = ERROR if count == 2 else WARNING
        tolerated = (count - 1) // 2
        problem = f"{count} control planes tolerate the loss of {tolerated or 'none'}"
        yield ROL_002.at(path, problem=problem, fix=f"use {count - 1} or {count + 1}", severity=severity)
    elif count > 7:
        yield ROL_004.at(path, problem=f"{count} control planes", fix="keep five or seven")
    if not site.existing and not site.workers and not site.talos.schedule_on_control_planes:
        path = site.where("talos", "scheduleOnControlPlanes")
        problem = "control planes are kept free of pods, and there are no workers"
        yield ROL_005.at(path, problem=problem, fix="leave it on, or add workers", command=config_set(path, "true"))


def _role_unknown(survey: Survey) -> bool:
    site = survey.site
    return any("role" not in node.model_fields_set for node in site.nodes) or site.unread("nodes")
