"""The embedded lab: what its stack files are held to beyond others, and what they are excused from."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address

from cozystack_iac.findings import ERROR, NOTE, Finding, Rule, Severity
from cozystack_iac.reachability.names import endpoint
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import listed
from cozystack_iac.settings import Site

RUN_002 = Rule(
    "RUN-002",
    ERROR,
    title="The lab uses loopback addresses only",
    why="otherwise a lab stack, with its relaxed rules, could reach real machines",
    remedy="remove `cozystack:lab`, or use the addresses of the lab",
)

# By code: how a lab is told, or None where it is not. That its machines may have loopback addresses, `Survey.unusable` knows.
EXCUSED: Mapping[str, Severity | None] = {
    "CRT-007": None,  # nobody's browser opens it, and no public authority would sign for it
    "CRT-008": None,  # its authority is simulated, and fetches no challenge from the internet
    "INV-015": None,  # public addresses are on loopback like all others
    "PLT-014": None,  # the published API server is this machine itself
    "PUB-005": None,  # names lead to loopback, and it is a playground
    "RUN-001": NOTE,  # it begins anew with every start, and its machines' secrets with it
    "RUN-004": None,  # its time is scaled, so budgets are seconds
}


def judge(survey: Survey) -> Iterator[Finding]:
    """The lab's own findings."""
    site = survey.site
    if site.lab is None:
        return
    points = (*survey.node_points, *survey.vips, *survey.external)
    real = [point for point in points if point.address is not None and not point.address.is_loopback]
    if real:
        problem = f"the stack is a lab, but it uses {listed(str(point) for point in real)}"
        yield RUN_002.at(
            site.where("lab"), problem=problem, fix="remove `cozystack:lab`, or use the addresses of the lab"
        )
    if not 0 < site.lab.https_port < 65536:
        path = site.where("lab", "httpsPort")
        yield RUN_002.at(path, problem=f"{site.lab.https_port} is not a valid port", fix="use 8443")
    for steps, text in survey.resolvers.items():
        if not site.unread(*steps) and _is_elsewhere(text):
            problem = f"the stack is a lab, but it uses the resolver {text}"
            fix = "remove `cozystack:lab`, or use a resolver of the lab"
            yield RUN_002.at(site.where(*steps), problem=problem, fix=fix)


def _is_elsewhere(resolver: str) -> bool:
    with suppress(ValueError):  # no address at all: RCH-003 says so
        return not ip_address(endpoint(resolver)[0]).is_loopback
    return False


def excused(site: Site, findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings as a site is told them: all, unless it is a lab."""
    leniency = EXCUSED if site.lab is not None else {}
    for finding in findings:
        severity = leniency.get(finding.code, finding.severity)
        if severity is not None:
            yield replace(finding, severity=severity)
