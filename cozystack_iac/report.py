"""What a run has to say beyond the terminal: Markdown for a pull request or a job's summary.

Parts are appended to the file that COZYSTACK_IAC_REPORT names; without it nothing is written. Stages run in the dynamic
provider's process, which inherits the engine's environment, so this reaches from `make preview` to every stage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "COZYSTACK_IAC_REPORT"


def add(title: str, markdown: str, environ: Mapping[str, str] = os.environ) -> None:
    """Append a section. A report that cannot be written is said and costs nothing else: it decides about nothing."""
    name = environ.get(VARIABLE, "")
    if not name:
        return
    try:
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(f"### {title}\n\n{markdown.rstrip()}\n\n")
    except OSError as error:
        print(f"the report {name} cannot be written: {error.strerror}", flush=True)


def fenced(text: str) -> str:
    """Plain text as a Markdown block; longer than any fence inside it."""
    fence = "~" * max(3, max((len(line) for line in text.splitlines() if line and set(line) == {"~"}), default=0) + 1)
    return f"{fence}\n{text}\n{fence}"
