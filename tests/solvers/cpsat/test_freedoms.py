"""Replicas, recomputation, goals and limits on goals: every exact method agrees with brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, OnHost, Placement, Recompute, Sharded
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.certifying import certify
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.dynamic.states import state_dp as states
from pipecut.solvers.goals import solve_in_order
from pipecut.solvers.reference import line_dp
from tests.examples import PLAIN, UNIT, chain, instance_of, matrix, mesh, on_servers
from tests.generators import (
    cluster_graphs,
    cost_models,
    hosts,
    instances,
    layer_graphs,
    recomputation,
    sharded_kinds,
    whole_passes,
)
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW
from tests.solvers.priced import few_plans

ONE = Limits(workers=1)
PRICES = st.sampled_from([0, 1, 700, 1_000_000])
SHARES = st.integers(70, 110)
modelled = st.sampled_from([goal for goal in Goal if goal not in (Goal.STEP_TIME, Goal.PERIOD)])
"""Goals that are no executed times; of those ``tests.solvers.cpsat.test_executed`` tells."""
degrees = st.sampled_from([(), (1,), (1, 2), (2,), (1, 2, 3)])


@st.composite
def freed(draw: st.DrawFn, *, max_layers: int = 4, goals: st.SearchStrategy[Goal] | None = None) -> Instance:
    """Small instances whose stages may have replicas and recompute, under any schedule, judged by any goal."""
    goal = draw(st.just(Goal.BOTTLENECK) if goals is None else goals)
    costs = cost_models
    if goal is Goal.ITERATION_TIME:
        costs = costs.map(lambda one: replace(one, combine=Combine.MAX))
    clusters = cluster_graphs(max_devices=3)
    instance = draw(instances(layers=layer_graphs(max_layers=max_layers), clusters=clusters, costs=costs))
    training = replace(instance.training, schedule=draw(whole_passes))
    constraints = Constraints(
        memory=draw(st.booleans()),
        placement=draw(st.sampled_from(Placement)),
        tensor_parallel_degrees=draw(degrees),
        **draw(recomputation),
        sharded=draw(sharded_kinds),
        optimizer_on_host=draw(hosts),
    )
    instance = replace(replace(instance, training=training, goals=(goal,)), constraints=constraints)
    servers = tuple(
        replace(one, device_class=replace(one.device_class, price_per_hour=draw(PRICES)))
        for one in instance.servers
    )
    return on_servers(instance, servers)


@pytest.mark.slow
@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW)
@given(freed(max_layers=3), st.sampled_from([Goal.BOTTLENECK, Goal.MEMORY]), st.integers(1, 3), SHARES)
def test_the_declarative_model_knows_what_waits_for_weights(
    instance: Instance, goal: Goal, stages: int, share: int
) -> None:
    """Under ZB-H1 of so many stages, in so many hundredths of what some plan needs."""
    training = replace(instance.training, schedule=Schedule.ZERO_BUBBLE_H1)
    asked = replace(instance.constraints, memory=True, stages_at_least=stages, stages_at_most=stages)
    instance = replace(instance, training=training, constraints=asked, goals=(goal,))
    assume(has_groups(instance))
    some = next((plan for plan in brute_force.plans(instance) if len(plan) == stages), None)
    if some is None:
        reject()
    needed = max(stage.memory_bytes for stage in evaluate(instance, some).stages)
    room = max(1, needed * share // 100)
    servers = (replace(one, device_class=replace(one.device_class, memory_bytes=room)) for one in instance.servers)
    instance = on_servers(instance, tuple(servers))
    best = brute_force.solve(instance)
    for entry in map(find_any, ("cpsat", "step_dp")):
        if entry.accepts(instance).proves:
            found = checked(instance, solve_in_order(instance, entry.load(), ONE))
            assert (found.proof, found.objective) == (best.proof, best.objective)


def has_groups(instance: Instance) -> bool:
    try:
        return bool(Group.possible(instance))
    except ValueError:
        return False


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=SLOW)
@given(freed())
def test_the_declarative_model_agrees_with_brute_force(instance: Instance) -> None:
    assume(has_groups(instance) and few_plans(instance))
    best = brute_force.solve(instance)
    found = checked(instance, layered.solve(instance, ONE))
    assert (found.proof, found.objective) == (best.proof, best.objective)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(freed())
def test_the_dynamic_programme_over_the_line_agrees_with_brute_force(instance: Instance) -> None:
    constraints = replace(instance.constraints, memory=False, placement=Placement.LINE)
    instance = replace(instance, constraints=constraints)
    assume(has_groups(instance) and few_plans(instance))
    best = brute_force.solve(instance)
    found = checked(instance, line_dp.solve(instance))
    assert (found.proof, found.objective) == (best.proof, best.objective)


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=SLOW)
@given(freed(max_layers=3, goals=modelled))
def test_every_goal_is_proved(instance: Instance) -> None:
    assume(has_groups(instance) and few_plans(instance))
    best = brute_force.solve(instance)
    found = checked(instance, layered.solve(instance, ONE))
    assert (found.proof, found.objective) == (best.proof, best.objective)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(
    freed(max_layers=3, goals=modelled),
    st.lists(modelled, min_size=1, max_size=2, unique=True),
    st.data(),
)
def test_limits_on_goals_are_kept(instance: Instance, limited: list[Goal], data: st.DataObject) -> None:
    assume(has_groups(instance) and few_plans(instance))
    assume(instance.cost.combine is Combine.MAX or Goal.ITERATION_TIME not in limited)
    plan = data.draw(st.sampled_from(list(brute_force.plans(instance))[:50]))
    costs = stage_costs(instance, plan)
    limits = tuple(GoalLimit(goal, goal_value(goal, instance, plan, costs)) for goal in limited)
    tight = replace(instance, constraints=replace(instance.constraints, at_most=limits))
    best = brute_force.solve(tight)
    found = checked(tight, layered.solve(tight, ONE))
    assert (found.proof, found.objective) == (best.proof, best.objective)


@settings(max_examples=so_many(25), deadline=None, suppress_health_check=SLOW)
@given(freed(max_layers=3), st.sampled_from([Goal.DEVICES, Goal.STAGES, Goal.MEMORY, Goal.COST]))
def test_a_second_goal_decides_among_the_best_plans(instance: Instance, second: Goal) -> None:
    assume(has_groups(instance) and few_plans(instance))
    instance = replace(instance, goals=(Goal.BOTTLENECK, second))
    found = checked(instance, solve_in_order(instance, layered.solve, ONE))
    if found.proof is Proof.INFEASIBLE:
        return
    rows = [evaluate(instance, plan) for plan in brute_force.plans(instance)]
    best = min((row.objective or 0, *row.further) for row in rows if row.feasible)
    assert (found.objective, found.further[0].value) == best
    assert found.further[0].bound == found.further[0].value


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW)
@given(instances(layers=layer_graphs(max_layers=3)), st.sampled_from(Recompute), sharded_kinds, degrees)
def test_memory_tables_are_the_formula(
    instance: Instance, recompute: Recompute, sharded: tuple[Sharded, ...], allowed: tuple[int, ...]
) -> None:
    constraints = Constraints(memory=True, recompute=recompute, sharded=sharded, tensor_parallel_degrees=allowed)
    instance = replace(instance, constraints=constraints)
    assume(has_groups(instance))
    tables = build_tables(instance, Group.possible(instance))
    held = MemoryTables.of(tables)
    plans = [
        plan
        for plan in itertools.islice(brute_force.plans(instance), 60)
        if not any(one.again for one in plan.stages)
    ]
    for plan in plans:
        for index, (stage, cost) in enumerate(zip(plan.stages, stage_costs(instance, plan), strict=True)):
            slot, kind = len(plan) - 1 - index, tables.kind_of[tables.groups.index(stage.group)]
            cells = []
            for layer in stage.span.layers:
                source = instance.sources[layer]
                inside = source is not None and source in stage.span
                cells.append((kind, layer, stage.form(source) if inside and source is not None else 0))
            lasting, largest = held.in_stage(slot, kind, stage.span.first, held.lasting(slot, kind))
            needed = sum(int(lasting[layer, form]) for _, layer, form in cells)
            working = max(int(largest[layer, form]) for _, layer, form in cells)
            assert held.capacity[kind] - held.room(slot, kind, stage.span.first) == cost.memory.received
            assert (needed, working) == (cost.memory.lasting - cost.memory.received, cost.memory.working_set)


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW)
@given(freed())
def test_certificates_know_of_replicas(instance: Instance) -> None:
    instance = replace(instance, constraints=replace(instance.constraints, memory=False, placement=Placement.LINE))
    assume(has_groups(instance) and instance.cost.combine is Combine.MAX)
    from pipecut.formulation.certificates.check import certifiable, verify

    assume(certifiable(instance) is None)
    found = line_dp.solve(instance)
    assert found.plan is not None and found.objective is not None
    verify(instance, certify(instance, found.plan, found.objective))


# Three layers that keep 100 bytes each for their backward pass; a device has room for some of it.
KEEPS = chain([replace(matrix(name, 10, taken=10, made=10), stash_bytes=100) for name in "abc"], [10, 10])


def test_recomputation_is_paid_for_with_a_forward_pass() -> None:
    """One device: 3 x 30 ns; with 4 micro-batches in GPipe's flight 1,200 bytes do not fit, so 3 x 40 ns."""
    training = Training(global_batch=4, micro_batches=4, schedule=Schedule.GPIPE)
    instance = instance_of(KEEPS, mesh(1), PLAIN, training)
    small = replace(instance.servers[0], device_class=replace(instance.servers[0].device_class, memory_bytes=600))
    instance = on_servers(instance, (small,))
    kept = replace(instance, constraints=Constraints(memory=True))
    assert layered.solve(kept, ONE).proof is Proof.INFEASIBLE
    allowed = replace(instance, constraints=Constraints(memory=True, recompute=Recompute.ALLOWED))
    found = layered.solve(allowed, ONE)
    assert found.objective == 120 and found.plan is not None and found.plan.stages[0].group.mode.recompute
    free = replace(instance, constraints=Constraints(memory=False, recompute=Recompute.ALLOWED))
    assert layered.solve(free, ONE).objective == 90


