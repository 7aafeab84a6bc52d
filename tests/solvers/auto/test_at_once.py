"""What is told in the first second of a search, and that it only gets better."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from benchmarks.size.large import many_operators
from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.outcome import Limits, Progress, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.auto import solve as at_once
from pipecut.solvers.auto.solve import plan
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many


@settings(max_examples=so_many(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(layer_graphs(max_layers=4), cluster_graphs(max_devices=3)))
def test_what_is_told_never_falls_back_and_ends_in_the_outcome(instance: Instance) -> None:
    told = list[Progress]()
    instance = replace(instance, goals=(Goal.BOTTLENECK,))
    found = plan(instance, Limits(progress=told.append))
    assert told[0] == Progress(None, lower_bound(instance))
    objectives = [one.objective for one in told if one.objective is not None]
    bounds = [one.bound for one in told if one.bound is not None]
    assert objectives == sorted(objectives, reverse=True) and bounds == sorted(bounds)
    if found.proof is Proof.OPTIMAL:
        assert found.objective is not None
        assert objectives[-1] == found.objective and bounds[-1] <= found.objective


def test_a_large_instance_has_a_plan_before_any_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked: whatever builds tables would raise."""
    instance, told = many_operators(1_000), list[Progress]()
    monkeypatch.setattr("pipecut.formulation.costs.tables.build_tables", None)
    limits = at_once.told_at_once(instance, Limits(progress=told.append))
    assert told[0].bound == told[-1].bound == lower_bound(instance)
    assert told[-1].objective is not None
    limits.progress(Progress(None, 0))
    assert told[-1] == told[-2]
