"""What was recorded of the real thing: an optional folder outside the repository."""

from pathlib import Path

from cozystack_iac import releases

FOLDER = Path(__file__).parents[2] / "shared" / "vectors"


def _recorded(release: str) -> bool:
    return not FOLDER.is_dir() or (FOLDER / "cozystack" / release).is_dir()


RELEASES = tuple(filter(_recorded, map(str, releases.LATEST.values())))
"""The releases to hold against the recordings. `tests/unit/test_releases.py` names those that were not recorded."""
