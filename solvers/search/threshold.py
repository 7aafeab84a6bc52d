"""Search on the value: fix a threshold T, ask "does anything take at most T?", and close in on the least value.

Minimising a maximum in one go leaves every search with weak limits; with T fixed they are yes/no questions. A yes
brings something that is better, a no lifts the lower limit, and "nothing takes UB - 1" is the proof (a destructive
lower bound). Values are whole numbers, so the search ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Bracket(Protocol):
    """What is known of the least value: the best so far, a proven lower limit, and how often was asked."""

    upper: int
    lower: int
    asked: int

    def over(self) -> bool:
        """Tell whether the limits are used up."""
        ...

    def tell(self) -> None:
        """Report both limits."""
        ...


def questions(asked: int) -> str:
    """Say in words how such a search went, for the notes of an outcome."""
    if asked == 0:
        return "settled without a search"
    return f"asked {'once' if asked == 1 else f'{asked} times'} whether anything is better than some value"


def close(known: Bracket, choose: Callable[[], int], ask: Callable[[int], bool | None]) -> None:
    """Ask until both limits meet or time is over.

    ``choose`` returns a threshold from ``lower`` to below ``upper``. ``ask`` lowers ``upper`` and returns True
    where something takes at most the threshold, False where nothing does, None where it does not know. Raises what
    ``ask`` raises, StoppedError too: what was known before the question stays.
    """
    known.tell()
    while known.lower < known.upper and not known.over():
        threshold = choose()
        known.asked += 1
        if ask(threshold) is False:
            known.lower = threshold + 1
        known.tell()
