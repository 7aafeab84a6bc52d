"""Micro-batches, schedule and chunks as decisions, held against an exhaustive search of every choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import Combine, CostModel
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.choices.trainings import best_training, decide, decided
from pipecut.solvers.crosscheck import SAME_OPTIMUM, SAME_RULED_OUT
from pipecut.solvers.goals import solve_in_order
from pipecut.solvers.reduce.best_grid import best_grid
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(40))
SMALL = instances(layer_graphs(max_layers=3), cluster_graphs(max_devices=3))


def ask(instance: Instance, limits: Limits) -> tuple[Instance, Outcome]:
    return instance, checked(instance, solve_in_order(instance, exhaustive.solve, limits))


def with_choices(instance: Instance, numbers: tuple[int, ...], **changes: object) -> Instance:
    training = Training(12, 1, schedule=instance.training.schedule, micro_batch_choices=numbers)
    return replace(instance, training=training, **changes)  # type: ignore[arg-type]


def per_step(instance: Instance, outcome: Outcome) -> int | None:
    if outcome.objective is None:
        return None
    often = instance.training.micro_batches if instance.goals[0] is Goal.BOTTLENECK else 1
    return outcome.objective * often


@SLOW
@given(SMALL, st.sampled_from([Goal.BOTTLENECK, Goal.ITERATION_TIME, Goal.MEMORY, Goal.COST]))
def test_no_number_is_better_than_the_chosen_one(instance: Instance, goal: Goal) -> None:
    instance = with_choices(instance, (1, 2, 3, 4, 6, 12), cost=CostModel(combine=Combine.MAX), goals=(goal,))
    found = best_training(instance, ask, Limits())
    every = [replace(instance, training=replace(instance.training, micro_batches=m)) for m in (1, 2, 3, 4, 6, 12)]
    values = [per_step(one, ask(one, Limits())[1]) for one in every]
    best = min((value for value in values if value is not None), default=None)
    assert per_step(found.instance, found.outcome) == best
    assert found.outcome.proof is (Proof.OPTIMAL if best is not None else Proof.INFEASIBLE)
    if best is not None:
        assert checked(found.instance, found.outcome) == found.outcome


@SLOW
@given(SMALL, st.sampled_from([(Goal.BOTTLENECK,), (Goal.BOTTLENECK, Goal.DEVICES), (Goal.ITERATION_TIME,)]))
def test_numbers_that_a_search_may_give_up_are_no_better(instance: Instance, goals: tuple[Goal, ...]) -> None:
    """Searches that heed below which value a plan is of use choose what brute force chooses."""

    def quickly(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        return one, plan(one, limits, cross_check=False)

    numbers = (1, 2, 3, 4, 6, 12)
    instance = with_choices(instance, numbers, cost=CostModel(combine=Combine.MAX), goals=goals)
    found = best_training(instance, quickly, Limits())
    assert found.checked(Limits()).plan == found.outcome.plan
    slowly = best_training(instance, ask, Limits())
    assert found.outcome.proof is slowly.outcome.proof
    assert per_step(found.instance, found.outcome) == per_step(slowly.instance, slowly.outcome)
    values = [[claim.value for claim in one.outcome.further] for one in (found, slowly)]
    assert values[0] == values[1]


@SLOW
@given(SMALL)
def test_ties_are_settled_by_the_next_goal(instance: Instance) -> None:
    goals = (Goal.DEVICES, Goal.MEMORY)
    instance = with_choices(instance, (1, 2, 4), goals=goals)
    found = best_training(instance, ask, Limits())
    outcomes = [
        ask(replace(instance, training=replace(instance.training, micro_batches=m)), Limits()) for m in (1, 2, 4)
    ]
    values = [tuple(claim.value for claim in outcome.claims) for _, outcome in outcomes if outcome.claims]
    if values and all(len(row) == len(goals) for row in values):
        assert tuple(claim.value for claim in found.outcome.claims) == min(values)


WITH_A_FLUSH = tuple(one for one in Schedule if one.flushes)
EXECUTED = [(Goal.STEP_TIME,), (Goal.STEP_TIME,), (Goal.MEMORY, Goal.STEP_TIME), (Goal.COST, Goal.STEP_TIME)]


@settings(SLOW, max_examples=so_many(15))
@given(SMALL, st.sampled_from(EXECUTED), st.sampled_from([(1,), (1, 2)]), st.booleans())
def test_no_order_of_the_passes_is_better_than_the_chosen_one(
    instance: Instance, goals: tuple[Goal, ...], chunks: tuple[int, ...], quick: bool
) -> None:
    """Every schedule with each number of micro-batches and of chunks, by brute force and by whoever is fastest."""

    def quickly(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        return one, plan(one, limits, cross_check=False)

    training = Training(12, 2, micro_batch_choices=(2, 4), schedule_choices=WITH_A_FLUSH, chunk_choices=chunks)
    instance = replace(instance, training=training, cost=CostModel(combine=Combine.MAX), goals=goals)
    found = best_training(instance, quickly if quick else ask, Limits())
    every = [ask(replace(instance, training=one), Limits())[1] for one in training.choices]
    values = [tuple(claim.value for claim in one.claims) for one in every if one.objective is not None]
    assert len(every) == 2 * (len(WITH_A_FLUSH) + (2 in chunks))
    assert found.outcome.proof is (Proof.OPTIMAL if values else Proof.INFEASIBLE)
    if values:
        assert tuple(claim.value for claim in found.outcome.claims) == min(values)
        assert checked(found.instance, found.outcome) == found.outcome
        assert found.instance.training in training.choices


def test_a_choice_that_nobody_takes_leaves_a_gap() -> None:
    """A claim over all choices is none over those that were searched: it says which one was not, and why."""

    def not_by_turns(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        if one.training.schedule is Schedule.GPIPE:
            raise ValueError("no GPipe here")
        return ask(one, limits)

    training = Training(12, 4, schedule_choices=(Schedule.ONE_F_ONE_B, Schedule.GPIPE))
    instance = replace(three_products((1,)), training=training, goals=(Goal.STEP_TIME,))
    found = best_training(instance, not_by_turns, Limits()).outcome
    alone = ask(replace(instance, training=training.choices[0]), Limits())[1]
    assert alone.proof is Proof.OPTIMAL and found.proof is Proof.FEASIBLE
    assert found.objective is not None and found.objective == alone.objective
    assert found.bound is not None and found.bound < found.objective
    assert "gpipe: no GPipe here" in found.notes
    assert "one_f_one_b chosen; searched one_f_one_b; bounds alone rule out or leave open gpipe" in found.notes


def test_zb_h1_is_proved_and_a_search_that_is_stopped_proves_nothing() -> None:
    training = Training(12, 4, schedule=Schedule.ZERO_BUBBLE_H1)
    instance = replace(three_products((1,)), training=training, goals=(Goal.STEP_TIME,))
    found = best_training(instance, ask, Limits()).outcome
    assert (found.proof, found.objective) == (Proof.OPTIMAL, exhaustive.solve(instance).objective)
    late = best_training(instance, ask, Limits(stopped=lambda: True))
    assert late.outcome.proof is not Proof.OPTIMAL


@pytest.mark.parametrize("keeps", [True, False])
def test_an_open_choice_is_searched_once_more_where_time_is_left(keeps: bool) -> None:
    """The first time it tells no bound, and the second time, where it is stopped at once, no plan either."""
    asked = list[Limits]()

    def hasty(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        found = ask(one, replace(limits, below=None))[1]
        asked.append(limits)
        if len(asked) <= 3:
            return one, replace(found, proof=Proof.FEASIBLE, bound=0, seconds=0.1)
        return one, found if keeps else Outcome("exhaustive", Proof.UNKNOWN, bound=0)

    instance = three_products((1, 4, 12))
    found, whole = (
        best_training(instance, hasty, Limits(time_limit_s=60)).outcome,
        best_training(instance, ask, Limits()),
    )
    assert len(asked) > 3 and found.objective == whole.outcome.objective
    assert any(limits.start is not None for limits in asked[3:])
    assert found.proof is (Proof.OPTIMAL if keeps else Proof.FEASIBLE)
    assert found.bound is not None and found.objective is not None and found.bound <= found.objective


def test_orders_are_not_compared_by_a_formula() -> None:
    open_order = replace(Training(12, 4), schedule_choices=(Schedule.ONE_F_ONE_B, Schedule.GPIPE))
    for goal in (Goal.BOTTLENECK, Goal.ITERATION_TIME):
        instance = replace(three_products((1,)), training=open_order, goals=(goal,))
        with pytest.raises(ValueError, match=f"{goal} is a formula, .* take objective step_time"):
            best_training(instance, ask, Limits())
    by_turns = Training(12, 4, chunk_choices=(1, 2))
    limit = Constraints(at_most=(GoalLimit(Goal.ITERATION_TIME, 10**9),))
    instance = replace(three_products((1,)), training=by_turns, goals=(Goal.STEP_TIME,), constraints=limit)
    with pytest.raises(ValueError, match="iteration_time: the formula is about stages on devices of their own"):
        best_training(instance, ask, Limits())


def test_what_was_left_open_is_no_proof() -> None:
    """Only one number was searched when the time was over, and sums alone do not rule the others out."""
    asked = list[int]()

    def once(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        asked.append(one.training.micro_batches)
        return ask(one, Limits())

    instance = three_products((1, 4, 12))
    found = best_training(instance, once, Limits(stopped=lambda: bool(asked)))
    assert len(asked) == 1
    assert found.outcome.proof is Proof.FEASIBLE
    assert found.outcome.bound is not None and found.outcome.objective is not None
    assert found.outcome.bound < found.outcome.objective
    whole = best_training(instance, ask, Limits())
    assert whole.outcome.proof is Proof.OPTIMAL and whole.outcome.objective is not None
    assert found.outcome.bound <= whole.outcome.objective <= found.outcome.objective


def test_somebody_is_asked_where_time_is_over_before_anybody_answered() -> None:
    """The first that are asked refuse, and the time is over: this ended with an error of nobody's."""
    refused = list[int]()

    def late(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        if not refused:
            refused.append(one.training.micro_batches)
            raise ValueError("too large")
        return one, plan(one, limits)

    instance = three_products((1, 4, 12))
    for stopped in (lambda: bool(refused), lambda: True):
        refused.clear()
        found = best_training(instance, late, Limits(stopped=stopped))
        assert found.outcome.proof in (Proof.FEASIBLE, Proof.UNKNOWN)
        assert any("too large" in note for note in found.outcome.notes)


CARD = DeviceClass("card", 1 << 30, 10**12)


def three_products(numbers: tuple[int, ...]) -> Instance:
    """Three products on two devices: of steps of 12 samples, those in more micro-batches are shorter."""
    layers = [Layer(name, "linear", Split.MATRIX, 4000, 400, 400, 400, 10**6) for name in ("a", "b", "c")]
    cluster = cluster_graph("c", [Server("s", CARD, 2, Link(10**9))], [])
    training = Training(12, 1, micro_batch_choices=numbers)
    graph = layer_graph("m", layers, [("a", "b", 400), ("b", "c", 400)])
    return build_instance(graph, cluster, training, CostModel(), goals=(Goal.ITERATION_TIME,))


def test_a_second_method_is_asked_about_every_number() -> None:
    """The chosen number is checked first, then the others: it is said by whom."""

    def alone(one: Instance, limits: Limits) -> Outcome:
        return plan(one, limits, find_any("step_dp"), cross_check=False)

    _, unchecked = decide(three_products((1, 3, 4)), alone, Limits())
    assert unchecked.notes[-1].endswith("nothing better with 1, 3") and unchecked.checks == ()
    about, found = decide(three_products((1, 3, 4)), alone, Limits(), cross_check=True)
    second = find_any("cpsat").summary
    others = f"nothing better with 1, 3: {SAME_RULED_OUT.format(second)}"
    assert about.training.micro_batches == 4 and found.checks == (SAME_OPTIMUM.format(second), others)


def test_a_number_that_is_given_up_wrongly_is_found_out() -> None:
    """A search that calls a number useless though it has the best plan is caught by the second method."""

    def blind_to_four(one: Instance, limits: Limits) -> Outcome:
        if one.training.micro_batches == 4:
            return Outcome("step_dp", Proof.UNKNOWN, bound=limits.below or 10**9)
        return plan(one, limits, find_any("step_dp"))

    instance = three_products((3, 4))
    assert decide(instance, blind_to_four, Limits())[0].training.micro_batches == 3
    with pytest.raises(FalseClaimError, match=r"step_dp claims that no plan is below .*, but cpsat has a plan"):
        decide(instance, blind_to_four, Limits(), cross_check=True)


def test_numbers_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="12 is not a multiple of micro_batches 5"):
        Training(12, 1, micro_batch_choices=(1, 5))
    with pytest.raises(ValueError, match="expected different ones"):
        Training(12, 1, micro_batch_choices=(2, 2))