@pytest.mark.parametrize("solve", [layered.solve, states.solve, brute_force.solve])
def test_a_stage_computes_no_more_layers_again_than_it_must(solve: Callable[..., Outcome]) -> None:
    """Four of 300 bytes do not fit into 1,000; four of 200, one of 100 and 40 for a running layer do."""
    training = Training(global_batch=4, micro_batches=4, schedule=Schedule.GPIPE)
    instance = instance_of(KEEPS, mesh(1), PLAIN, training)
    small = replace(instance.servers[0], device_class=replace(instance.servers[0].device_class, memory_bytes=1000))
    allowed = Constraints(memory=True, recompute=Recompute.ALLOWED, recompute_layers=("a",))
    found = solve(replace(on_servers(instance, (small,)), constraints=allowed), ONE)
    assert found.plan is not None and found.plan.stages[0].group.mode == Mode(recompute="layers")
    assert found.objective == 3 * 30 + 10 and found.proof is Proof.OPTIMAL


@pytest.mark.parametrize(
    ("memory_bytes", "allowed", "expected"),
    [
        (1200, (Sharded.NONE,), 3 * (15 + 100)),
        (1199, (Sharded.NONE,), None),
        (900, (Sharded.NONE, Sharded.OPTIMIZER), 3 * (15 + 100)),
        (850, (Sharded.OPTIMIZER, Sharded.GRADIENTS), 3 * (15 + 100)),
        (849, (Sharded.OPTIMIZER, Sharded.GRADIENTS), None),
        (800, tuple(Sharded), 3 * (15 + 150)),
        (799, tuple(Sharded), None),
    ],
)
def test_what_is_held_alike_is_divided_where_copies_do_not_fit(
    memory_bytes: int, allowed: tuple[Sharded, ...], expected: int | None
) -> None:
    """Three layers by rows on two devices, each 100 bytes of weights, of gradients, and two such numbers more."""
    layers = chain([matrix(name, 10, weights=100, allowed=(0,)) for name in "abc"], [0, 0])
    training = Training(global_batch=1, optimizer_bytes_per_parameter=8)
    constraints = Constraints(memory=True, devices_per_stage=(2,), sharded=allowed)
    instance = replace(instance_of(layers, mesh(2), PLAIN, training), constraints=constraints)
    small = replace(instance.servers[0].device_class, memory_bytes=memory_bytes)
    instance = on_servers(instance, (replace(instance.servers[0], device_class=small),))
    for solve in (layered.solve, states.solve):
        found = checked(instance, solve(instance, ONE))
        assert (found.objective, found.proof is Proof.OPTIMAL) == (expected, expected is not None)
        if found.plan is not None:
            assert found.plan.stages[0].group.mode.sharded is allowed[-1]


