"""What a solver answers that is stopped before it has anything of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import ParamSpec

from formulation.costs.lower_bound import lower_bound
from formulation.limits.deadline import StoppedError
from formulation.outcome import Limits, Outcome, Progress, Proof
from formulation.problem.instance import Instance
from solvers.search.simple import simple_plan
from solvers.search.support import of_memory_by_slot, of_single_stages

Parameters = ParamSpec("Parameters")
Solve = Callable[Parameters, Outcome]
STOPPED = "stopped early"


def stoppable(
    name: str, *, best: bool = False, chunks: bool = False
) -> Callable[[Solve[Parameters]], Solve[Parameters]]:
    """Let a solver, whose first argument is the instance, be stopped in work that is worth nothing unfinished.

    Its answer then is UNKNOWN, with the bound of ``formulation.costs.lower_bound``. One that looks for the
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


def tell_first(instance: Instance, limits: Limits) -> int:
    """Report the bound that needs no search before anything that takes long, and return it."""
    bound = lower_bound(instance)
    limits.progress(Progress(None, bound))
    return bound


def _instance(first: object) -> Instance:
    if not isinstance(first, Instance):
        raise TypeError(f"a solver's first argument is an instance, not {type(first).__name__}")
    return first
