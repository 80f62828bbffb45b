"""What was recorded of the real thing: an optional folder outside the repository."""

from pathlib import Path

from cozystack_iac import releases

FOLDER = Path(__file__).parents[2] / "shared" / "vectors"


def _recorded(*path: str) -> bool:
    return not FOLDER.is_dir() or FOLDER.joinpath(*path).is_dir()


# What to hold against the recordings; `tests/unit/test_releases.py` names what was not recorded.
RELEASES = tuple(text for text in map(str, releases.LATEST.values()) if _recorded("cozystack", text))
TALOS_MINORS = tuple(minor for minor in releases.TALOS_MINORS if _recorded("talos", "configs", f"v1.{minor}"))
