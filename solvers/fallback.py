"""Who is asked where an instance is too large for a method: the others that see it, then the same with fewer cuts.

Fewer cuts are cuts at some places only: the work is divided into equal parts, each part gives the cut
over which least is sent, and the programme over device states finds the best plan with these. It is a plan for the
whole instance; what it proves is only what work alone says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from formulation.costs.times import cut_bytes
from formulation.outcome import Limits, Outcome
from formulation.problem.cuts import CutSpace, cut_space
from formulation.problem.instance import Instance
from solvers.catalogue import find_solver

OTHERS = ("state_dp", "paced_dp", "cpsat_stages")
"""Exact methods that are asked first: what they can take they end."""
LAST = "cpsat"
"""What sees everything and may never end."""
SOME_CUTS = 192
"""How many places are left, at most."""

Solve = Callable[[Instance, Limits], Outcome]


def methods_after(solver: str) -> Iterator[tuple[str, Solve]]:
    """Yield, by name, who is asked where an instance is too large for a solver."""
    for name in OTHERS:
        if name != solver:
            yield name, find_solver(name).load()
    yield f"state_dp at {SOME_CUTS} cuts", with_some_cuts
    if solver != LAST:
        yield LAST, find_solver(LAST).load()


def with_some_cuts(instance: Instance, limits: Limits) -> Outcome:
    """Return the best plan that is cut at some places only. Raises ValueError as state_dp does."""
    from solvers.dynamic.states.solver import solve

    return solve(instance, limits, space=some_cuts(instance, SOME_CUTS))


def some_cuts(instance: Instance, number: int) -> CutSpace:
    """Return a space of at most so many places between its ends: of every equal part of the work the cheapest."""
    work = [f + b for f, b in zip(instance.forward_ns[0], instance.backward_ns[0], strict=True)]
    done = list(itertools.accumulate(work, initial=0))
    first, *places, last = cut_space(instance).places
    parts = itertools.groupby(places, key=lambda cut: done[cut] * number // (done[-1] + 1))
    return CutSpace((first, *(min(part, key=lambda cut: cut_bytes(instance, cut)) for _, part in parts), last))