def test_orders_that_are_none_are_refused() -> None:
    one, gpipe, endless = Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ASYNC_ONE_F_ONE_B
    with pytest.raises(ValueError, match="no step ends under async_one_f_one_b"):
        Training(12, schedule_choices=(one, endless))
    for schedules, chunks in (((gpipe,), (1, 2)), ((one, gpipe), (2, 3))):
        with pytest.raises(ValueError, match=r"under gpipe: expected 1, or more under one_f_one_b"):
            Training(12, chunks=1, schedule=schedules[0], schedule_choices=schedules, chunk_choices=chunks)
    with pytest.raises(ValueError, match="chunks is 0, 2"):
        Training(12, chunk_choices=(0, 2))
    mixed = Training(12, schedule_choices=(gpipe, one), chunk_choices=(1, 2))
    assert [(each.schedule, each.chunks) for each in mixed.choices] == [(gpipe, 1), (one, 1), (one, 2)]
    assert mixed.chosen({"schedule": "one_f_one_b", "chunks": 2}) == mixed.choices[2]
    assert mixed.chosen({"schedule": "gpipe", "chunks": 2}) is None


def test_a_v_has_two_stages_a_group_whatever_is_written_of_others() -> None:
    one, gpipe, v = Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZERO_BUBBLE_V
    assert [Training(12, schedule=v, chunks=chunks).chunks for chunks in (1, 2)] == [2, 2]
    with pytest.raises(ValueError, match="chunks is 3 under zero_bubble_v: expected 2"):
        Training(12, schedule=v, chunks=3)
    with pytest.raises(ValueError, match="chunks is 2 under gpipe"):
        Training(12, schedule=v, schedule_choices=(v, gpipe), chunks=2)
    for written, expected in ((1, [(v, 2), (gpipe, 1)]), (2, [(v, 2), (one, 2)])):
        mixed = Training(12, schedule=v, schedule_choices=(v, gpipe if written == 1 else one), chunks=written)
        assert [(each.schedule, each.chunks) for each in mixed.choices] == expected
        assert mixed.chosen({"schedule": "zero_bubble_v", "chunks": 2}) == mixed.choices[0]
        assert mixed.left_open == ("schedule",)
    listed = Training(12, schedule_choices=(one, v), chunk_choices=(1, 4))
    assert [(each.schedule, each.chunks) for each in listed.choices] == [(one, 1), (one, 4), (v, 2)]
    assert listed.choices[-1].closed() == Training(12, schedule=v)


