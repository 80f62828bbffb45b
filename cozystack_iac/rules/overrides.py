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
    title="Overrides name a rule that can be overridden",
    why="the entry has no effect, although it looks as if it did",
    remedy="use the code shown in the finding; docs/findings.md lists which rules can be overridden",
)
OVR_002 = Rule(
    "OVR-002",
    ERROR,
    title="Every override has a reason",
    why="later nobody can tell whether the override is still needed",
    remedy="add `reason`",
)
OVR_003 = Rule(
    "OVR-003",
    ERROR,
    title="No override has expired",
    why="the override was meant to be reviewed by that date",
    remedy="fix the problem, or renew the override with a new date",
)
OVR_004 = Rule(
    "OVR-004",
    WARNING,
    title="Every override is needed",
    why="an unused override would hide the problem if it came back",
    remedy="remove the override",
)
OVR_005 = Rule(
    "OVR-005",
    NOTE,
    title="Every override has an end date",
    why="an override without an end date is easily forgotten",
    remedy="add `until`",
)
OVR_006 = Rule(
    "OVR-006",
    ERROR,
    title="Every rule is overridden only once",
    why="two reasons or dates for one decision contradict each other",
    remedy="keep one of the entries",
)
RUN_001 = Rule(
    "RUN-001",
    WARNING,
    title="Irreplaceable resources are protected",
    why="a single `pulumi destroy` would delete the machine secrets, and with them all access to the machines",
    remedy="leave protect on; turn it off only right before a destroy",
)
RUN_003 = Rule(
    "RUN-003",
    NOTE,
    title="Previews run the live checks",
    why="with checks set to offline, a preview cannot check the machines and reports the live checks as skipped",
    remedy="use `live` wherever the site is reachable",
)
RUN_004 = Rule(
    "RUN-004",
    WARNING,
    title="Timeouts are long enough for a healthy site",
    why="the run would give up on a site that is still making progress",
    remedy="remove the timeout to use the default",
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
            fix = f"use one of: {', '.join(rule.code for rule in rules() if rule.overridable)}"
            yield OVR_001.at(path, problem=problem, fix=fix)
        elif allow.guardrail in seen:
            yield OVR_006.at(path, problem=f"{allow.guardrail} is overridden twice", fix="keep one of the entries")
        seen.add(allow.guardrail)
        if not allow.reason.strip():
            yield OVR_002.at(
                path, problem=f"the override of {short(allow.guardrail)} has no reason", fix="add `reason`"
            )
        if allow.until is None:
            yield OVR_005.at(
                path, problem=f"the override of {short(allow.guardrail)} has no end date", fix="add `until`"
            )
        elif allow.until < today:
            problem = f"the override of {short(allow.guardrail)} expired on {allow.until}"
            yield OVR_003.at(path, problem=problem, fix="fix the problem, or renew the override with a new date")


def _unsuitable(code: str) -> str | None:
    if not _CODE.match(code):
        return f"`{short(code)}` is not a finding code"
    known = {rule.code: rule for rule in rules()}
    if code in known and not known[code].overridable:
        return f"{code} cannot be overridden"
    # Codes of live checks are only known once their modules are loaded; their families are not ours.
    families = {known_code.partition("-")[0] for known_code in known}
    return f"{code} does not exist" if code not in known and code.partition("-")[0] in families else None


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
            problem = f"no finding matches the override of {allow.guardrail}"
            yield OVR_004.at(site.where("allow", index), problem=problem, fix="remove the override")


def _protection(site: Site) -> Iterator[Finding]:
    if not site.protect:
        path = site.where("protect")
        command = config_set(path, "true")
        yield RUN_001.at(path, problem="protect is off", fix="leave protect on", command=command)
    if site.checks == "offline":
        path = site.where("checks")
        yield RUN_003.at(path, problem="checks is set to offline", fix="use `live` wherever the site is reachable")


def _budgets(site: Site) -> Iterator[Finding]:
    for link, healthy in _HEALTHY.items():
        budget: timedelta = getattr(site.waits, link)
        if budget < healthy:
            path = site.where("waits", link)
            problem = (
                f"{link} has a timeout of {duration_text(budget)}, but a healthy site takes up to "
                f"{duration_text(healthy)}"
            )
            yield RUN_004.at(path, problem=problem, fix="remove it to use the default")
