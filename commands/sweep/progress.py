"""How far a sweep is, on one line: a bar, how many points, and about how long the others take."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from commands.terminal import output
from commands.terminal.progress import ProgressLine

WIDE = 24
TIMES = ((3600, "h"), (60, "min"), (1, "s"))


class SweepLine:
    """The progress line of a sweep: :meth:`done` is told how many points are known."""

    def __init__(self, name: str, total: int, kept: int, line: ProgressLine) -> None:
        self._name, self._total, self._kept, self._line = name, total, kept, line
        self._began = time.monotonic()
        self.done(kept)

    def done(self, known: int) -> None:
        """Show how many points are known."""
        seconds = time.monotonic() - self._began
        self._line.title = bar_text(self._name, known, self._total, known - self._kept, seconds)

    def stopping(self) -> None:
        """Say that no more points are planned."""
        if self._line.shown:
            self._line.stopping()
        else:
            output.remark("stopping with the points so far (Ctrl-C again to abort)")


def bar_text(name: str, known: int, total: int, now: int, seconds: float) -> str:
    """Return the line: ``budget.yaml [##--] 20 of 40, about 5 min left``; ``now`` came in so many seconds."""
    full = WIDE * known // total if total else WIDE
    words = f"{name} [{'#' * full}{'-' * (WIDE - full)}] {known} of {total}"
    if not now or known >= total:
        return words
    left = (total - known) * seconds / now
    size, unit = next(((size, unit) for size, unit in TIMES if left >= size), TIMES[-1])
    return f"{words}, about {max(1, round(left / size))} {unit} left"


@contextlib.contextmanager
def following(name: str, total: int, kept: int, *, quiet: bool) -> Iterator[tuple[SweepLine, threading.Event]]:
    """Provide the line of a sweep, and what is set once somebody asks to stop."""
    if not quiet and kept:
        output.remark(f"{kept} of {total} points are known already")
    with ProgressLine(name, quiet=quiet) as line:
        yield SweepLine(name, total, kept, line), threading.Event()
