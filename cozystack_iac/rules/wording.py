"""How findings name things: short, and without drowning the reader in machines."""

from collections.abc import Iterable

_SHOWN = 60


def short(text: object) -> str:
    """A value as it may stand in a sentence."""
    shown = str(text)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}…"


def listed(names: Iterable[str], limit: int = 3) -> str:
    """`a, b, c and 7 more`."""
    names = list(names)
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
