"""Layers split by two forms at once, on a grid of devices: every method against the pricing of every plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmarks.checks.generated import Counts, compare_alone
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Outcome, Proof, checked
from pipecut.formulation.problem.cluster import Cluster, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import FORMS_ALONG, Axis
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import BoundaryCharge, Combine, CostModel, StageTime
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from tests.enumerator import more_plans_than, truth
from tests.examples import chain, matrix, mesh
from tests.generators import CLASSES, any_costs, layer_graphs, links, trainings, typed_clusters
from tests.laws import so_many

MOST_PLANS = 3000
GOALS = (
    (Goal.BOTTLENECK, Schedule.ONE_F_ONE_B),
    (Goal.PERIOD, Schedule.ASYNC_ONE_F_ONE_B),
    (Goal.STEP_TIME, Schedule.ONE_F_ONE_B),
    (Goal.ITERATION_TIME, Schedule.GPIPE),
    (Goal.MEMORY, Schedule.GPIPE),
    (Goal.BOTTLENECK, Schedule.ASYNC_ONE_F_ONE_B),
)
SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
MEMORY_BYTES = (60_000, 400_000, 1 << 30)


@st.composite
def in_grids(draw: st.DrawFn, most_plans: int = MOST_PLANS) -> Instance:
    """Up to three layers on four to six devices in one server or several, of which replicas may be in grids."""
    goal, schedule = draw(st.sampled_from(GOALS))
    sizes = draw(st.sampled_from([(4,), (2, 2), (2, 2), (1, 3), (3, 3), (2, 4)]))
    memory = draw(st.sampled_from(MEMORY_BYTES))
    classes = [replace(one, memory_bytes=memory) for one in CLASSES[: draw(st.sampled_from([1, 1, 2]))]]
    inside = st.one_of(links, st.just(Link(100_000_000_000)))
    servers = [
        Server(f"server{at}", draw(st.sampled_from(classes)), size, draw(inside) if size > 1 else None)
        for at, size in enumerate(sizes)
    ]
    pairs = [(one.name, other.name, draw(links)) for at, one in enumerate(servers) for other in servers[:at]]
    cost = replace(draw(any_costs), combine=Combine.MAX, boundary_charge=BoundaryCharge.LINK)
    axes = draw(st.sets(st.sampled_from(tuple(FORMS_ALONG))))
    total = sum(sizes)
    alone = ((total,), (total,))
    devices, degrees = draw(st.sampled_from([alone, alone, ((total,), (total, 2)), ((2, 4), (2, 4))]))
    instance = build_instance(
        draw(layer_graphs(max_layers=3, places=True, tied=goal not in (Goal.STEP_TIME, Goal.PERIOD))),
        cluster_graph("grid", servers, pairs),
        replace(draw(trainings()), schedule=schedule),
        replace(cost, stage_time=StageTime.ADD),
        Constraints(
            memory=draw(st.booleans()),
            splits=(*axes, Axis.PAIRS),
            devices_per_stage=devices,
            tensor_parallel_degrees=degrees,
        ),
        (goal,),
    )
    if draw(st.booleans()):  # servers of few types, any of which may change places
        cluster = Cluster.of(draw(typed_clusters(5)))
        assume(cluster.ends[-1] >= 4)
        degrees = draw(st.sampled_from([(), (), (2, 4)]))
        asked = dict(placement=Placement.FREE, devices_per_stage=(4,), tensor_parallel_degrees=degrees)
        instance = replace(instance, cluster=cluster, constraints=replace(instance.constraints, **asked))
    assume(not more_plans_than(instance, most_plans))
    return instance


def test_a_plan_has_no_grid_that_no_layer_makes_use_of() -> None:
    """A claim about such a plan becomes one about the same plan without."""
    layers, cluster = chain([matrix("a", 8, made=8), matrix("b", 8)], [8]), mesh(4)
    instance = build_instance(layers, cluster, Training(1), CostModel(), Constraints(splits=(Axis.PAIRS,)))
    plain = Plan((Stage(Span(0, 2), Group(((0, 4),)), (1, 2)),))
    idle = Plan((replace(plain.stages[0], group=Group(((0, 4),), Mode(grid=2))),))
    price = evaluate(instance, idle).objective
    assert price == evaluate(instance, plain).objective
    assert checked(instance, Outcome("any", Proof.FEASIBLE, idle, price)).plan == plain
    used = Plan((replace(idle.stages[0], forms=(1, 13)),))
    assert used.plain() == used


@pytest.mark.slow
@settings(max_examples=so_many(25), deadline=None, suppress_health_check=SLOW)
@given(in_grids())
def test_every_method_finds_the_best_plan_in_grids(instance: Instance) -> None:
    assert compare_alone(instance, truth(instance), Counts()) == []
