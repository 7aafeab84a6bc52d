"""What to try where nothing is proved: in words, with the numbers of the instance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from formulation.costs.tables import possible_kinds
from formulation.limits.deadline import NEVER
from formulation.limits.size import TooLargeError
from formulation.outcome import Limits, Outcome
from formulation.problem.constraints import Constraints, Goal
from formulation.problem.cuts import CutSpace
from formulation.problem.instance import Instance
from solvers import catalogue
from solvers.auto.simpler import neighbours
from solvers.executed.demands import unseen_names

PATIENCE_S, LATE_S = 0.5, 0.25
"""After how long no further method is looked at, before and after the limit: of large ones each takes time."""
MANY_CUTS, MANY_KINDS = 64, 12
"""From how many places to cut, and kinds of device groups, fewer of them make a proof much easier."""


def advice(instance: Instance, outcome: Outcome, limits: Limits) -> tuple[str, ...]:
    """Return what may prove the first goal that is open, the most promising first; nothing if there is nothing."""
    return tuple(f"to try: {one}" for one in _ways(instance, outcome, limits))


def _ways(instance: Instance, outcome: Outcome, limits: Limits) -> Iterator[str]:
    late = limits.time_limit_s is not None and limits.deadline.over()
    if late:
        yield f"more time than {limits.time_limit_s:g} s (--time-limit)"
    plain = without_demands(instance)
    patience = NEVER.within(LATE_S if late else PATIENCE_S)
    for entry in catalogue.SOLVERS:
        if not entry.exact or entry.name == outcome.solver or patience.over():
            continue
        support = entry.accepts(instance)
        if support.takes and support.proves:
            yield f"--solver {entry.name}, which sees the whole instance"
        elif support.reason and not support.too_large and plain is not None and entry.accepts(plain).takes:
            named = ", ".join(unseen_names(instance)) if instance.goals[0].executed else ""
            what = f"{named}, which" if named else "what"
            yield f"the instance without {what} {entry.name} does not see{'' if named else f' ({support.reason})'}"
    # That is another question, but one that is answered with everything that is asked.
    formula = replace(instance, goals=(Goal.BOTTLENECK,))
    main = catalogue.find_solver(catalogue.MAIN)
    if instance.goals[0].executed and not patience.over() and main.accepts(formula).takes:
        yield f"the formula, objective: {Goal.BOTTLENECK}, of which {main.name} sees the whole instance"
    cuts = len(CutSpace.of(instance).places) - 2
    if cuts > MANY_CUTS:
        yield f"fewer than {cuts} places to cut: merge layers, or close some with constraints.no_cut"
    kinds = 0 if patience.over() else _kinds(instance)
    if kinds > MANY_KINDS:
        yield (
            f"fewer than {kinds} kinds of device groups: narrow constraints.max_servers,"
            " constraints.devices_per_stage or constraints.tensor_parallel_degrees"
        )
    if outcome.further and outcome.of_first_goal().bound == outcome.objective:
        yield f"the goal {instance.goals[0]} alone, which is proved"


def without_demands(instance: Instance) -> Instance | None:
    """Return the instance with no demand but the limit on memory; None where so free its numbers are too large.

    An executed time stays the goal; others become the bottleneck.
    """
    goals = instance.goals[:1]
    try:
        free = replace(instance, constraints=Constraints(memory=instance.constraints.memory))
        return replace(free, goals=goals) if goals[0].executed else next(neighbours(free))
    except ValueError:
        return None


def _kinds(instance: Instance) -> int:
    try:
        return len(possible_kinds(instance))
    except TooLargeError:
        return 0
