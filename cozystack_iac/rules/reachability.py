"""How the platform is looked at from outside at the end: the resolvers that are asked, and the check that is skipped."""

from collections.abc import Iterator

from cozystack_iac.findings import ERROR, Finding, Rule
from cozystack_iac.reachability.names import endpoint
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import short
from cozystack_iac.settings import Site
from cozystack_iac.settings.paths import config_set

RCH_002 = Rule(
    "RCH-002",
    ERROR,
    title="the platform is looked at from outside",
    why="all releases can be ready while nobody can reach any of them; only a look from outside tells",
    remedy="leave publishing.reachability at check, or say why it is skipped in an override",
    overridable=True,
)
RCH_003 = Rule(
    "RCH-003",
    ERROR,
    title="resolvers are addresses",
    why="a resolver with a name would have to be resolved by the resolver it is compared with",
    remedy="write e.g. 9.9.9.9, or 10.0.0.53:5353",
)


def judge(survey: Survey) -> Iterator[Finding]:
    """Findings about the check of reachability."""
    site = survey.site
    if site.publishing.reachability == "skip":
        path = site.where("publishing", "reachability")
        command = config_set("cozystack:publishing.reachability", "check")
        fix = "check it, or add RCH-002 with a reason to `allow`"
        yield RCH_002.at(path, problem="nobody looks at the platform from outside", fix=fix, command=command)
    for steps, text in survey.resolvers.items():
        if not site.unread(*steps) and not _is_resolver(text):
            yield RCH_003.at(site.where(*steps), problem=f"`{short(text)}` is no address", fix="write e.g. 9.9.9.9")


def skipped(site: Site) -> str:
    """Why nobody looks: the reason of the override, for the stack's outputs. Empty when somebody does."""
    if site.publishing.reachability == "check":
        return ""
    return next((allow.reason for allow in site.allow if allow.guardrail == RCH_002.code), "no reason was given")


def _is_resolver(text: str) -> bool:
    try:
        endpoint(text)
    except ValueError:
        return False
    return True
