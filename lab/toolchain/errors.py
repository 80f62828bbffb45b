"""The one exception of this package, written for the person who reads it at night."""

from collections.abc import Sequence


class ToolchainError(Exception):
    """A tool could not be had. `str()` is complete: what failed, the evidence, what it means, what to do next."""

    def __init__(
        self, what: str, details: Sequence[tuple[str, str]] = (), *, means: str = "", next_step: str = ""
    ) -> None:
        self.what = what
        self.details = tuple(details)
        self.means = means
        self.next_step = next_step
        rows = [*self.details, *([("means", means)] if means else []), *([("next", next_step)] if next_step else [])]
        super().__init__("\n".join([what, *(_row(label, text) for label, text in rows)]))


def _row(label: str, text: str) -> str:
    first, *rest = text.splitlines() or [""]
    return "\n".join([f"  {label:<12}{first}", *(f"  {'':<12}{line}" for line in rest)])
