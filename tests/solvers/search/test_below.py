"""Searches that are asked only for plans below a value: as good a plan is known of another instance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import exhaustive
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import find_any
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many

SMALL = instances(layer_graphs(max_layers=4, places=True), cluster_graphs(max_devices=3))
FEW = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    deadline=None,
    max_examples=so_many(30),
)


def value_of(instance: Instance) -> int | None:
    return checked(instance, exhaustive.solve(instance, Limits())).objective


@pytest.mark.parametrize("name", ["state_dp", "cpsat", "step_dp"])
@FEW
@given(SMALL, st.sampled_from([-1, 0, 1, 1000]))
def test_none_below_is_no_claim_that_there_is_no_plan(name: str, instance: Instance, more: int) -> None:
    solver = find_any(name)
    goal = Goal.ITERATION_TIME if name == "step_dp" else Goal.BOTTLENECK
    try:
        instance = replace(instance, goals=(goal,))
    except ValueError:
        assume(False)
    support = solver.accepts(instance)
    assume(support.takes and support.proves)
    best = value_of(instance)
    assume(best is not None and best + more > 0)
    assert best is not None
    limits = Limits(below=best + more)
    found = checked(instance, solver.load()(instance, limits))
    if more > 0:
        assert (found.proof, found.objective, found.bound) == (Proof.OPTIMAL, best, best)
    else:
        assert found.proof is Proof.UNKNOWN or found.objective == best
        assert limits.ruled_out(found)


@FEW
@given(SMALL, st.sampled_from([0, 1]))
def test_nobody_else_is_asked_once_all_below_is_ruled_out(instance: Instance, more: int) -> None:
    instance = replace(instance, goals=(Goal.BOTTLENECK,))
    best = value_of(instance)
    assume(best is not None)
    assert best is not None
    limits = Limits(below=best + more)
    found = plan(instance, limits)
    if more:
        assert (found.proof, found.objective) == (Proof.OPTIMAL, best)
    else:
        assert found.proof is Proof.OPTIMAL or limits.ruled_out(found)
