"""The search over suffixes for steps and bottlenecks by the formula: it finds what brute force and CP-SAT find."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.executed import PipelinePasses
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits, Outcome, Progress, Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.dynamic.states import state_dp as states
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.step_time import step_dp as solver
from pipecut.solvers.step_time.bounds.columns import Formula
from pipecut.solvers.step_time.bounds.pass_tables import stage_parts
from pipecut.solvers.step_time.bounds.paths import longest_path
from pipecut.solvers.step_time.bounds.rest import rest_of
from pipecut.solvers.step_time.bounds.spans import spans_of
from pipecut.solvers.step_time.bounds.ways import ways_of
from pipecut.solvers.step_time.pass_fronts import StageFronts
from pipecut.solvers.step_time.responses import responses
from pipecut.solvers.step_time.suffix_search import Growth
from tests.examples import PLAIN, chain, instance_of, matrix, mesh, on_servers
from tests.generators import instances, layer_graphs
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import freed, has_groups
from tests.solvers.dynamic.test_states import OWN_TIMES, cases, clusters
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_mixtures import rows_of
from tests.solvers.step_time.test_step_dp import pipelines

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


FORMULAS = st.sampled_from([Goal.ITERATION_TIME, Goal.ITERATION_TIME, Goal.BOTTLENECK])


def paced(instance: Instance, micro_batches: int | None = None, goal: Goal = Goal.ITERATION_TIME) -> Instance:
    """The same instance judged by the time of a step, with so many micro-batches, or by another goal."""
    training = instance.training
    if micro_batches is not None:
        batch = training.micro_batch * micro_batches
        training = replace(training, global_batch=batch, micro_batches=micro_batches)
    cost = replace(instance.cost, combine=Combine.MAX)
    if cost.stage_time is StageTime.OVERLAP:
        cost = replace(cost, boundary_charge=BoundaryCharge.LINK)
    return replace(instance, goals=(goal,), training=training, cost=cost)


def solved(instance: Instance) -> Outcome:
    return checked(instance, solver.solve(instance))


def agree(found: Outcome, best: Outcome) -> None:
    assert (found.proof, found.objective) == (best.proof, best.objective)
    assert found.proof in (Proof.OPTIMAL, Proof.INFEASIBLE)


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(freed(goals=st.just(Goal.ITERATION_TIME)), st.integers(1, 9), FORMULAS)
def test_free_choices_agree_with_brute_force(instance: Instance, micro_batches: int, goal: Goal) -> None:
    assume(has_groups(instance))
    instance = paced(instance, micro_batches, goal)
    assume(solver.accepts(instance).takes and few_plans(instance))
    agree(solved(instance), brute_force.solve(instance))


@st.composite
def staged(draw: st.DrawFn, max_layers: int = 5) -> Instance:
    """Small groups with just the memory that some plan needs: many stages, and forms that must yield."""
    graphs = layer_graphs(max_layers=max_layers, places=True)
    instance = draw(instances(layers=graphs, clusters=clusters(max_devices=4), costs=OWN_TIMES))
    instance = paced(instance, draw(st.integers(1, 9)), draw(FORMULAS))
    schedule = draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.NAIVE]))
    constraints = Constraints(
        memory=True,
        placement=draw(st.sampled_from(Placement)),
        devices_per_stage=draw(st.sampled_from([(1,), (1, 2), (2,)])),
    )
    instance = replace(instance, training=replace(instance.training, schedule=schedule))
    instance = replace(instance, constraints=constraints)
    assume(has_groups(instance) and solver.reason_against(instance) is None)
    some = list(itertools.islice(brute_force.plans(instance), 400))
    assume(some)
    stages = evaluate(instance, draw(st.sampled_from(some))).stages
    room = max(1, max(stage.memory_bytes for stage in stages) * draw(st.integers(100, 104)) // 100)
    return with_memory(instance, {one: room for one in instance.device_classes})


def with_memory(instance: Instance, rooms: dict[DeviceClass, int]) -> Instance:
    """The same instance with so many bytes on devices of each class."""
    resized = {one: replace(one, memory_bytes=rooms[one]) for one in instance.device_classes}
    servers = tuple(replace(row, device_class=resized[row.device_class]) for row in instance.servers)
    return on_servers(instance, servers)


@settings(max_examples=so_many(100), deadline=None, suppress_health_check=QUIET)
@given(staged())
def test_many_stages_agree_with_brute_force(instance: Instance) -> None:
    assume(few_plans(instance))
    agree(solved(instance), brute_force.solve(instance))


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(freed(max_layers=5, goals=st.just(Goal.ITERATION_TIME)), st.integers(1, 9), st.data())
def test_places_where_nothing_may_be_cut_are_seen(
    instance: Instance, micro_batches: int, data: st.DataObject
) -> None:
    """Runs of layers stand for layers; brute force knows nothing of that."""
    names = [layer.name for layer in instance.layers]
    closed = data.draw(st.sets(st.sampled_from(names), max_size=3))
    pair = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=2))
    constraints = replace(instance.constraints, no_cut=tuple(sorted(closed)), together=(tuple(sorted(pair)),))
    limited = replace(paced(instance, micro_batches), constraints=constraints)
    assume(has_groups(limited) and solver.accepts(limited).takes and few_plans(limited))
    agree(solved(limited), brute_force.solve(limited))


@pytest.mark.slow
@settings(max_examples=so_many(130), deadline=None, suppress_health_check=QUIET)
@given(staged(max_layers=6))
def test_many_stages_often(instance: Instance) -> None:
    assume(few_plans(instance))
    agree(solved(instance), brute_force.solve(instance))


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(cases(), st.integers(1, 9), FORMULAS)
def test_binding_memory_agrees_with_brute_force(instance: Instance, micro_batches: int, goal: Goal) -> None:
    instance = paced(instance, micro_batches, goal)
    assume(few_plans(instance))
    agree(solved(instance), brute_force.solve(instance))


@pytest.mark.slow
@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(cases(max_layers=5), st.integers(1, 9), FORMULAS)
def test_often(instance: Instance, micro_batches: int, goal: Goal) -> None:
    instance = paced(instance, micro_batches, goal)
    assume(few_plans(instance))
    agree(solved(instance), brute_force.solve(instance))


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(cases(max_layers=8, max_devices=5), st.integers(1, 9))
def test_the_declarative_model_agrees(instance: Instance, micro_batches: int) -> None:
    instance = paced(instance, micro_batches)
    found = checked(instance, layered.solve(instance, Limits(workers=1, time_limit_s=60)))
    assume(found.proof in (Proof.OPTIMAL, Proof.INFEASIBLE))
    agree(solved(instance), found)


@settings(max_examples=so_many(30), deadline=None, suppress_health_check=QUIET)
@given(cases())
def test_more_memory_never_hurts(instance: Instance) -> None:
    instance = paced(replace(instance, constraints=replace(instance.constraints, memory=True)))
    tight = solved(instance)
    assume(tight.objective is not None)
    roomy = solved(with_memory(instance, {one: 2 * one.memory_bytes for one in instance.device_classes}))
    assert roomy.objective is not None and tight.objective is not None
    assert roomy.objective <= tight.objective


@settings(max_examples=so_many(30), deadline=None, suppress_health_check=QUIET)
@given(cases(), st.integers(1, 20))
def test_between_the_least_latency_and_the_bottleneck(instance: Instance, micro_batches: int) -> None:
    """The step takes at least the least latency and M - 1 least bottlenecks; neither's plan is better."""
    flushed = replace(instance, training=replace(instance.training, schedule=Schedule.GPIPE))
    instance = paced(replace(flushed, constraints=replace(flushed.constraints, memory=False)), micro_batches)
    found = solved(instance)
    fastest = states.solve(replace(instance, goals=(Goal.BOTTLENECK,)))
    one_batch = replace(instance, training=replace(instance.training, schedule=Schedule.NAIVE))
    shortest = solved(one_batch)
    assert found.objective is not None and fastest.plan is not None and shortest.plan is not None
    assert fastest.objective is not None and shortest.objective is not None
    least = shortest.objective // micro_batches
    assert found.objective >= least + (micro_batches - 1) * fastest.objective
    for plan in (fastest.plan, shortest.plan):
        assert found.objective <= (evaluate(instance, plan).objective or 0)