@pytest.mark.parametrize(
    ("on_host", "memory_bytes", "expected"),
    [
        (OnHost.NEVER, 400, 30),
        (OnHost.NEVER, 399, None),
        (OnHost.ALLOWED, 400, 30),
        (OnHost.ALLOWED, 399, 30 + 100 + 100),
        (OnHost.ALLOWED, 199, None),
        (OnHost.ALWAYS, 400, 30 + 100 + 100),
    ],
)
def test_the_optimiser_leaves_a_device_that_is_too_small(
    on_host: OnHost, memory_bytes: int, expected: int | None
) -> None:
    """One layer on one device: 100 bytes of weights, of gradients, and two such numbers that the host can hold.

    Half of 100 bytes go there and back in each of two micro-batches, over a link of one byte in two nanoseconds.
    """
    layers = chain([matrix("a", 10, weights=100, allowed=(0,))], [])
    training = Training(global_batch=2, micro_batches=2, optimizer_bytes_per_parameter=8)
    card = replace(UNIT, memory_bytes=memory_bytes, host_link=Link(4 * 10**9))
    instance = instance_of(layers, mesh(1, kind=card), PLAIN, training)
    instance = replace(instance, constraints=Constraints(memory=True, optimizer_on_host=on_host))
    for solve in (layered.solve, states.solve):
        found = checked(instance, solve(instance, ONE))
        assert (found.objective, found.proof is Proof.OPTIMAL) == (expected, expected is not None)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule.NAIVE, 4 * (30 + 60)),
        (Schedule.ONE_F_ONE_B, 90 + 3 * 60),
        (Schedule.GPIPE, 90 + 3 * 60),
        (Schedule.ASYNC_ONE_F_ONE_B, 4 * 60),
    ],
)
def test_iteration_time_by_hand(schedule: Schedule, expected: int) -> None:
    """Stages of 30 and 60 ns, no transfers, four micro-batches."""
    training = Training(global_batch=4, micro_batches=4, schedule=schedule)
    layers = chain([matrix("a", 10, weights=10**6), matrix("b", 20, weights=10**6)], [0])
    instance = replace(instance_of(layers, mesh(1, 1), PLAIN, training), goals=(Goal.ITERATION_TIME,))
    two = next(plan for plan in brute_force.plans(instance) if len(plan) == 2)
    assert evaluate(instance, two).objective == expected


def test_pipedreams_uneven_replicas_are_a_point_of_the_space() -> None:
    """PipeDream's 9-5-1-1: four stages of one-device replicas on sixteen devices, priced and found feasible."""
    layers = chain([matrix(name, 10) for name in "abcd"], [1, 1, 1])
    training = Training(global_batch=45, micro_batches=1)
    instance = instance_of(layers, mesh(16), PLAIN, training)
    instance = replace(instance, constraints=Constraints(tensor_parallel_degrees=(1,)))
    stages: list[Stage] = []
    for layer, count in enumerate((9, 5, 1, 1)):
        place = sum(stage.group.devices for stage in stages)
        group = Group.on_line(instance, place, count, Mode(count))
        stages.append(Stage(Span(layer, layer + 1), group, (0,)))
    found = evaluate(instance, Plan(tuple(stages)))
    assert found.feasible and found.objective == 45 * 30
    assert [cost.compute_ns for cost in found.stages] == [45 * 30 // 9, 45 * 30 // 5, 45 * 30, 45 * 30]
    assert {stage.group for stage in stages} <= set(Group.possible(instance))