@pytest.mark.slow
def test_a_large_question_has_a_plan_of_equal_groups_before_anything_is_searched() -> None:
    """A search that finds nothing by itself leaves the best of all numbers, told as soon as it was there."""
    layers = [matrix(f"layer{at}", 40, 10, taken=50, made=50) for at in range(330)]
    training = Training(
        64, 1, micro_batch_choices=(1, 16, 64), warm_up="eager"
    )  # which the reduction does not see
    large = instance_of(chain(layers, [50] * 329), mesh(8, 8, 8, 8), PLAIN, training)
    few_cuts = Constraints(no_cut=tuple(f"layer{at}" for at in range(330) if at % 30))
    large = replace(large, goals=(Goal.STEP_TIME,), constraints=few_cuts)
    told: list[Progress] = []

    def nothing(one: Instance, limits: Limits) -> Outcome:
        value = None if limits.start is None else evaluate(one, limits.start).objective
        proof = Proof.UNKNOWN if value is None else Proof.FEASIBLE
        return Outcome("nobody", proof, limits.start, value, goals=one.goals)

    about, found = decide(large, nothing, Limits(time_limit_s=60, progress=told.append))
    assert found.plan is not None and evaluate(about, found.plan).feasible
    values = [one.objective for one in told if one.objective is not None]
    assert evaluate(about, found.plan).objective == found.objective == values[-1]
    for many in training.micro_batch_choices:
        alone = replace(large, training=replace(large.training, micro_batches=many, micro_batch_choices=()))
        grid = best_grid(alone, Limits())
        assert grid is not None and (found.objective or 0) <= grid.objective

    def worse(one: Instance, limits: Limits) -> Outcome:
        return Outcome("nobody", Proof.UNKNOWN, goals=one.goals)

    assert decide(large, worse, Limits(time_limit_s=60))[1].objective == found.objective
    with pytest.raises(FalseClaimError, match="a plan keeps every rule"):
        decide(large, lambda one, _: Outcome("nobody", Proof.INFEASIBLE, goals=one.goals), Limits(time_limit_s=60))