@settings(max_examples=so_many(25), deadline=None, suppress_health_check=QUIET)
@given(cases(max_layers=4))
def test_progress_is_honest(instance: Instance) -> None:
    """Bounds rise and stay below, prices fall and stay above; a stopped search keeps what it has."""
    instance = paced(instance, 4)
    told: list[Progress] = []
    found = solver.solve(instance, Limits(progress=told.append))
    stopped = checked(instance, solver.solve(instance, Limits(stopped=lambda: True)))
    if found.objective is None:
        assert stopped.plan is None
        return
    bounds = [one.bound for one in told if one.bound is not None]
    prices = [one.objective for one in told if one.objective is not None]
    assert bounds == sorted(bounds) and max(bounds) <= found.objective
    assert prices == sorted(prices, reverse=True) and min(prices) >= found.objective
    assert stopped.bound is not None and stopped.bound <= found.objective
    assert stopped.objective is None or stopped.objective >= found.objective


formulas = st.builds(lambda once, more: Formula(once, once + more), st.integers(0, 3), st.integers(1, 5))


@settings(max_examples=so_many(200), deadline=None)
@given(st.data(), pipelines(), formulas)
def test_answers_and_paths_are_what_the_formula_says(
    data: st.DataObject, passes: PipelinePasses, formula: Formula
) -> None:
    """Suffixes add up to the price of the whole, its path is as long, and no path of another plan is longer."""
    rows = rows_of(replace(passes, sync_ns=(0,) * passes.stages))
    parts = [*(rows[0] + rows[1]).tolist(), *(rows[2] + rows[3]).tolist()]
    price = formula.once * sum(parts) + (formula.often - formula.once) * max(parts)
    answers = responses(formula, passes.stages)
    known = answers.last(rows[[0, 1, 4], -1:].T)
    for at in reversed(range(passes.stages - 1)):
        known = answers.before(known, 0, rows[[0, 1, 4], at : at + 1].T, rows[[2, 3], at : at + 1].T)
    assert answers.leaving(known).tolist() == answers.ended(known).tolist() == [price]
    path = longest_path(formula, rows.astype(np.float64))
    assert path.length == price == (path.often * rows).sum()
    other = longest_path(formula, rows_of(data.draw(pipelines(passes.stages))).astype(np.float64))
    assert (other.often * rows).sum() <= price


