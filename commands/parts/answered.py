"""A search that has an answer in time, whatever it does: its own, or what it had told when it was left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from commands.terminal.interrupt import run_stoppable
from formulation.outcome import Limits, Outcome, Progress
from formulation.problem.instance import Instance
from solvers.choices.standing import Standing


def answered(
    work: Callable[[Limits], tuple[Instance, Outcome]], limits: Limits, standing: Standing, solver: str
) -> tuple[Instance, Outcome]:
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
    work: Callable[[Limits], tuple[Instance, Outcome]],
    limits: Limits,
    standing: Standing,
    solver: str,
    stop: threading.Event,
    on_stop: Callable[[], None] = lambda: None,
) -> tuple[Instance, Outcome]:
    """Search within limits that are begun, which ``stop`` ends too; Ctrl-C sets it, and ``on_stop`` says so."""
    began_s = time.monotonic()

    def hear(progress: Progress) -> None:
        standing.hear(progress)
        limits.progress(progress)

    heard = replace(limits, progress=hear)
    return run_stoppable(
        lambda: work(heard),
        stop,
        on_stop,
        deadline=limits.deadline,
        instead=lambda: standing.outcome(solver, time.monotonic() - began_s),
    )
