"""What a simulated command prints and how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    stdout: str = ""
    stderr: str = ""
    code: int = 0

    def as_json(self) -> dict[str, Any]:
        """How it travels over the control socket to the stub tools."""
        return {"stdout": self.stdout, "stderr": self.stderr, "code": self.code}
