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
    title="The platform is probed from outside",
    why="all releases can be ready while nobody can reach the platform; only a probe from outside shows that",
    remedy="leave publishing.reachability at check, or state in an override why it is skipped",
    overridable=True,
)
RCH_003 = Rule(
    "RCH-003",
    ERROR,
    title="Resolvers are given as IP addresses",
    why="a resolver given by name would have to be looked up through the very resolver it is compared with",
    remedy="write, for example, 9.9.9.9 or 10.0.0.53:5353",
)


def judge(survey: Survey) -> Iterator[Finding]:
    """Findings about the check of reachability."""
    site = survey.site
    if site.publishing.reachability == "skip":
        path = site.where("publishing", "reachability")
        command = config_set("cozystack:publishing.reachability", "check")
        fix = "set it to check, or add RCH-002 with a reason to `allow`"
        yield RCH_002.at(path, problem="the probe from outside is skipped", fix=fix, command=command)
    for steps, text in survey.resolvers.items():
        if not site.unread(*steps) and not _is_resolver(text):
            yield RCH_003.at(
                site.where(*steps), problem=f"`{short(text)}` is not an IP address", fix="write, for example, 9.9.9.9"
            )


def skipped(site: Site) -> str:
    """Why nobody looks: the reason of the override, for the stack's outputs. Empty when somebody does."""
    if site.publishing.reachability == "check":
        return ""
    return next((allow.reason for allow in site.allow if allow.guardrail == RCH_002.code), "no reason is given")


def _is_resolver(text: str) -> bool:
    try:
        endpoint(text)
    except ValueError:
        return False
    return True