@pytest.mark.slow
def test_a_large_question_that_is_reduced_is_bounded_over_all_numbers_of_micro_batches() -> None:
    """Nobody is asked about one number alone, each better plan is told, and no plan of equal groups is better."""
    layers = [matrix(f"layer{at}", 40, 10, taken=50, made=50) for at in range(330)]
    training = Training(64, 1, micro_batch_choices=(16, 64))
    large = instance_of(chain(layers, [50] * 329), mesh(8, 8, 8, 8), PLAIN, training)
    sizes = Constraints(
        devices_per_stage=(1, 2, 4, 8, 16, 32), no_cut=tuple(f"layer{at}" for at in range(330) if at % 30)
    )
    large = replace(large, goals=(Goal.STEP_TIME,), constraints=sizes)
    told: list[Progress] = []

    def nobody(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        raise AssertionError("asked about one number alone")

    chosen = best_training(large, nobody, Limits(time_limit_s=20, progress=told.append))
    assert chosen.outcome.solver == "reduced_dp" and chosen.outcome.plan is not None
    assert evaluate(chosen.instance, chosen.outcome.plan).objective == chosen.outcome.objective
    assert chosen.outcome.bound is not None and chosen.outcome.objective is not None
    assert chosen.outcome.bound <= chosen.outcome.objective
    values = [one.objective for one in told if one.objective is not None]
    assert values == sorted(values, reverse=True) and chosen.outcome.objective == values[-1]
    for many in (16, 64):
        alone = replace(large, training=replace(training, micro_batches=many, micro_batch_choices=()))
        grid = best_grid(alone, Limits())
        assert grid is None or chosen.outcome.objective <= grid.objective


def test_the_reduction_is_not_asked_where_layers_have_other_orders() -> None:
    """It bounds the given order alone: a proof of that is none of all orders."""
    names = [f"layer{at}" for at in range(330)]
    layers = [matrix(name, 40, 10, taken=50, made=50) for name in names]
    # The second and the third layer read the first one, and the fourth both, so they may change places.
    pairs = [(0, 1), (0, 2), (1, 3), (2, 3), *((at, at + 1) for at in range(3, 329))]
    branched = layer_graph("branched", layers, [(names[one], names[two], 50) for one, two in pairs])
    branched.graph["free_order"] = True
    training = Training(64, 1, micro_batch_choices=(16, 64))
    large = instance_of(branched, mesh(8, 8, 8, 8), PLAIN, training)
    large = replace(large, goals=(Goal.STEP_TIME,), constraints=Constraints(devices_per_stage=(8, 16, 32)))
    asked: list[int] = []

    def ask(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        asked.append(one.training.micro_batches)
        return one, Outcome("nobody", Proof.UNKNOWN, goals=one.goals)

    best_training(large, ask, Limits(time_limit_s=5))
    assert asked


def test_without_a_plan_nothing_is_said_that_one_choice_may_undercut() -> None:
    """Nobody finds a plan, and what no plan undercuts is known of each number alone, in this order and in all."""

    def nobody(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        bound = 10**9 * one.training.micro_batches
        return one, Outcome("nobody", Proof.UNKNOWN, bound=bound, any_order_bound=bound // 2, notes=("of one",))

    for numbers in ((4, 1, 12), (12, 4, 1)):
        found = best_training(three_products(numbers), nobody, Limits()).outcome
        assert (found.proof, found.bound, found.any_order_bound) == (Proof.UNKNOWN, 10**9, 10**9 // 2)
        assert found.solver == "auto" and "of one" not in found.notes


def test_a_plan_that_breaks_rules_is_shown_of_the_choice_that_it_is_of() -> None:
    """A planner that does not see a limit plans for every number; no plan keeps to the limit."""

    def blind(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        free = replace(one, constraints=replace(one.constraints, devices_per_stage=()))
        found = ask(free, limits)[1]
        return one, checked(one, replace(found, solver="blind", blind_to=("devices_per_stage",)))

    asked = three_products((4, 1, 12))
    limited = replace(asked.constraints, devices_per_stage=(asked.devices + 1,))
    decision = best_training(replace(asked, constraints=limited), blind, Limits())
    chosen, found = decision.instance, decision.outcome
    assert found.plan is not None and (found.proof, found.bound) == (Proof.UNKNOWN, None)
    assert found.objective == evaluate(chosen, found.plan).objective
    told = [note for note in checked(chosen, found).notes if note.startswith("constraints.devices_per_stage")]
    assert found.solver == "blind" and told and len(told) == len(set(told))


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE_H1, Schedule.GPIPE])
@pytest.mark.parametrize("numbers", [(), (2, 4)])
def test_where_no_stage_can_be_there_is_no_plan(schedule: Schedule, numbers: tuple[int, ...]) -> None:
    """Few places to cut, so that the reduction is asked, and more devices a stage than there are.

    In halves nobody takes every number of stages, so that nothing is proved.
    """
    layers = chain([matrix(f"layer{at}", 40, 10, taken=50, made=50) for at in range(12)], [50] * 11)
    training = Training(4, 4, schedule=schedule, micro_batch_choices=numbers)
    closed = tuple(f"layer{at}" for at in range(12) if at % 4)
    asked = Constraints(devices_per_stage=(3,), no_cut=closed)
    instance = replace(
        instance_of(layers, mesh(1, 1), PLAIN, training), goals=(Goal.STEP_TIME,), constraints=asked
    )
    _, found = decide(instance, lambda one, limits: plan(one, limits), Limits(time_limit_s=20))
    assert found.plan is None and (schedule.in_halves or found.proof is Proof.INFEASIBLE)


def test_whoever_is_named_is_asked_about_every_number() -> None:
    """The reduction answers for whoever is fastest, and for itself."""
    layers = chain([matrix(f"layer{at}", 40, 10, taken=50, made=50) for at in range(12)], [50] * 11)
    training = Training(4, 1, micro_batch_choices=(2, 4))
    closed = tuple(f"layer{at}" for at in range(12) if at % 4)
    instance = instance_of(layers, mesh(2), PLAIN, training)
    instance = replace(
        instance, goals=(Goal.STEP_TIME,), constraints=Constraints(recompute=Recompute.BLOCKS, no_cut=closed)
    )
    asked = list[int]()

    def by_types(one: Instance, limits: Limits) -> Outcome:
        asked.append(one.training.micro_batches)
        return plan(one, limits, find_any("cpsat_types"), cross_check=False)

    for name, own in (("auto", "reduced_dp"), ("reduced_dp", "reduced_dp"), ("cpsat_types", "cpsat_types")):
        asked.clear()
        found = decided(instance, by_types, Limits(time_limit_s=20, workers=1), name).outcome
        assert (found.solver, found.proof) == (own, Proof.OPTIMAL) and bool(asked) is (name == "cpsat_types")
