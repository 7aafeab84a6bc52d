"""What is proved before a search begins, by others, so that it need not be proved again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProvedBound:
    """A value of the first goal that no plan undercuts, the methods that this rests on, and the same in words."""

    value: int
    by: tuple[str, ...]
    words: str
