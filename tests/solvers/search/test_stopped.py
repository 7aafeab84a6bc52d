"""An exact search that is stopped at once claims no less than what needs no solver, and tells it first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.outcome import Limits, Outcome, Progress, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers.catalogue import find_any
from tests.examples import chain, instance_of, matrix, mesh

STEP = Training(global_batch=4, micro_batches=4, schedule=Schedule.ONE_F_ONE_B)

ONLY_IN_THE_END = ("line_dp", "brute_force")
"""These read no bound unless they are stopped, and so rest on none."""


def named(goal: Goal, placement: Placement = Placement.LINE) -> Instance:
    layers = chain([matrix(name, 100 + 30 * at, weights=10) for at, name in enumerate("abcde")], [3, 3, 3, 3])
    instance = instance_of(layers, mesh(2, 1), training=STEP)
    return replace(replace(instance, constraints=Constraints(placement=placement)), goals=(goal,))


@pytest.mark.parametrize(
    ("solver", "instance"),
    [
        ("line_dp", named(Goal.BOTTLENECK)),
        ("brute_force", named(Goal.BOTTLENECK)),
        ("state_dp", named(Goal.BOTTLENECK, Placement.FREE)),
        ("step_dp", named(Goal.ITERATION_TIME)),
        ("cpsat", named(Goal.BOTTLENECK)),
        ("cpsat", named(Goal.MEMORY)),
        ("cpsat", named(Goal.ITERATION_TIME)),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.goals[0]),
)
def test_stopped_at_once_the_bound_is_not_nothing(solver: str, instance: Instance) -> None:
    told: list[Progress] = []
    stopped = Limits(stopped=lambda: True, progress=told.append)
    outcome: Outcome = checked(instance, find_any(solver).load()(instance, stopped))
    least = lower_bound(instance)
    assert least > 0
    assert (outcome.bound or 0) >= least
    if solver not in ONLY_IN_THE_END:
        assert told and (told[0].bound or 0) >= least
