"""How the run behaves: overrides with their reasons, protection, checks and budgets."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date, timedelta

from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule, rules
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import short
from cozystack_iac.settings import Allow, Site
from cozystack_iac.settings.base import duration_text
from cozystack_iac.settings.paths import config_set

OVR_001 = Rule(
    "OVR-001",
    ERROR,
    title="overrides name a guardrail that can be overridden",
    why="it overrides nothing, and somebody believes that it does",
    remedy="use the code of the finding; docs/findings.md says which can be overridden",
)
OVR_002 = Rule(
    "OVR-002",
    ERROR,
    title="overrides have a reason",
    why="nobody will know later whether it is still needed",
    remedy="add `reason`",
)
OVR_003 = Rule(
    "OVR-003",
    ERROR,
    title="overrides have not expired",
    why="somebody decided that it should be looked at again by then",
    remedy="solve the problem, or decide again and move the date",
)
OVR_004 = Rule(
    "OVR-004",
    WARNING,
    title="overrides are needed",
    why="it would hide the problem when it comes back",
    remedy="remove it",
)
OVR_005 = Rule(
    "OVR-005",
    NOTE,
    title="overrides have an end",
    why="an override without one is forgotten",
    remedy="add `until`",
)
OVR_006 = Rule(
    "OVR-006",
    ERROR,
    title="each guardrail is overridden once",
    why="two reasons and two dates for one decision contradict each other",
    remedy="keep one",
)
RUN_001 = Rule(
    "RUN-001",
    WARNING,
    title="irreplaceable resources are protected",
    why="one `pulumi destroy` would delete the machines' secrets, and with them the way into every machine",
    remedy="leave protect on; switch it off right before a destroy",
)
RUN_003 = Rule(
    "RUN-003",
    NOTE,
    title="machines are asked during previews",
    why="with checks offline a preview says nothing about the machines: their checks are reported as skipped",
    remedy="use live wherever there is a way to the site",
)
RUN_004 = Rule(
    "RUN-004",
    WARNING,
    title="budgets leave room for a healthy site",
    why="a run would give up on a site that is merely on its way",
    remedy="leave the budget out",
)

_CODE = re.compile(r"^[A-Z]{2,5}-\d{3}$", re.ASCII)
# Our judgement of what a healthy site may take, rounded. linstor, tenant and platform rest on Cozystack's end-to-end tests
# (13, 20 and 15 to 30 minutes); the others are estimates.
_HEALTHY: Mapping[str, timedelta] = {
    "rollout": timedelta(minutes=5),
    "bootstrap": timedelta(minutes=5),
    "operator": timedelta(minutes=5),
    "linstor": timedelta(minutes=13),
    "tenant": timedelta(minutes=20),
    "platform": timedelta(minutes=30),
}


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about the run's own settings, without those that depend on other findings."""
    site = survey.site
    yield from _overrides(site, survey.today)
    yield from _protection(site)
    yield from _budgets(site)


def _overrides(site: Site, today: date) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, allow in enumerate(site.allow):
        path = site.where("allow", index)
        if site.partly_unread("allow", index):
            continue
        problem = _unsuitable(allow.guardrail)
        if problem is not None:
            fix = f"one of: {', '.join(rule.code for rule in rules() if rule.overridable)}"
            yield OVR_001.at(path, problem=problem, fix=fix)
        elif allow.guardrail in seen:
            yield OVR_006.at(path, problem=f"{allow.guardrail} is overridden twice", fix="keep one")
        seen.add(allow.guardrail)
        if not allow.reason.strip():
            yield OVR_002.at(
                path, problem=f"the override of {short(allow.guardrail)} has no reason", fix="add `reason`"
            )
        if allow.until is None:
            yield OVR_005.at(path, problem=f"the override of {short(allow.guardrail)} has no end", fix="add `until`")
        elif allow.until < today:
            problem = f"the override of {short(allow.guardrail)} ended on {allow.until}"
            yield OVR_003.at(path, problem=problem, fix="solve the problem, or decide again and move the date")


def _unsuitable(code: str) -> str | None:
    if not _CODE.match(code):
        return f"`{short(code)}` is no code of a finding"
    known = {rule.code: rule for rule in rules()}
    if code in known and not known[code].overridable:
        return f"{code} cannot be overridden"
    # Codes of live checks are only known once their modules are loaded; their families are not ours.
    families = {known_code.partition("-")[0] for known_code in known}
    return f"there is no finding {code}" if code not in known and code.partition("-")[0] in families else None


def _valid(allow: Allow, today: date) -> bool:
    return bool(allow.reason.strip()) and (allow.until is None or allow.until >= today)


def apply(site: Site, findings: Iterable[Finding], today: date) -> Iterator[Finding]:
    """The findings with overridden ones turned into notes that carry the reason, and overrides that hit nothing."""
    allowed = {allow.guardrail: allow for allow in site.allow if _valid(allow, today)}
    overridable = {rule.code for rule in rules() if rule.overridable}
    hit: set[str] = set()
    for finding in findings:
        allow = allowed.get(finding.code)
        if allow is not None and finding.code in overridable:
            hit.add(finding.code)
            if finding.severity is not NOTE:
                finding = replace(finding, severity=NOTE, fix=f"overridden: {short(allow.reason.strip())}")
        yield finding
    live = {rule.code for rule in rules() if rule.live}
    for index, allow in enumerate(site.allow):
        if allow.guardrail in overridable - hit - live and _valid(allow, today):
            problem = f"nothing here violates {allow.guardrail}"
            yield OVR_004.at(site.where("allow", index), problem=problem, fix="remove it")


def _protection(site: Site) -> Iterator[Finding]:
    if not site.protect:
        path = site.where("protect")
        command = config_set(path, "true")
        yield RUN_001.at(path, problem="protection is off", fix="leave it on", command=command)
    if site.checks == "offline":
        path = site.where("checks")
        yield RUN_003.at(path, problem="checks are offline", fix="use live wherever there is a way to the site")


def _budgets(site: Site) -> Iterator[Finding]:
    for link, healthy in _HEALTHY.items():
        budget: timedelta = getattr(site.waits, link)
        if budget < healthy:
            path = site.where("waits", link)
            problem = f"{link} gets {duration_text(budget)}, a healthy site takes up to {duration_text(healthy)}"
            yield RUN_004.at(path, problem=problem, fix="leave it out")