@st.composite
def with_slow_links(draw: st.DrawFn) -> Instance:
    """A few stages on devices of their own, whose transfers take about as long as what they compute."""
    numbers, rates = range(draw(st.integers(3, 4))), st.sampled_from([10**9, 10**10, 10**11])
    macs = st.sampled_from([1000, 2000, 5000])
    layers = [replace(matrix(f"l{at}", draw(macs)), allowed_forms=(0,)) for at in numbers]
    crossing = [draw(st.sampled_from([10, 100, 1000, 3000])) for _ in numbers[:-1]]
    card = DeviceClass("card", 1 << 40, 10**9)
    servers = [Server(f"s{at}", card, 1 + (at == 2), Link(draw(rates), 0)) for at in range(3)]
    pairs = itertools.combinations(("s0", "s1", "s2"), 2)
    cluster = cluster_graph("three", servers, [(*pair, Link(draw(rates), 0)) for pair in pairs])
    many = draw(st.integers(1, 4))
    training = Training(many, many, schedule=draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.NAIVE])))
    cost = replace(PLAIN, boundary_charge=draw(st.sampled_from(BoundaryCharge)))
    found = replace(instance_of(chain(layers, crossing), cluster, cost, training), goals=(draw(FORMULAS),))
    placement = draw(st.sampled_from(Placement))
    return replace(found, constraints=Constraints(devices_per_stage=(1,), placement=placement))


