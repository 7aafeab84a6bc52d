"""Until when there is time: one clock for all phases of a command.

A user gives seconds (``formulation.outcome.Limits``); the clock begins once, with the command or the call, and is
handed down to everything that can take long: reading, tables, search, tidying, checks, explanation, pages. A phase
whose half-done work is worth something asks :meth:`Deadline.over` and returns what it has; one whose half-done
work is worth nothing, such as a table, calls :meth:`Deadline.check`, and whoever holds a plan catches what that
raises.

What is proved before a search begins, by others, so that it need not be proved again.

How much memory a method may take: what would take more is refused before anything of it is allocated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

Item = TypeVar("Item")


class StoppedError(Exception):
    """The time is over, or someone asked to stop, in the middle of work that is worth nothing unless finished."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time, in seconds of ``time.monotonic`` (None: never), and the wish of someone to stop earlier."""

    end_s: float | None = None
    stopped: Callable[[], bool] = field(default=bool, compare=False)  # nobody: bool() is False

    def over(self) -> bool:
        """Tell whether the time is used up or someone asked to stop."""
        return self.stopped() or (self.end_s is not None and time.monotonic() >= self.end_s)

    def left_s(self) -> float | None:
        """Return the seconds that are left, 0 or more; None: any number."""
        return None if self.end_s is None else max(0.0, self.end_s - time.monotonic())

    def check(self) -> None:
        """Raise StoppedError once it is over."""
        if self.over():
            raise StoppedError

    def share(self, parts: float) -> Deadline:
        """Return an earlier deadline: a part of the time that is left."""
        left = self.left_s()
        return self if left is None else replace(self, end_s=time.monotonic() + left / parts)

    def within(self, seconds: float) -> Deadline:
        """Return a deadline after so many seconds, or this one if it comes earlier."""
        end = time.monotonic() + seconds
        return replace(self, end_s=end if self.end_s is None else min(end, self.end_s))


NEVER = Deadline()
"""No limit: for work that is known to be short, and for callers who set none."""


def in_time(items: Iterable[Item], deadline: Deadline) -> Iterator[Item]:
    """Yield the items for as long as there is time; then raise StoppedError."""
    for item in items:
        deadline.check()
        yield item


@dataclass(frozen=True, slots=True)
class ProvedBound:
    """A value of the first goal that no plan undercuts, the methods that this rests on, and the same in words."""

    value: int
    by: tuple[str, ...]
    words: str


GIB = 1 << 30
MOST_BYTES = 4 * GIB
"""What the tables, or the model, of one method may take, with what is needed while they are made."""


class TooLargeError(ValueError):
    """An instance is too large for a method; the message has both numbers and says what to do."""

    @staticmethod
    def refuse_above(what: str, needed_bytes: int, instead: str) -> None:
        """Raise TooLargeError if something would take more bytes than a method may take."""
        if needed_bytes > MOST_BYTES:
            raise TooLargeError(
                f"{what} would take about {needed_bytes / GIB:.1f} GiB,"
                f" a method may take {MOST_BYTES / GIB:g} GiB; {instead}"
            )
