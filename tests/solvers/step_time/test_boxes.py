"""Bounds of plans in boxes: no plan is lost where boxes are parted, and no sum is above what plans take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.costs.tables import Tables, Times, all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from pipecut.solvers import exhaustive
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.step_time import asking
from pipecut.solvers.step_time.bounds import boxes
from pipecut.solvers.step_time.bounds.boxes import Boxes
from pipecut.solvers.step_time.bounds.game import Shares, equilibrium
from pipecut.solvers.step_time.bounds.pass_sums import NEVER_NS, Pairs, Sums
from pipecut.solvers.step_time.bounds.rays import ALONE, PACE, most_worth, parts_of, proportions
from pipecut.solvers.step_time.bounds.spans import Index
from pipecut.solvers.step_time.step_dp import accepts, solve
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_chosen_warm_ups import with_long_transfers
from tests.solvers.step_time.test_mixtures import rows_of, sums_of
from tests.solvers.step_time.test_step_dp import judged_by_step, with_much_to_synchronise

amounts = st.integers(0, 20)


@st.composite
def asked_about(draw: st.DrawFn) -> Instance:
    """Instances of every kind that the search sees: chosen warm-ups, long synchronisations, and all else."""
    kind = draw(st.sampled_from(["any", "warm", "far", "heavy"]))
    if kind == "far":
        return draw(with_long_transfers())
    if kind == "heavy":
        return draw(with_much_to_synchronise())
    found = draw(judged_by_step(max_layers=3))
    if kind == "warm" and found.training.schedule is Schedule.ONE_F_ONE_B:
        return replace(found, training=replace(found.training, warm_up="choose"))
    return found


@pytest.mark.slow
@settings(max_examples=so_many(40), deadline=None)
@given(asked_about(), st.integers(0, 4), st.integers(1, 3))
def test_boxes_of_few_blocks_that_are_parted_to_the_end_lose_nothing(instance: Instance, small: int, turns: int):
    assume(accepts(instance).proves and few_plans(instance))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "MOST_BLOCKS", 2)
        patch.setattr(asking, "FIRST_STEP", 1)
        patch.setattr(boxes, "SMALL", small)
        patch.setattr(boxes, "DIVE", 2)
        patch.setattr(boxes, "TURNS", turns)
        patch.setattr(boxes, "ROOT_TURNS", turns)
        found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)


def _priced(instance: Instance, more: int) -> tuple[list[tuple[int, Plan]], int]:
    """Return the plans that are so many hundredths above the best at most, and what they take at most."""
    assume(accepts(instance).proves and few_plans(instance))
    found = [(evaluate(instance, plan), plan) for plan in exhaustive.plans(instance)]
    kept = [(one.objective, plan) for one, plan in found if one.feasible and one.objective]
    assume(kept)
    limit = min(value for value, _ in kept) * (100 + more) // 100
    return [(value, plan) for value, plan in kept if value <= limit], limit


def _only(sums: Sums, tables: Tables, plan: Plan) -> Sums:
    """Return the sums of the plans that have the spans and the kinds of one."""
    space, slots = CutSpace.of(tables.instance), list[Pairs]()
    for pairs, stage in zip(sums.slots, reversed(plan.stages), strict=True):
        kind = tables.kinds.index(GroupKind.of(tables.instance, stage.group))
        ends = [space.places.index(one) for one in (stage.span.first, stage.span.stop)]
        first, stop = np.searchsorted(sums.spans.place, ends, side="right") - 1
        of, rows = pairs.of, pairs.rows
        slots.append(pairs.where((of.kind[rows] == kind) & (of.first[rows] == first) & (of.stop[rows] == stop)))
    return replace(sums, slots=tuple(slots))


def _least(sums: Sums, often: Times, values: list[Shares]) -> int:
    return sums.whole(sums.behind(sums.costs(often, values), NEVER_NS - 1))


def _drawn_blocks(data: st.DataObject, instance: Instance) -> Index:
    """Return starts of blocks: the first and the last place alone, others together as it comes."""
    last = CutSpace.of(instance).stops
    between = data.draw(st.sets(st.integers(1, last))) if last else set[int]()
    return np.array(sorted({0, min(1, last), last} | between), dtype=np.int64)


@pytest.mark.slow
@settings(max_examples=so_many(40), deadline=None)
@given(asked_about(), st.integers(0, 100), st.data())
def test_no_sum_of_passes_is_above_what_a_plan_takes_however_it_is_parted(
    instance: Instance, more: int, data: st.DataObject
):
    kept, limit = _priced(instance, more)
    tables = all_tables(instance)
    fine, _, sums = sums_of(instance, limit, _drawn_blocks(data, instance))
    for _, plan in kept:
        mine = sums[len(plan) - 1]
        counts = st.lists(amounts, min_size=5 * len(plan), max_size=5 * len(plan))
        often = np.array(data.draw(counts), dtype=np.int64).reshape(5, len(plan))
        least = st.floats(0, 1e9)
        many = len(mine.spans.known) + len(ALONE)
        values = [np.array(data.draw(st.lists(least, min_size=many, max_size=many))) for _ in plan.stages]
        taken = int((often * rows_of(pipeline_passes(instance, plan))).sum())
        for some in (mine, mine.by_places(fine)):
            alone = _only(some, tables, plan)
            for worth in (values, list(alone.typical())):
                assert _least(alone, often, worth) <= taken


@pytest.mark.slow
@settings(max_examples=so_many(40), deadline=None)
@given(asked_about(), st.integers(0, 100), st.integers(0, 6), st.data())
def test_every_plan_within_the_limit_is_in_a_small_box_and_above_the_bound(
    instance: Instance, more: int, turns: int, data: st.DataObject
):
    kept, limit = _priced(instance, more)
    tables, space = all_tables(instance), CutSpace.of(instance)
    fine, ways, sums = sums_of(instance, limit, _drawn_blocks(data, instance))
    taken = np.asarray(state_space(tables).taken[ways.node], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxes, "SMALL", data.draw(st.integers(0, 2)))
        patch.setattr(boxes, "TURNS", 1 + turns)
        patch.setattr(boxes, "DIVE", data.draw(st.integers(1, 3)))
        found = Boxes(instance.training, taken, limit, fine)
        for _ in found.grow(sums, {}):
            assert found.bound <= min(value for value, _ in kept)
    assert found.bound <= min(value for value, _ in kept)
    for value, plan in kept:
        own = [game for game in found.small if len(game.sums.slots) == len(plan)]
        assert any(_least(_only(game.sums, tables, plan), *_none(plan, game.sums)) == 0 for game in own)
        assert min(game.bound for game in own) <= value
    assert space.stops == fine.pace.shape[2] - 1


def _none(plan: Plan, sums: Sums) -> tuple[Times, list[Shares]]:
    """Return counts of nothing: their sum is 0 for every plan that there is."""
    return np.zeros((5, len(plan)), dtype=np.int64), list(sums.typical())


@given(st.tuples(amounts, amounts, amounts), st.integers(1, 16), st.data())
def test_parts_make_up_what_they_are_parts_of(
    counts: tuple[int, int, int], micro_batches: int, data: st.DataObject
):
    known = (PACE, (micro_batches, micro_batches, 1), *proportions(micro_batches))
    many = len(known) + len(ALONE)
    worth = st.one_of(st.floats(0, 1e15), st.just(0.0))
    values = np.array(data.draw(st.lists(worth, min_size=many, max_size=many)))
    found = parts_of(counts, known, values)
    whole = [sum(one[at] * often for one, often in found.known) + found.alone[at] for at in range(3)]
    assert tuple(whole) == counts
    assert min((*found.alone, *(often for _, often in found.known))) >= 0


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_what_is_worth_most_is_worth_what_its_limits_are(rows: int, columns: int, data: st.DataObject):
    numbers = [data.draw(st.integers(1, 20)) for _ in range(rows * columns + rows + columns)]
    needs = np.array(numbers[: rows * columns], dtype=np.float64).reshape(rows, columns)
    worth, limits = np.split(np.array(numbers[rows * columns :], dtype=np.float64), [columns])
    found, prices = most_worth(worth, needs, limits)
    assert (found >= 0).all() and (prices >= 0).all()
    assert (needs @ found <= limits + 1e-6).all() and (prices @ needs >= worth - 1e-6).all()
    assert worth @ found == pytest.approx(prices @ limits)


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_both_sides_of_a_game_meet(rows: int, columns: int, data: st.DataObject):
    payoff = np.array([float(data.draw(st.integers(0, 50))) for _ in range(rows * columns)]).reshape(rows, columns)
    much, little = equilibrium(payoff)
    assert much.sum() == pytest.approx(1) and little.sum() == pytest.approx(1)
    assert (much @ payoff).min() == pytest.approx((payoff @ little).max(), abs=1e-6)
