"""The offline verdict: pure functions from a site to findings. Nothing here contacts anything.

Each module judges one subject and yields findings; nothing collects, sorts, stops or prints but `judge`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date

from cozystack_iac.findings import ERROR, WARNING, Finding, Verdict, rules
from cozystack_iac.rules import (
    certificates,
    disks,
    documents,
    endpoints,
    inventory,
    lab,
    machines,
    overrides,
    placement,
    platform,
    provisioner,
    publishing,
    ranges,
    reach,
    reachability,
    registries,
    roles,
    versions,
    vips,
)
from cozystack_iac.rules.survey import Survey
from cozystack_iac.settings import Site
from cozystack_iac.settings.load import Loaded

_SUBJECTS = (
    inventory,
    placement,
    roles,
    ranges,
    reach,
    vips,
    endpoints,
    disks,
    provisioner,
    machines,
    documents,
    versions,
    platform,
    publishing,
    certificates,
    registries,
    reachability,
    overrides,
    lab,
)


def judge(site: Site, today: date) -> Verdict:
    """Everything that is wrong with a site. `today` decides about expiry of overrides and certificates."""
    survey = Survey(site, today)
    found = (finding for subject in _SUBJECTS for finding in subject.judge(survey))
    return Verdict.of(overrides.apply(site, lab.excused(site, _softened(site, found)), today))


def verdict(loaded: Loaded) -> Verdict:
    """Everything that is wrong with a stack file, in form and in meaning. Texts that must not be printed are not in it."""
    formal = Verdict.of(loaded.findings)
    if loaded.site is None:
        return formal
    return (formal + judge(loaded.site, loaded.today)).redacted(loaded.secrets)


def _softened(site: Site, findings: Iterable[Finding]) -> Iterator[Finding]:
    """On existing clusters, errors about what nobody is going to rebuild become warnings."""
    soft = {rule.code for rule in rules() if rule.soft_on_existing} if site.existing else set()
    for finding in findings:
        downgraded = finding.code in soft and finding.severity is ERROR
        yield replace(finding, severity=WARNING) if downgraded else finding


__all__ = ["judge", "verdict"]
