"""The lower limit that needs no solver: never above the optimum, of any goal, and what it says by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.search.first_plan import balanced_plans
from tests.examples import chain, instance_of, matrix, mesh, on_servers
from tests.generators import (
    OF_SINGLE_STAGES,
    cluster_graphs,
    goals_of,
    hosts,
    instances,
    layer_graphs,
    recomputation,
    sharded_kinds,
)
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW

FORWARD_ONLY = CostModel(flops_per_mac=1, backward_factor=Fraction(0))
schedules = st.sampled_from(OF_SINGLE_STAGES)
MOST_PLANS = 500


@st.composite
def limited_instances(draw: st.DrawFn) -> Instance:
    """Small instances with every freedom and any schedule, judged by any goal, often within limits on others."""
    instance, schedule = draw(instances(layer_graphs(4, places=True), cluster_graphs(3))), draw(schedules)
    goal = draw(st.sampled_from(goals_of(instance.cost, schedule)))
    names = [layer.name for layer in instance.layers]
    constraints = Constraints(
        memory=draw(st.booleans()),
        placement=draw(st.sampled_from(Placement)),
        max_servers=draw(st.sampled_from([None, None, 1, 2])),
        stages_at_least=draw(st.sampled_from([None, None, 2])),
        tensor_parallel_degrees=draw(st.sampled_from([(), (1,), (1, 2), (2,)])),
        devices_per_stage=draw(st.sampled_from([(), (), (1,), (2,), (1, 3)])),
        **draw(recomputation),
        sharded=draw(sharded_kinds),
        optimizer_on_host=draw(hosts),
        no_cut=draw(st.sampled_from([(), (names[-1],)])),
        together=draw(st.sampled_from([(), ((names[0], names[-1]),)])),
    )
    training = replace(instance.training, schedule=schedule)
    instance = replace(instance, training=training, goals=(goal,))
    return with_prices(replace(instance, constraints=constraints), draw)


def with_prices(instance: Instance, draw: st.DrawFn) -> Instance:
    """Give every class of devices a price."""
    prices = {one: draw(st.sampled_from([0, 1, 700, 1_000_000])) for one in instance.device_classes}
    return on_servers(
        instance,
        tuple(
            replace(one, device_class=replace(one.device_class, price_per_hour=prices[one.device_class]))
            for one in instance.servers
        ),
    )


@settings(max_examples=so_many(250), deadline=None, suppress_health_check=SLOW)
@given(limited_instances(), st.data())
def test_no_plan_undercuts_it(instance: Instance, data: st.DataObject) -> None:
    assume(brute_force.count_plans(instance) <= MOST_PLANS)
    priced = [(plan, evaluate(instance, plan)) for plan in brute_force.plans(instance)]
    kept = [(plan, found) for plan, found in priced if found.feasible]
    assume(kept)
    assert lower_bound(instance) <= min(found.objective or 0 for _, found in kept)
    # Within limits that one of the plans just keeps, as for a later one of several goals.
    plan, found = data.draw(st.sampled_from(kept))
    known = goals_of(instance.cost, instance.training.schedule)
    allowed = [goal for goal in known if goal not in (instance.goals[0], Goal.STEP_TIME, Goal.PERIOD)]
    goals = data.draw(st.sets(st.sampled_from(allowed), min_size=1, max_size=2))
    limits = tuple(GoalLimit(goal, goal_value(goal, instance, plan, found.stages)) for goal in sorted(goals))
    narrowed = replace(instance, constraints=replace(instance.constraints, at_most=limits))
    values = (evaluate(narrowed, plan) for plan, _ in kept)
    assert lower_bound(narrowed) <= min(found.objective or 0 for found in values if found.feasible)


def four(goal: Goal, constraints: Constraints | None = None, training: Training | None = None) -> Instance:
    """Layers of 10, 20, 30 and 40 ns with 100 bytes of weights each, on two servers of two devices."""
    layers = chain([matrix(name, 10 * at, weights=100) for at, name in enumerate("abcd", 1)], [0, 0, 0])
    instance = instance_of(layers, mesh(2, 2), FORWARD_ONLY, training)
    return replace(replace(instance, constraints=constraints or Constraints()), goals=(goal,))


def test_of_equal_stages_it_is_what_the_step_takes() -> None:
    """Eight layers of 10 ns on four devices, two each, and nothing that is sent: (16 + 4 - 1) times 20 ns."""
    layers = chain([matrix(f"layer{at}", 10) for at in range(8)], [0] * 7)
    training = Training(global_batch=16, micro_batches=16)
    instance = replace(instance_of(layers, mesh(2, 2), FORWARD_ONLY, training), goals=(Goal.STEP_TIME,))
    instance = replace(instance, constraints=ONE_EACH)
    assert lower_bound(instance) == 19 * 20
    assert evaluate(instance, next(iter(balanced_plans(instance)))).objective == 19 * 20
    alone = replace(instance, constraints=Constraints(devices_per_stage=(4,)))
    assert lower_bound(alone) == 16 * 8 * 3  # a quarter of a layer is 3 ns


ONE_EACH = Constraints(devices_per_stage=(1,))
PIPELINE = Training(global_batch=8, micro_batches=8)


@pytest.mark.parametrize(
    ("goal", "constraints", "value"),
    [
        (Goal.BOTTLENECK, Constraints(), 25),  # 100 ns of work over four devices
        (Goal.BOTTLENECK, ONE_EACH, 40),  # the largest layer on one device
        (Goal.BOTTLENECK, Constraints(devices_per_stage=(1,), together=(("c", "d"),)), 70),
        (Goal.BOTTLENECK, Constraints(at_most=(GoalLimit(Goal.DEVICES, 2),)), 50),
        (Goal.BOTTLENECK, Constraints(stages_at_most=1, max_servers=1), 50),
        (Goal.DEVICES, Constraints(at_most=(GoalLimit(Goal.BOTTLENECK, 34),)), 3),
        (Goal.DEVICES, Constraints(stages_at_least=3), 3),
        (Goal.STAGES, Constraints(apart=(("a", "b", "c"),)), 3),
        (Goal.STAGES, Constraints(devices_per_stage=(1,), at_most=(GoalLimit(Goal.BOTTLENECK, 50),)), 2),
        (Goal.MEMORY, Constraints(), 300),  # weights, gradients, optimiser state: 1200 bytes on four devices
        (Goal.DEVICES, Constraints(at_most=(GoalLimit(Goal.MEMORY, 400),)), 3),
    ],
)
def test_by_hand(goal: Goal, constraints: Constraints, value: int) -> None:
    assert lower_bound(four(goal, constraints)) == value


@pytest.mark.parametrize("nothing", [Goal.STAGES, Goal.DEVICES, Goal.COST, Goal.MEMORY, Goal.BOTTLENECK])
@pytest.mark.parametrize("goal", Goal)
def test_where_a_limit_leaves_nothing_it_is_some_number(goal: Goal, nothing: Goal) -> None:
    """No stage, no device, no byte, no time: there is no plan, so any number is a lower limit."""
    schedule = Schedule.DOUBLE_BUFFERED if goal is Goal.PERIOD else Schedule.ONE_F_ONE_B
    training = Training(global_batch=1, schedule=schedule)
    assert lower_bound(four(goal, Constraints(at_most=(GoalLimit(nothing, 0),)), training)) >= 0


@pytest.mark.parametrize(
    ("schedule", "value"),
    [
        (Schedule.ONE_F_ONE_B, 100 + 7 * 40),
        (Schedule.NAIVE, 8 * 100),
        (Schedule.DOUBLE_BUFFERED, 8 * 40),
    ],
)
def test_the_time_of_a_step_by_hand(schedule: Schedule, value: int) -> None:
    training = replace(PIPELINE, schedule=schedule)
    assert lower_bound(four(Goal.ITERATION_TIME, ONE_EACH, training)) == value
