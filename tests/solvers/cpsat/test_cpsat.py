"""CP-SAT against the exact dynamic programme and brute force, on every option of the cost model."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings

from pipecut.formulation.costs.tables import build_tables, line_groups
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Progress, Proof, checked
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Combine, CostModel, Samples, StageTime
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat.cpsat import solve
from pipecut.solvers.cpsat.model import floors, lower_bound_ns
from pipecut.solvers.reference import line_dp
from pipecut.solvers.search import first_plan as start
from tests.examples import chain, instance_of, matrix, mesh, times_a, vgg16
from tests.generators import instances, layer_graphs
from tests.laws import so_many

SLOWLY = settings(max_examples=so_many(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
ONE_WORKER = Limits(workers=1)


@SLOWLY
@given(instances(layers=layer_graphs(max_layers=6)))
def test_proves_the_optimum_of_the_exact_dynamic_programme(instance: Instance) -> None:
    found = checked(instance, solve(instance, ONE_WORKER))
    expected = checked(instance, line_dp.solve(instance))
    assert found.proof is Proof.OPTIMAL
    assert found.objective == expected.objective == found.bound


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(layers=layer_graphs(max_layers=4)))
def test_proves_the_optimum_of_brute_force(instance: Instance) -> None:
    found = checked(instance, solve(instance, ONE_WORKER))
    assert found.objective == checked(instance, brute_force.solve(instance)).objective


@SLOWLY
@given(instances())
def test_lower_bound_never_exceeds_the_optimum(instance: Instance) -> None:
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    optimum = line_dp.solve(instance).objective
    assert optimum is not None
    assert lower_bound_ns(tables, floors(tables)) <= optimum


@SLOWLY
@given(instances())
def test_first_plan_keeps_every_rule(instance: Instance) -> None:
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    plan = start.first_plan(tables)
    assert plan is not None
    assert evaluate(instance, plan).feasible


@pytest.mark.slow
@pytest.mark.parametrize("combine", list(Combine))
@pytest.mark.parametrize("stage_time", list(StageTime))
def test_vgg16_on_the_papers_network(combine: Combine, stage_time: StageTime) -> None:
    cluster = mesh(2, 2, 2, 2)
    instance = instance_of(
        vgg16(), cluster, CostModel(combine=combine, stage_time=stage_time, samples=Samples.FRACTIONS)
    )
    found = checked(instance, solve(instance))
    assert found.proof is Proof.OPTIMAL
    assert found.objective == line_dp.solve(instance).objective


@pytest.mark.slow
def test_same_seed_same_plan() -> None:
    instance = instance_of(vgg16(), mesh(2, 2))
    plans = {solve(instance, Limits(workers=1, seed=7)).plan for _ in range(3)}
    assert len(plans) == 1


def test_optimal_plan_uses_no_device_in_vain() -> None:
    big, small = (matrix(name, macs, weights=999, taken=999, made=999) for name, macs in (("a", 9), ("b", 1)))
    instance = instance_of(chain([big, small], [1]), mesh(1, 1, 1))
    plan = solve(instance).plan
    assert plan is not None
    assert sum(stage.group.devices for stage in plan.stages) == 2


def test_stopped_search_returns_its_best_plan_and_an_honest_bound() -> None:
    instance = instance_of(vgg16(), mesh(2, 2, 2, 2))
    optimum = line_dp.solve(instance).objective
    found = checked(instance, solve(instance, Limits(stopped=lambda: True)))
    assert found.proof is Proof.FEASIBLE
    assert found.bound is not None and found.objective is not None and optimum is not None
    assert found.bound <= optimum <= found.objective
    assert found.bound < found.objective


def test_time_limit_is_kept() -> None:
    instance = instance_of(vgg16(), mesh(2, 2, 2, 2))
    began = time.monotonic()
    found = solve(instance, Limits(time_limit_s=0.0))
    assert found.proof is Proof.FEASIBLE
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_progress_is_monotone_and_ends_at_the_outcome() -> None:
    told: list[Progress] = []
    instance = instance_of(vgg16(), mesh(2, 2, 2, 2))
    found = solve(instance, Limits(progress=told.append))
    uppers = [one.objective for one in told if one.objective is not None]
    lowers = [one.bound for one in told if one.bound is not None]
    assert uppers == sorted(uppers, reverse=True)
    assert lowers == sorted(lowers)
    assert (told[-1].objective, told[-1].bound) == (found.objective, found.bound)


def test_times_a_thousand_make_the_optimum_a_thousandfold() -> None:
    instance = instance_of(chain([matrix("a", 40, taken=8, made=8), matrix("b", 24)], [8]), mesh(2, 2))
    thousandfold = times_a(instance, 1000)
    one, other = solve(instance).objective, solve(thousandfold).objective
    assert one is not None
    assert other == 1000 * one
