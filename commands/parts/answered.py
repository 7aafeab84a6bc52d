"""A search that has an answer in time, whatever it does: its own, or what it had told when it was left.

And then the check of what it proved, which takes nothing of that away where it is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pipecut.commands.terminal.interrupt import GRACE_S, run_stoppable
from pipecut.formulation.outcome import Limits, Outcome, Progress
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.choices.standing import Standing
from pipecut.solvers.choices.trainings import DecideAsk, Decision, decided
from pipecut.solvers.crosscheck import LATE, NOT_CHECKED, STOPPED


@dataclass(slots=True)
class _Telling:
    """Tells of progress, from one thread at a time, until it is closed: a search that was left tells no more."""

    tell: Callable[[Progress], None]
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hear(self, progress: Progress) -> None:
        """Tell, unless it is closed."""
        with self.lock:
            if not self.closed:
                self.tell(progress)

    def close(self) -> None:
        """Tell no more; who is told at the moment is waited for, but not longer than for a search."""
        self.closed = True  # at once: Ctrl-C may end the waiting
        if self.lock.acquire(timeout=GRACE_S):
            self.lock.release()


Work = Callable[[Limits], tuple[Instance, Outcome]]


def decided_in_time(
    instance: Instance, ask: DecideAsk, solver: str, follow: Callable[[Work], tuple[Instance, Outcome]]
) -> Decision:
    """Choose what an instance leaves open; ``follow`` does that within limits, and answers where it is left.

    ``solver`` is the name of who is asked.
    """
    found: list[Decision] = []

    def work(within: Limits) -> tuple[Instance, Outcome]:
        found.append(decided(instance, ask, within, solver))
        return found[0].instance, found[0].outcome

    about, outcome = follow(work)
    return next((one for one in found if one.outcome is outcome), Decision(about, outcome))


def checked_in_time(
    found: Decision, limits: Limits, stop: threading.Event, on_stop: Callable[[], None] = lambda: None
) -> Outcome:
    """Return a claim with what others make of what it proves; Ctrl-C stops only that, and so does its time.

    Raises FalseClaimError if two methods contradict each other.
    """
    within, said = found.to_check(replace(limits, stopped=lambda: stop.is_set() or limits.stopped())), list[str]()

    def left() -> None:
        said.append(f"{NOT_CHECKED}: {STOPPED if stop.is_set() else LATE}")

    run_stoppable(lambda: said.extend(found.checks(within)), stop, on_stop, deadline=within.deadline, instead=left)
    return replace(found.outcome, checks=tuple(said))


def decided_alone(
    instance: Instance, ask: DecideAsk, limits: Limits, solver: str, *, cross_check: bool
) -> tuple[Instance, Outcome]:
    """Do both within limits whose clock runs from now on, where nobody watches.

    Ctrl-C stops the search and raises KeyboardInterrupt; later it stops the check alone.
    """
    begun = limits.begun()
    found = decided_in_time(instance, ask, solver, lambda work: answered(work, begun, Standing(instance), solver))
    return found.instance, checked_in_time(found, begun, threading.Event()) if cross_check else found.outcome


def answered(work: Work, limits: Limits, standing: Standing, solver: str) -> tuple[Instance, Outcome]:
    """Search within limits whose clock runs from now on; a search that does not end then is left.

    Ctrl-C stops the search and raises KeyboardInterrupt.
    """
    interrupted = threading.Event()
    begun = limits.begun()
    asked = replace(begun, stopped=lambda: interrupted.is_set() or begun.stopped())
    found = left_in_time(work, asked, standing, solver, interrupted)
    if interrupted.is_set():
        raise KeyboardInterrupt
    return found


def left_in_time(
    work: Work,
    limits: Limits,
    standing: Standing,
    solver: str,
    stop: threading.Event,
    on_stop: Callable[[], None] = lambda: None,
) -> tuple[Instance, Outcome]:
    """Search within limits that are begun, which ``stop`` ends too; Ctrl-C sets it, and ``on_stop`` says so.

    Nobody is told of progress any more once this has returned or raised, whatever goes on behind it.
    """
    began_s, telling = time.monotonic(), _Telling(limits.progress)

    def hear(progress: Progress) -> None:
        standing.hear(progress)
        telling.hear(progress)

    try:
        found = run_stoppable(
            lambda: work(replace(limits, progress=hear)),
            stop,
            on_stop,
            deadline=limits.deadline,
            instead=lambda: standing.outcome(solver, time.monotonic() - began_s),
        )
        return standing.no_worse(solver, *found)
    finally:
        telling.close()
