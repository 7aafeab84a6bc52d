"""One error for all foreign formats: every problem of a file, each with its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SHOWN = 20
"""Problems that a message lists; the rest is counted."""
LONGEST = 60
"""Characters of a value that a message quotes."""


class FormatError(ValueError):
    """A file is not of the format that was expected; ``problems`` holds one readable sentence for each reason."""

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        self.path, self.problems = path, tuple(problems)
        more = len(self.problems) - SHOWN
        lines = [*self.problems[:SHOWN], *([f"... and {more} more"] if more > 0 else [])]
        super().__init__("\n".join(f"{path}{line}" for line in lines))

    def __reduce__(self) -> tuple[type[FormatError], tuple[Path, tuple[str, ...]]]:
        return type(self), (self.path, self.problems)


def quoted(value: object) -> str:
    """Show what stands in a file, at a bounded length."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > LONGEST:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
