"""No inner loop of the search for the executed step goes on after the deadline, and what is in parts is whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.limits import NEVER, Deadline, StoppedError
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Training
from pipecut.solvers.atoms import unbeaten
from pipecut.solvers.search.first_plan import first_plan
from pipecut.solvers.step_time import asking, responses, step_dp
from tests.examples import chain, instance_of, matrix, mesh
from tests.solvers.test_stopped_anywhere import Wish

COLUMNS = [2, unbeaten.STAIRS, 5, 40]


def rows_that_beat_none(many: int, columns: int) -> unbeaten.Rows:
    """Return rows of which each is less than the others in one of two columns."""
    rows = np.zeros((many, columns), dtype=np.int64)
    rows[:, 0], rows[:, -1] = np.arange(many), np.arange(many)[::-1]
    return rows


@pytest.mark.parametrize("columns", COLUMNS)
def test_rows_are_not_compared_after_the_deadline(columns: int):
    rows, group = rows_that_beat_none(600, columns), np.zeros(600, dtype=np.int64)
    wish = Wish(10**9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unbeaten, "STEPS", 100)
        patch.setattr(unbeaten, "MOST_CELLS", 10_000)
        assert len(unbeaten.unbeaten(rows, group, Deadline(stopped=wish))) == 600
        assert wish.asked > 5
        for polls in range(0, wish.asked, max(1, wish.asked // 8)):
            with pytest.raises(StoppedError):
                unbeaten.unbeaten(rows, group, Deadline(stopped=Wish(polls)))


@pytest.mark.parametrize("columns", COLUMNS)
def test_groups_are_not_gone_through_after_the_deadline(columns: int):
    rows, group = rows_that_beat_none(60, columns), np.arange(60) // 2
    wish = Wish(10**9)
    unbeaten.unbeaten(rows, group, Deadline(stopped=wish))
    assert wish.asked >= 30


def by_suffixes(limits: Limits, cells: int) -> tuple[Proof, int, int]:
    """Return the proof, best value and bound of a search by suffixes alone, answers worked out in such parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "mixtures_of", lambda *_: None)
        patch.setattr(responses, "MOST_CELLS", cells)
        found = step_dp.solve(begun()[0], limits)
    assert found.objective is not None and found.bound is not None
    return found.proof, found.objective, found.bound


@pytest.mark.slow
def test_answers_in_parts_are_those_in_one_piece_and_every_part_looks_at_the_time():
    wish, other = Wish(10**9), Wish(10**9)
    whole = by_suffixes(Limits(stopped=wish), responses.MOST_CELLS)
    assert by_suffixes(Limits(stopped=other), 1) == whole
    assert other.asked > wish.asked
    for polls in range(0, other.asked, other.asked // 20):
        proof, objective, bound = by_suffixes(Limits(stopped=Wish(polls)), 1)
        assert proof is Proof.FEASIBLE and bound <= whole[1] <= objective


def begun() -> tuple[Instance, Plan]:
    """Return an instance with warm-ups to choose, and a plan of it."""
    layers = [matrix(f"l{at}", 300 + 100 * (at % 3), 8 * at, taken=50, made=50) for at in range(7)]
    training = Training(global_batch=4, micro_batches=4, warm_up="choose")
    once = Constraints(devices_per_stage=(1,))
    graph = chain(layers, [50] * 6)
    instance = instance_of(graph, mesh(1, 1, 1, 1), training=training)
    instance = replace(instance, goals=(Goal.STEP_TIME,), constraints=once)
    plan = first_plan(step_dp.all_tables(instance))
    assert plan is not None
    return instance, plan


@pytest.mark.parametrize("polls", [0, 1, 3])
def test_warm_ups_are_not_improved_after_the_deadline(polls: int):
    instance, plan = begun()
    wish = Wish(polls)
    found = step_dp.warmed(instance, plan, Deadline(stopped=wish))
    assert wish.asked <= polls + 1
    assert [stage.span for stage in found.stages] == [stage.span for stage in plan.stages]
    assert None not in [stage.warm_up for stage in step_dp.warmed(instance, plan, NEVER).stages]


@given(st.lists(st.lists(st.integers(0, 12), min_size=25, max_size=25), max_size=20), st.integers(0, 25))
def test_rows_have_one_number_if_they_are_one_row(drawn: list[list[int]], columns: int):
    keys = np.array(drawn, dtype=np.int64).reshape(len(drawn), 25)[:, :columns]
    numbers = unbeaten.numbered(keys).tolist()
    assert len(numbers) == len(drawn)
    assert len(set(numbers)) == len({tuple(row) for row in keys.tolist()})
    assert len({(one, *row) for one, row in zip(numbers, keys.tolist(), strict=True)}) == len(set(numbers))
