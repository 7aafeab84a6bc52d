"""What a solver answers that is stopped before it has anything of its own.

Work that cannot be stopped is waited for only as long as there is time.

The distinct values of a large array, rising: as ``numpy.unique``, but it can be stopped on the way.

Values are divided by their size into parts of some millions, each sorted by itself: sorting all of them at once
takes seconds in which nobody can ask whether there is still time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import NEVER, Deadline, StoppedError, in_time
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.search.first_plan import simple_plan
from pipecut.solvers.search.support import of_memory_by_slot, of_single_stages

Result = TypeVar("Result")

THREAD_NAME = "pipecut-search"
"""The name that tells the command line not to tear the interpreter down around a thread that is left behind."""
POLL_S = 0.05


def in_background(work: Callable[[], Result], over: Callable[[], bool]) -> Result | None:
    """Return what ``work`` returns, or raise what it raises; None if ``over`` is true first.

    The thread is then left behind. It is a daemon, so the program can end without it.
    """
    future: Future[Result] = Future()

    def target() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed on to the caller, whatever it is
            future.set_exception(error)

    threading.Thread(target=target, name=THREAD_NAME, daemon=True).start()
    while not future.done() and not over():
        with contextlib.suppress(TimeoutError):
            future.exception(timeout=POLL_S)
    return future.result() if future.done() else None


PART = 1 << 21
"""About how many values are sorted at once."""
SAMPLE = 4096
"""How many values, at least, tell where to divide."""


def distinct(values: Times, deadline: Deadline = NEVER) -> Times:
    """Return every value once, ascending. Raises StoppedError after the deadline. Cost: that of sorting."""
    parts = -(-values.size // PART)
    if parts <= 1:
        return np.unique(values)
    sample = np.unique(values[:: max(1, values.size // SAMPLE)])
    pivots = sample[np.arange(1, parts) * len(sample) // parts]
    found: list[Times] = []
    below = np.zeros(values.shape, dtype=bool)
    for pivot in in_time([*np.unique(pivots), None], deadline):
        upto = np.ones_like(below) if pivot is None else values < pivot
        found.append(np.unique(values[upto & ~below]))
        below = upto
    return np.concatenate(found)


Parameters = ParamSpec("Parameters")
Solve = Callable[Parameters, Outcome]
STOPPED = "stopped early"


def stoppable(
    name: str, *, best: bool = False, chunks: bool = False
) -> Callable[[Solve[Parameters]], Solve[Parameters]]:
    """Let a solver, whose first argument is the instance, be stopped in work that is worth nothing unfinished.

    Its answer then is UNKNOWN, with the bound of ``formulation.costs.bounds``. One that looks for the
    ``best`` plan and has none, where one is of use, answers with the best simple plan that keeps every rule. The
    seconds of its outcome are those from call to answer. Raises ValueError for an instance that
    ``solvers.search.support.of_single_stages`` or ``of_memory_by_slot`` refuses, unless the solver knows
    ``chunks``.
    """

    def decorate(solve: Solve[Parameters]) -> Solve[Parameters]:
        @wraps(solve)
        def answer(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Outcome:
            began_s = time.monotonic()
            for refusing in () if chunks else (of_single_stages, of_memory_by_slot):
                refusing(name, _instance(args[0])).refuse()
            try:
                found = solve(*args, **kwargs)
            except StoppedError:
                found = Outcome(name, Proof.UNKNOWN, bound=lower_bound(_instance(args[0])), notes=(STOPPED,))
            given = next((one for one in (*args, *kwargs.values()) if isinstance(one, Limits)), Limits())
            if best and found.proof is Proof.UNKNOWN and found.plan is None and not given.ruled_out(found):
                found = with_simple_plan(_instance(args[0]), found)
            return replace(found, seconds=time.monotonic() - began_s)

        return answer

    return decorate


def with_simple_plan(instance: Instance, unknown: Outcome) -> Outcome:
    """Return an outcome without a plan as FEASIBLE with the best simple plan, if there is one."""
    found = simple_plan(instance)
    if found is None:
        return replace(unknown, notes=(*unknown.notes, "no plan found in time"))
    value, plan = found
    notes = (*unknown.notes, "no plan found in time but a simple one")
    return replace(unknown, proof=Proof.FEASIBLE, plan=plan, objective=value, notes=notes)


def _instance(first: object) -> Instance:
    if not isinstance(first, Instance):
        raise TypeError(f"a solver's first argument is an instance, not {type(first).__name__}")
    return first