@settings(max_examples=so_many(120), deadline=None)
@given(with_slow_links())
def test_slow_links_agree_with_brute_force(instance: Instance) -> None:
    assume(few_plans(instance))
    agree(solved(instance), brute_force.solve(instance))


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(with_slow_links() | staged(max_layers=4), st.integers(0, 60))
def test_suffixes_within_a_limit_have_all_that_keeps_to_it(instance: Instance, more: int) -> None:
    """The bounds ahead and behind, and the search of suffixes without the bounds of boxes, lose no plan."""
    best = brute_force.solve(instance).objective
    assume(best is not None)
    limit = (best or 0) * (100 + more) // 100
    tables, space = all_tables(instance), CutSpace.of(instance)
    parts = stage_parts(tables, space)
    spans, ways = spans_of(tables, parts.passes, space), ways_of(tables, state_space(tables))
    assert parts.passes.formula is not None
    answers = responses(parts.passes.formula, len(spans.rules))
    for rest in (rest_of(spans, ways, limit, NEVER), rest_of(spans.blocks(spans.evenly(2)), ways, limit, NEVER)):
        assert rest.best <= (best or 0)
    rest = rest_of(spans, ways, limit, NEVER)
    found = list(Growth(rest, StageFronts(parts, limit), answers, None).run())
    assert int(found[-1].least[0]) == best
    below = (best or 0) - 1
    better = Growth(rest_of(spans, ways, below, NEVER), StageFronts(parts, below), answers, None)
    assert not list(better.run())


def test_two_stages_by_hand() -> None:
    """Layers of 30 and 60 ns: one device takes 90 M, two take 90 + 60 (M - 1), without transfers."""
    training = Training(global_batch=4, micro_batches=4, schedule=Schedule.ONE_F_ONE_B)
    layers = chain([matrix("a", 10, weights=10**6), matrix("b", 20, weights=10**6)], [0])
    alone = Constraints(devices_per_stage=(1,))
    instance = replace(paced(instance_of(layers, mesh(1, 1), PLAIN, training)), constraints=alone)
    found = solved(instance)
    assert (found.proof, found.objective) == (Proof.OPTIMAL, 90 + 3 * 60)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"goals": (Goal.COST,)}, "cost"),
        ({"cost": replace(PLAIN, combine=Combine.SUM)}, "combine"),
        (
            {"cost": replace(PLAIN, boundary_charge=BoundaryCharge.RECEIVER, stage_time=StageTime.OVERLAP)},
            "receiver",
        ),
    ],
)
def test_what_is_not_seen_is_refused(change: dict[str, object], word: str) -> None:
    instance = paced(instance_of(chain([matrix("a", 1)], []), mesh(1)))
    with pytest.raises(ValueError, match=word):
        solver.solve(replace(instance, **change))  # type: ignore[arg-type]


def test_limits_on_goals_are_refused() -> None:
    instance = paced(instance_of(chain([matrix("a", 1)], []), mesh(1)))
    instance = replace(instance, constraints=Constraints(at_most=(GoalLimit(Goal.MEMORY, 1),)))
    with pytest.raises(ValueError, match="at_most"):
        solver.solve(instance)


def test_no_memory_no_plan() -> None:
    tiny = DeviceClass("tiny", 1, 1_000_000_000)
    instance = instance_of(chain([matrix("a", 10, weights=100)], []), mesh(1, 1, kind=tiny))
    instance = replace(paced(instance, 3), constraints=Constraints(memory=True, placement=Placement.FREE))
    assert solved(instance).proof is Proof.INFEASIBLE


def test_as_many_stages_as_layers() -> None:
    """Eight equal layers on eight single devices."""
    alone = Constraints(devices_per_stage=(1,))
    layers = chain([matrix(f"layer{at}", 10, weights=10**6) for at in range(8)], [0] * 7)
    instance = replace(paced(instance_of(layers, mesh(4, 4), PLAIN), 50), constraints=alone)
    assert solved(instance).objective == 8 * 30 + 49 * 30


def test_plans_are_whole() -> None:
    """A longer chain on a line of four: the plan holds every layer once."""
    layers = chain([matrix(f"layer{at}", 7 + at % 5, weights=at) for at in range(37)], [3] * 36)
    plan = solved(paced(instance_of(layers, mesh(2, 2)), 6)).plan
    assert isinstance(plan, Plan) and sum(len(stage.span) for stage in plan.stages) == 37
