"""What a solver answers that is stopped before it has anything of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from formulation.deadline import StoppedError
from formulation.instance import Instance
from formulation.lower_bound import lower_bound
from formulation.outcome import Limits, Outcome, Progress, Proof
from solvers.search.simple import simple_plan

Parameters = ParamSpec("Parameters")
Solve = Callable[Parameters, Outcome]
STOPPED = "stopped early"


def stoppable(name: str, *, best: bool = False) -> Callable[[Solve[Parameters]], Solve[Parameters]]:
    """Let a solver, whose first argument is the instance, be stopped in work that is worth nothing unfinished.

    Its answer then is UNKNOWN; if it looks for the ``best`` plan, the best simple one where one keeps every rule.
    The bound is that of ``formulation.lower_bound``.
    """

    def decorate(solve: Solve[Parameters]) -> Solve[Parameters]:
        @wraps(solve)
        def answer(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Outcome:
            began_s = time.monotonic()
            try:
                return solve(*args, **kwargs)
            except StoppedError:
                return stopped_outcome(name, _instance(args[0]), began_s, best=best)

        return answer

    return decorate


def stopped_outcome(name: str, instance: Instance, began_s: float, *, best: bool) -> Outcome:
    """Return UNKNOWN, or the ``best`` simple plan as FEASIBLE, with the bound that needs no search."""
    bound, notes = lower_bound(instance), (STOPPED,)
    found = simple_plan(instance) if best else None
    if found is None:
        notes = (STOPPED, "no plan found in time") if best else notes
        return Outcome(name, Proof.UNKNOWN, bound=bound, seconds=time.monotonic() - began_s, notes=notes)
    value, plan = found
    notes = (STOPPED, "the plan is a simple one")
    return Outcome(name, Proof.FEASIBLE, plan, value, bound, time.monotonic() - began_s, notes)


def tell_first(instance: Instance, limits: Limits) -> int:
    """Report the bound that needs no search before anything that takes long, and return it."""
    bound = lower_bound(instance)
    limits.progress(Progress(None, bound))
    return bound


def _instance(first: object) -> Instance:
    if not isinstance(first, Instance):
        raise TypeError(f"a solver's first argument is an instance, not {type(first).__name__}")
    return first
