"""Machine-configuration documents: what the user's patches and the inventory make of them. Judged where they are made."""

from collections.abc import Iterator

from cozystack_iac.findings import Finding
from cozystack_iac.rules.survey import Survey
from cozystack_iac.talos.documents import UnsupportedTalos, conflicts, minor_of


def judge(survey: Survey) -> Iterator[Finding]:
    """Conflicts between the user's documents and ours, and what a machine could not be told at all."""
    try:
        minor_of(survey.site.talos_version)
    except UnsupportedTalos:
        return  # the rules about versions have said it
    yield from conflicts.findings(survey.site)
