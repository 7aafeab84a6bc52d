"""Replicas, recomputation, goals and limits on goals: every exact method agrees with brute force."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from formulation.constraints.plans.at_most import GoalLimit
from formulation.costs.goals import goal_value
from formulation.costs.memory_tables import memory_tables
from formulation.costs.prices import stage_costs
from formulation.costs.tables import build_tables
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Proof, checked
from formulation.problem.demands import with_constraints
from formulation.problem.groups import line_group, possible_groups
from formulation.problem.instance import Instance
from formulation.problem.modes import Mode
from formulation.problem.options import Combine, Constraints, Goal, Placement, Recompute, Schedule, Training
from formulation.problem.plan import Plan, Span, Stage
from solvers import exhaustive as brute_force
from solvers.certify import certify
from solvers.cpsat import solver as layered
from solvers.dynamic.line import solver as line_dp
from solvers.search.goals import solve_in_order
from tests.examples import PLAIN, chain, instance_of, matrix, mesh, on_servers
from tests.generators import cluster_graphs, cost_models, instances, layer_graphs
from tests.solvers.cpsat.demanded import SLOW

ONE = Limits(workers=1)
PRICES = st.sampled_from([0, 1, 700, 1_000_000])
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
    training = replace(instance.training, schedule=draw(st.sampled_from(Schedule)))
    constraints = Constraints(
        memory=draw(st.booleans()),
        placement=draw(st.sampled_from(Placement)),
        tensor_parallel_degrees=draw(degrees),
        recompute=draw(st.sampled_from(Recompute)),
    )
    instance = with_constraints(replace(instance, training=training, goals=(goal,)), constraints)
    servers = tuple(
        replace(one, device_class=replace(one.device_class, price_per_hour=draw(PRICES)))
        for one in instance.servers
    )
    return on_servers(instance, servers)


def has_groups(instance: Instance) -> bool:
    try:
        return bool(possible_groups(instance))
    except ValueError:
        return False


@settings(max_examples=120, deadline=None, suppress_health_check=SLOW)
@given(freed())
def test_the_declarative_model_agrees_with_brute_force(instance: Instance) -> None:
    assume(has_groups(instance))
    best = brute_force.solve(instance)
    found = checked(instance, layered.solve(instance, ONE))
    assert (found.proof, found.objective) == (best.proof, best.objective)


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(freed())
def test_the_dynamic_programme_over_the_line_agrees_with_brute_force(instance: Instance) -> None:
    constraints = replace(instance.constraints, memory=False, placement=Placement.LINE)
    instance = with_constraints(instance, constraints)
    assume(has_groups(instance))
    best = brute_force.solve(instance)
    found = checked(instance, line_dp.solve(instance))
    assert (found.proof, found.objective) == (best.proof, best.objective)


@settings(max_examples=120, deadline=None, suppress_health_check=SLOW)
@given(freed(max_layers=3, goals=st.sampled_from(Goal)))
def test_every_goal_is_proved(instance: Instance) -> None:
    assume(has_groups(instance))
    best = brute_force.solve(instance)
    found = checked(instance, layered.solve(instance, ONE))
    assert (found.proof, found.objective) == (best.proof, best.objective)


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(
    freed(max_layers=3, goals=st.sampled_from(Goal)),
    st.lists(st.sampled_from(Goal), min_size=1, max_size=2, unique=True),
    st.data(),
)
def test_limits_on_goals_are_kept(instance: Instance, limited: list[Goal], data: st.DataObject) -> None:
    assume(has_groups(instance))
    assume(instance.cost.combine is Combine.MAX or Goal.ITERATION_TIME not in limited)
    plan = data.draw(st.sampled_from(list(brute_force.plans(instance))[:50]))
    costs = stage_costs(instance, plan)
    limits = tuple(GoalLimit(goal, goal_value(goal, instance, plan, costs)) for goal in limited)
    tight = with_constraints(instance, replace(instance.constraints, at_most=limits))
    best = brute_force.solve(tight)
    found = checked(tight, layered.solve(tight, ONE))
    assert (found.proof, found.objective) == (best.proof, best.objective)


@settings(max_examples=25, deadline=None, suppress_health_check=SLOW)
@given(freed(max_layers=3), st.sampled_from([Goal.DEVICES, Goal.STAGES, Goal.MEMORY, Goal.COST]))
def test_a_second_goal_decides_among_the_best_plans(instance: Instance, second: Goal) -> None:
    assume(has_groups(instance))
    instance = replace(instance, goals=(Goal.BOTTLENECK, second))
    found = checked(instance, solve_in_order(instance, layered.solve, ONE))
    if found.proof is Proof.INFEASIBLE:
        return
    rows = [evaluate(instance, plan) for plan in brute_force.plans(instance)]
    best = min((row.objective or 0, *row.further) for row in rows if row.feasible)
    assert (found.objective, found.further[0].value) == best
    assert found.further[0].bound == found.further[0].value


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(instances(layers=layer_graphs(max_layers=3)), st.sampled_from(Recompute), degrees)
def test_memory_tables_are_the_formula(instance: Instance, recompute: Recompute, allowed: tuple[int, ...]) -> None:
    constraints = Constraints(memory=True, recompute=recompute, tensor_parallel_degrees=allowed)
    instance = with_constraints(instance, constraints)
    assume(has_groups(instance))
    tables = build_tables(instance, possible_groups(instance))
    held = memory_tables(tables)
    for plan in list(brute_force.plans(instance))[:60]:
        for index, (stage, cost) in enumerate(zip(plan.stages, stage_costs(instance, plan), strict=True)):
            slot, kind = len(plan) - 1 - index, tables.kind_of[tables.groups.index(stage.group)]
            cells = []
            for layer in stage.span.layers:
                source = instance.sources[layer]
                inside = source is not None and source in stage.span
                cells.append((kind, layer, stage.form(source) if inside and source is not None else 0))
            needed = sum(int(held.lasting(slot, kind)[layer, form]) for _, layer, form in cells)
            working = max(int(held.working_set[c]) for c in cells)
            assert held.capacity[kind] - held.room(slot, kind, stage.span.first) == cost.memory.received
            assert (needed, working) == (cost.memory.lasting - cost.memory.received, cost.memory.working_set)


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(freed())
def test_certificates_know_of_replicas(instance: Instance) -> None:
    instance = with_constraints(instance, replace(instance.constraints, memory=False, placement=Placement.LINE))
    assume(has_groups(instance) and instance.cost.combine is Combine.MAX)
    from formulation.certificates.check import certifiable, verify

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
    kept = with_constraints(instance, Constraints(memory=True))
    assert layered.solve(kept, ONE).proof is Proof.INFEASIBLE
    allowed = with_constraints(instance, Constraints(memory=True, recompute=Recompute.ALLOWED))
    found = layered.solve(allowed, ONE)
    assert found.objective == 120 and found.plan is not None and found.plan.stages[0].group.recompute
    free = with_constraints(instance, Constraints(memory=False, recompute=Recompute.ALLOWED))
    assert layered.solve(free, ONE).objective == 90


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
    instance = with_constraints(instance, Constraints(tensor_parallel_degrees=(1,)))
    stages: list[Stage] = []
    for layer, count in enumerate((9, 5, 1, 1)):
        place = sum(stage.group.devices for stage in stages)
        group = line_group(instance, place, count, Mode(count))
        stages.append(Stage(Span(layer, layer + 1), group, (0,)))
    found = evaluate(instance, Plan(tuple(stages)))
    assert found.feasible and found.objective == 45 * 30
    assert [cost.compute_ns for cost in found.stages] == [45 * 30 // 9, 45 * 30 // 5, 45 * 30, 45 * 30]
    assert {stage.group for stage in stages} <= set(possible_groups(instance))
