"""Plans of equal groups that fit into memory: they cut at places, and keep the rules where one of them can."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Axis, Layer, Split, layer_graph
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.search.first_plan import balanced_plans, fitting_plans, simple_plan
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))
MIB = 1 << 20


def blocks(number: int, memory_bytes: int, **constraints: object) -> Instance:
    """Blocks of two products of 4 MiB each, cut between blocks, on two servers of four cards."""
    names = [f"b{at}.{part}" for at in range(number) for part in ("up", "down")]
    layers = [Layer(name, "linear", Split.MATRIX, 4 * MIB, MIB, MIB, MIB, 10**9) for name in names]
    edges = [(one, other, MIB) for one, other in itertools.pairwise(names)]
    card, link = DeviceClass("card", memory_bytes, 10**13), Link(10**11)
    servers = [Server(f"s{at}", card, 4, link) for at in range(2)]
    cluster = cluster_graph("two", servers, [("s0", "s1", link)])
    graph = layer_graph("blocks", layers, edges, cuts=names[2::2])
    limits = Constraints(memory=True, **constraints)  # type: ignore[arg-type]
    return build_instance(graph, cluster, Training(16, 8), CostModel(), limits)


@SLOW
@given(instances(layer_graphs(max_layers=5, places=True), cluster_graphs(max_devices=4)))
def test_they_are_plans_that_cut_at_places_and_fit(instance: Instance) -> None:
    places = set(CutSpace.of(instance).places)
    for plan in itertools.islice(fitting_plans(instance), 12):
        found = evaluate(instance, plan)
        assert {violation.rule for violation in found.violations} <= {"line", "devices"}
        assert all(stage.span.first in places for stage in plan.stages)


@pytest.mark.parametrize(
    ("memory_bytes", "constraints"),
    [
        (400 * MIB, {}),
        (120 * MIB, {}),
        (120 * MIB, {"tensor_parallel_degrees": (1, 2, 4)}),
        (90 * MIB, {"recompute": Recompute.ALLOWED}),
    ],
)
def test_there_is_a_plan_where_equal_groups_fit(memory_bytes: int, constraints: dict[str, object]) -> None:
    """Sixteen blocks hold 128 MiB of weights, and three times as much with gradients and optimiser state."""
    instance = blocks(16, memory_bytes, **constraints)
    plans = [plan for plan in balanced_plans(instance) if evaluate(instance, plan).feasible]
    assert plans
    found = simple_plan(instance)
    assert found is not None and evaluate(instance, found[1]).feasible


def test_there_is_none_where_nothing_fits() -> None:
    instance = blocks(16, 10 * MIB)
    assert list(fitting_plans(instance)) == [] and simple_plan(instance) is None


def test_other_rules_are_for_the_evaluator() -> None:
    instance = blocks(8, 400 * MIB, at_most=(GoalLimit(Goal.STAGES, 1),))
    assert any(not evaluate(instance, plan).feasible for plan in balanced_plans(instance))


def test_equal_groups_that_promise_most_come_first() -> None:
    """What a plan promises is near what it takes: the first one is among the best quarter."""
    instance = replace(blocks(16, 400 * MIB, tensor_parallel_degrees=(1, 2, 4)), goals=(Goal.ITERATION_TIME,))
    found = [evaluate(instance, plan).objective for plan in balanced_plans(instance)]
    values = [value for value in found if value is not None]
    assert len(values) > 4 and values[0] <= sorted(values)[len(values) // 4]


def test_groups_may_be_several_servers() -> None:
    """Two servers make one stage too, where it is allowed."""
    sizes = {plan.stages[0].group.devices for plan in balanced_plans(blocks(16, 400 * MIB))}
    assert sizes == {1, 2, 4, 8}
    one = balanced_plans(blocks(16, 400 * MIB, max_servers=1))
    assert {plan.stages[0].group.devices for plan in one} == {1, 2, 4}
    asked = balanced_plans(blocks(16, 400 * MIB, devices_per_stage=(2,)))
    assert {plan.stages[0].group.devices for plan in asked} == {2}


def test_forms_that_no_layer_may_take_are_passed_over_where_tables_have_no_place_for_them() -> None:
    """Sequence parallelism is allowed, but the forms of all layers are limited to the first three."""
    layers = chain([matrix(name, 9, 9) for name in "abc"], [9, 9])
    limited = Constraints(splits=(Axis.SEQUENCE,), forms=(FormLimit("*", (0, 1, 2)),))
    instance = replace(instance_of(layers, mesh(2, 2)), constraints=limited)
    found = list(balanced_plans(instance))
    assert found and all(form in (0, 1, 2) for plan in found for stage in plan.stages for form in stage.forms)
