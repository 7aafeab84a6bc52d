"""What to try where nothing is proved: in words, with the numbers of the instance.

Plans of a simpler problem, for instances that an exact method cannot take: cuts at some places only. The work is
divided into equal parts, each part gives the cut over which least is sent, and the programme over device states
finds the best plan with these. It is a plan for the whole instance; what it proves is only what work alone says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pipecut.formulation.costs.bulk.crossing import crossing_bytes
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance

SOME_CUTS = 192
"""How many places are left, at most."""


def with_some_cuts(instance: Instance, limits: Limits) -> Outcome:
    """Return the best plan that is cut at some places only. Raises ValueError as state_dp does."""
    from pipecut.solvers.dynamic.states.solver import solve

    return solve(instance, limits, space=some_cuts(instance, SOME_CUTS))


def some_cuts(instance: Instance, number: int) -> CutSpace:
    """Return a space of at most so many places between its ends: of every equal part of the work the cheapest."""
    work = [f + b for f, b in zip(instance.forward_ns[0], instance.backward_ns[0], strict=True)]
    done = list(itertools.accumulate(work, initial=0))
    (first, *places, last), sent = CutSpace.of(instance).places, crossing_bytes(instance)
    parts = itertools.groupby(places, key=lambda cut: done[cut] * number // (done[-1] + 1))
    return CutSpace((first, *(min(part, key=lambda cut: sent[cut]) for _, part in parts), last))


MANY_CUTS = 64
"""From how many places to cut fewer of them make a proof much easier."""


def advice(instance: Instance, outcome: Outcome, limits: Limits) -> tuple[str, ...]:
    """Return what may prove the first goal that is open, the most promising first; nothing if there is nothing."""
    return tuple(f"to try: {one}" for one in _ways(instance, outcome, limits))


def _ways(instance: Instance, outcome: Outcome, limits: Limits) -> Iterator[str]:
    if limits.time_limit_s is not None and limits.deadline.over():
        yield f"more time than {limits.time_limit_s:g} s (--time-limit)"
    cuts = len(CutSpace.of(instance).places) - 2
    if cuts > MANY_CUTS:
        yield f"fewer than {cuts} places to cut: merge layers, or close some with constraints.no_cut"
    if outcome.further and outcome.of_first_goal().bound == outcome.objective:
        yield f"the goal {instance.goals[0]} alone, which is proved"
