"""Executed times in the declarative model: what pricing every plan finds, with whatever a plan is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.constraints.plans.own import Own
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.cpsat.accepts import accepts
from pipecut.solvers.cpsat.engine import make_solver
from pipecut.solvers.cpsat.model import FAMILIES, build_model, redundant_families
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import (
    any_costs,
    any_recomputation,
    cluster_graphs,
    goals_of,
    hosts,
    instances,
    layer_graphs,
    sharded_kinds,
    warm_ups,
    whole_passes,
)
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW, constraints
from tests.solvers.cpsat.test_families import check_cut_once, post_cut_once
from tests.solvers.cpsat.test_freedoms import degrees, has_groups
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_chosen_warm_ups import with_long_transfers

ONE = Limits(workers=1)
"""Beyond that pricing every plan takes seconds."""
OWN = (Own("cut_once", check_cut_once, post_cut_once),)
LIMITED = [goal for goal in Goal if not goal.executed]


@st.composite
def executed_trainings(draw: st.DrawFn) -> Training:
    """Any schedule of whole backward passes, up to 5 micro-batches, and any warm-ups."""
    schedule, many, warm_up = draw(whole_passes), draw(st.integers(1, 5)), draw(warm_ups)
    if schedule is not Schedule.ONE_F_ONE_B:
        warm_up = "classic"
    return Training(
        global_batch=many * draw(st.integers(1, 2)), micro_batches=many, schedule=schedule, warm_up=warm_up
    )


@st.composite
def executed(draw: st.DrawFn, max_layers: int = 4, max_devices: int = 3) -> Instance:
    """Small instances of any cost model, judged by the executed time that their schedule has."""
    graphs = layer_graphs(max_layers=max_layers, places=draw(st.booleans()))
    clusters = cluster_graphs(max_devices=max_devices)
    instance = draw(instances(layers=graphs, clusters=clusters, costs=any_costs))
    training = replace(draw(executed_trainings()), bytes_per_element=instance.training.bytes_per_element)
    goal = Goal.STEP_TIME if training.schedule.flushes else Goal.PERIOD
    return replace(replace(instance, training=training), goals=(goal,))


def can_be_priced(instance: Instance) -> bool:
    """Tell whether there are groups, and few enough plans."""
    return has_groups(instance) and few_plans(instance)


def agrees(instance: Instance) -> None:
    """Hold the model against pricing every plan."""
    assert accepts(instance).proves
    best = brute_force.solve(instance)
    found = checked(instance, layered.solve(instance, ONE))
    assert (found.proof, found.objective) == (best.proof, best.objective)


@settings(max_examples=so_many(100), deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_it_finds_what_pricing_every_plan_finds(data: st.DataObject) -> None:
    instance = data.draw(executed())
    asked = Constraints(
        memory=data.draw(st.booleans()),
        placement=data.draw(st.sampled_from(Placement)),
        tensor_parallel_degrees=data.draw(degrees),
        sharded=data.draw(sharded_kinds),
        optimizer_on_host=data.draw(hosts),
    )
    instance = replace(instance, constraints=replace(asked, **data.draw(any_recomputation)))
    assume(can_be_priced(instance))
    agrees(instance)


@settings(max_examples=so_many(100), deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_it_keeps_what_a_user_demands(data: st.DataObject) -> None:
    instance = data.draw(executed())
    try:
        instance = replace(instance, constraints=data.draw(constraints(instance)))
    except ValueError:
        reject()
    assume(can_be_priced(instance))
    agrees(instance)


def in_two(schedule: Schedule, send: int, **more: object) -> Instance:
    """Two layers in two stages of one device each, between which more is sent than they compute."""
    layers = chain([matrix("a", 1, made=send), matrix("b", 1, taken=send)], [send])
    training = Training(global_batch=3, micro_batches=3, schedule=schedule)
    goal = Goal.STEP_TIME if schedule.flushes else Goal.PERIOD
    built = replace(instance_of(layers, mesh(1, 1), training=training), goals=(goal,))
    return replace(built, constraints=Constraints(stages_at_least=2, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", [one for one in Schedule if not one.in_halves])
def test_a_transfer_may_take_longer_than_the_period(schedule: Schedule) -> None:
    instance = in_two(schedule, 1000)
    agrees(instance)
    found = layered.solve(instance, ONE)
    assert found.plan is not None and len(found.plan) == 2


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(executed(), st.sampled_from(LIMITED), st.integers(60, 110), st.sampled_from([OWN, ()]), st.booleans())
def test_it_keeps_to_limits_on_other_goals_and_to_rules_of_ones_own(
    instance: Instance, goal: Goal, share: int, own: tuple[Own, ...], equal: bool
) -> None:
    """In so many hundredths of what the plan takes that is best without the limit."""
    assume(goal in goals_of(instance.cost, instance.training.schedule) and can_be_priced(instance))
    free = replace(instance, constraints=Constraints(placement=Placement.FREE, own=own, equal_stages=equal))
    best = brute_force.solve(free).plan
    value = None if best is None else evaluate(replace(free, goals=(goal,)), best).objective
    if value is None:
        reject()
    limit = GoalLimit(goal, max(1, value * share // 100))
    agrees(replace(free, constraints=replace(free.constraints, at_most=(limit,))))


@settings(max_examples=so_many(30), deadline=None, suppress_health_check=SLOW)
@given(executed(max_layers=3), st.integers(0, 3))
def test_what_is_redundant_cuts_off_no_plan(instance: Instance, more: int) -> None:
    """With the families that define a plan alone, and with all, there is one of the best value and none below."""
    assume(can_be_priced(instance))
    best = brute_force.solve(instance).objective
    assert best is not None
    assume(best > 0)
    tables = all_tables(instance)
    for families in (FAMILIES, (*FAMILIES, *redundant_families(tables))):
        for threshold, status in ((best + more, cp_model.OPTIMAL), (best - 1, cp_model.INFEASIBLE)):
            solver = make_solver(ONE)
            assert solver.solve(build_model(tables, threshold, families).model) == status


@settings(max_examples=so_many(15), deadline=None, suppress_health_check=SLOW)
@given(with_long_transfers(), st.integers(1, 3), st.booleans())
def test_it_chooses_warm_ups(instance: Instance, least: int, roomy: bool) -> None:
    """Where transfers are long, and memory holds a few micro-batches."""
    asked = replace(instance.constraints, stages_at_least=least, memory=not roomy)
    training = replace(instance.training, warm_up="choose")
    instance = replace(replace(instance, training=training), constraints=asked)
    assume(can_be_priced(instance))
    agrees(instance)


def test_backward_passes_in_halves_are_refused_and_passes_that_are_too_many() -> None:
    """With the reason, and with both numbers."""
    instance = in_two(Schedule.ZERO_BUBBLE_H1, 10, memory=False)
    assert accepts(instance).reason.endswith("the order of the passes of zero_bubble_h1")
    instance = in_two(Schedule.ONE_F_ONE_B, 10)
    long = replace(instance.training, global_batch=600, micro_batches=600)
    refused = accepts(replace(instance, training=long))
    assert refused.too_large and "1200 pairs of passes in 600 micro-batches: 1200 to post" in refused.reason
    assert accepts(replace(instance, training=replace(long, schedule=Schedule.GPIPE))).proves
    chosen = replace(instance.training, global_batch=30, micro_batches=30, warm_up="choose")
    assert "with 30 warm-ups to choose from: 1800 to post" in accepts(replace(instance, training=chosen)).reason
