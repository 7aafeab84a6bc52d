"""Explanations where goals are limited, and where stages may not recompute or share their work in every way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.constraint import one_of
from pipecut.formulation.constraints.plans.at_most import GoalLimit, goal_limit
from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.explain import Possible, explain, limits_of, without
from tests.examples import PLAIN, UNIT, chain, instance_of, matrix, mesh, on_servers
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW
from tests.solvers.cpsat.test_freedoms import freed, has_groups
from tests.solvers.explain.test_explain import ONE_WORKER, amounts, feasible, only_clash, paths

MILLION = 10**6


def priced(instance: Instance, **demands: object) -> Instance:
    """Devices cost 1 an hour, and memory is no limit unless it is demanded."""
    rows = [
        replace(one, device_class=replace(one.device_class, price_per_hour=MILLION)) for one in instance.servers
    ]
    return replace(on_servers(instance, rows), constraints=Constraints(**demands))  # type: ignore[arg-type]


def two_layers(*devices: int) -> Instance:
    """Either layer takes 30 ns on one device, and nothing crosses between them."""
    return instance_of(chain([matrix("a", 10), matrix("b", 10)], [0]), mesh(*devices))


def kept_activations(capacity: int, **demands: object) -> Instance:
    """One device, F-then-B with 4 micro-batches, of which each keeps 100 bytes at each of two layers."""
    rows = [replace(matrix(name, 10), stash_bytes=100) for name in "ab"]
    kind = replace(UNIT, memory_bytes=capacity)
    training = Training(global_batch=4, micro_batches=4, schedule=Schedule.GPIPE)
    instance = instance_of(chain(rows, [0]), mesh(1, kind=kind), PLAIN, training)
    return replace(instance, constraints=Constraints(**demands))  # type: ignore[arg-type]


def words_of(instance: Instance) -> list[str]:
    return [way.words for way in only_clash(instance).ways_out]


def test_recomputing_is_a_way_out_of_too_little_memory() -> None:
    instance = kept_activations(300, memory=True)
    clash = only_clash(instance)
    assert paths(clash) == {"constraints.recompute", "cluster.devices.unit.memory"}
    assert {way.paths: way.words for way in clash.ways_out} == {
        ("constraints.recompute",): "set constraints.recompute to allowed: stages may then drop activations and "
        "compute them again",
        ("cluster.devices.unit.memory",): "500 bytes more memory on each device of unit",
    }
    assert feasible(kept_activations(300, memory=True, recompute=Recompute.ALLOWED))
    assert feasible(kept_activations(800, memory=True)) and not feasible(kept_activations(799, memory=True))


def test_recomputing_is_no_way_out_where_even_one_micro_batch_does_not_fit() -> None:
    clash = only_clash(kept_activations(150, memory=True))
    assert paths(clash) == {"cluster.devices.unit.memory"}
    assert amounts(clash) == {("cluster.devices.unit.memory",): 650}


def test_a_limit_on_the_peak_can_be_kept_by_recomputing_as_well() -> None:
    instance = kept_activations(MILLION, at_most=(GoalLimit(Goal.MEMORY, 300),))
    clash = only_clash(instance)
    assert paths(clash) == {"constraints.recompute", "constraints.at_most.memory"}
    assert amounts(clash)["constraints.at_most.memory",] == 500


def test_a_deadline_and_a_budget_that_clash() -> None:
    limits = (GoalLimit(Goal.BOTTLENECK, 40), GoalLimit(Goal.COST, MILLION))
    clash = only_clash(priced(two_layers(1, 1), at_most=limits))
    assert [limit.words for limit in clash.limits] == [
        "the slowest stage or boundary takes at most 40 ns for one micro-batch",
        "all devices that stages take cost at most 1 per hour (the cheapest device 1, all 2 together 2)",
    ]
    assert [(way.words, way.amount, way.least) for way in clash.ways_out] == [
        ("raise constraints.at_most.bottleneck by 20 ns, to 60 ns", 20, 20),
        ("raise constraints.at_most.cost by 1 per hour, to 2 per hour", MILLION, MILLION),
    ]


@pytest.mark.slow
def test_a_deadline_that_no_budget_can_keep() -> None:
    limits = (GoalLimit(Goal.BOTTLENECK, 10), GoalLimit(Goal.COST, MILLION))
    clash = only_clash(priced(two_layers(1, 1), at_most=limits))
    assert paths(clash) == {"constraints.at_most.bottleneck"}, "even on all devices a layer takes longer"


def test_recomputing_always_can_miss_a_deadline() -> None:
    instance = priced(two_layers(1), at_most=(GoalLimit(Goal.BOTTLENECK, 60),), recompute=Recompute.ALWAYS)
    assert words_of(instance) == [
        "set constraints.recompute to allowed: stages may then keep their activations",
        "raise constraints.at_most.bottleneck by 20 ns, to 80 ns",
    ]


def test_a_tensor_parallel_degree_that_is_missing_is_named() -> None:
    rows = [matrix(name, 10, weights=100) for name in "ab"]
    kind = replace(UNIT, memory_bytes=400)
    instance = instance_of(chain(rows, [0]), mesh(2, kind=kind))
    demands = Constraints(memory=True, tensor_parallel_degrees=(1,), stages_at_most=1)
    clash = only_clash(replace(instance, constraints=demands))
    words = {way.paths: way.words for way in clash.ways_out}
    assert words["constraints.tensor_parallel_degrees",] == "add 2 to constraints.tensor_parallel_degrees"
    added = replace(demands, tensor_parallel_degrees=(1, 2))
    assert feasible(replace(instance, constraints=added))


@pytest.mark.parametrize("sizes", [((2,), ()), ((), (2,))])
def test_variants_with_other_stage_sizes_do_not_share_tables(
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    rows = [matrix(name, 10) for name in "abc"]
    instance = instance_of(chain(rows, [1, 1]), mesh(2, 1))
    demands = Constraints(apart=(("a", "b"),), stages_at_most=1)
    possible = Possible(ONE_WORKER)
    for allowed in sizes:
        variant = replace(instance, constraints=replace(demands, devices_per_stage=allowed))
        assert possible.plan(variant) is None and not feasible(variant)


@pytest.mark.slow
def test_too_few_devices_for_the_stages_that_are_asked_for() -> None:
    instance = priced(two_layers(1, 1), at_most=(GoalLimit(Goal.DEVICES, 1),), stages_at_least=2)
    assert paths(only_clash(instance)) == {"constraints.at_most.devices", "constraints.stages.at_least"}
    assert "raise constraints.at_most.devices by 1 device, to 2 devices" in words_of(instance)


@pytest.mark.parametrize(
    ("goal", "value", "words"),
    [
        (Goal.BOTTLENECK, 999, "999 ns"),
        (Goal.BOTTLENECK, 1_500, "1.500 us (1,500 ns)"),
        (Goal.ITERATION_TIME, 266_979_046, "267.0 ms (266,979,046 ns)"),
        (Goal.ITERATION_TIME, 2 * 10**9, "2.000 s (2,000,000,000 ns)"),
        (Goal.COST, 19_840_000, "19.84 per hour"),
        (Goal.COST, 10_000 * MILLION + 1, "10,000.000001 per hour"),
        (Goal.COST, 0, "0 per hour"),
        (Goal.COST, 100 * MILLION, "100 per hour"),
        (Goal.MEMORY, 2**30, "1 GiB (1,073,741,824 bytes)"),
        (Goal.DEVICES, 1, "1 device"),
        (Goal.STAGES, 3, "3 stages"),
    ],
)
def test_amounts_in_words(goal: Goal, value: int, words: str) -> None:
    assert goal_amount(goal, value) == words


def test_numbers_that_are_allowed_in_words() -> None:
    assert [one_of(numbers, "device") for numbers in ((1,), (2, 1), (4,))] == [
        "1 device",
        "1 or 2 devices",
        "4 devices",
    ]


def test_every_goal_has_its_words() -> None:
    instance = two_layers(1)
    said = {goal_limit(instance, GoalLimit(goal, 5)) for goal in Goal}
    assert len(said) == len(Goal) and all("5" in words for words in said)
    summed = replace(instance, cost=replace(instance.cost, combine=Combine.SUM))
    assert "all stages and boundaries together" in goal_limit(summed, GoalLimit(Goal.BOTTLENECK, 5))


@st.composite
def hopeless(draw: st.DrawFn) -> Instance:
    """Small instances with one or two limits on goals that a plan somewhere just breaks, or keeps."""
    instance = draw(freed(max_layers=3))
    assume(has_groups(instance))
    plans = list(brute_force.plans(instance))
    assume(plans)
    limited = [goal for goal in Goal if goal not in (Goal.STEP_TIME, Goal.PERIOD)]  # no search limits these
    chosen = draw(st.lists(st.sampled_from(limited), min_size=1, max_size=2, unique=True))
    summed = instance.cost.combine is Combine.SUM
    limits = []
    for goal in chosen:
        assume(not (summed and goal is Goal.ITERATION_TIME))
        plan = draw(st.sampled_from(plans))
        value = goal_value(goal, instance, plan, stage_costs(instance, plan))
        limits.append(GoalLimit(goal, max(0, value - draw(st.integers(0, 1)))))
    return replace(instance, constraints=replace(instance.constraints, at_most=tuple(limits)))


@pytest.mark.slow
@settings(max_examples=so_many(20), deadline=None, suppress_health_check=SLOW)
@given(hopeless())
def test_clashes_are_minimal_and_least_changes_are_least(instance: Instance) -> None:
    found = explain(instance, ONE_WORKER)
    assert found.complete and feasible(instance) == (not found.clashes)
    every = limits_of(instance)
    for at, clash in enumerate(found.clashes):
        rest = [limit for limit in every if limit not in clash.limits]
        assert not feasible(without(instance, rest))
        assert all(feasible(without(instance, [*rest, limit])) for limit in clash.limits)
        others = [limit for other in (*found.clashes[:at], *found.clashes[at + 1 :]) for limit in other.limits]
        base = without(instance, others)
        for way in clash.ways_out:
            slack = next(limit.slack for limit in clash.limits if limit.path == way.paths[0])
            if len(way.paths) == 1 and way.amount is not None and slack is not None:
                assert feasible(slack.by(base, way.amount)) and not feasible(slack.by(base, way.amount - 1))
