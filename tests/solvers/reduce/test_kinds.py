"""Kinds of groups that others stand for: of stages no less is said than without, and no more than they take."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Sharing
from pipecut.solvers.exhaustive import count_plans, plans
from pipecut.solvers.reduce.executed.leaves import counted_passes
from pipecut.solvers.reduce.reduced_dp import accepts
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from pipecut.solvers.reduce.seats import SeatLine
from pipecut.solvers.reduce.word import Word
from tests.examples import on_servers
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import has_groups
from tests.solvers.reduce.test_reduced import QUIET, repeated
from tests.solvers.step_time.test_formula import paced

MOST_PLANS = 300
"""Instances of no more plans are held against all of them."""
ALL = mock.patch(
    "pipecut.solvers.reduce.reduced_stages.stand_ins", lambda priced: list(range(len(priced[0].kinds)))
)
THEMSELVES = mock.patch("pipecut.solvers.reduce.reduced_stages._no_worse", lambda one, other: False)


def in_little_memory(instance: Instance, eighths: int, more: int = 0) -> Instance:
    """Return an instance whose devices have so many parts of a model, each server's so many bytes ``more``."""
    least = 1 + MemoryParts.undivided(instance).total * eighths // 8
    rows = [
        replace(one, device_class=replace(one.device_class, memory_bytes=least + more * at))
        for at, one in enumerate(instance.servers)
    ]
    asked = replace(instance.constraints, sharded=tuple(Sharded), memory=True)
    found = replace(on_servers(instance, tuple(rows)), constraints=asked)
    assume(has_groups(found) and accepts(found).takes)
    return found


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(repeated().map(paced), st.integers(1, 8))
def test_stages_take_no_less_than_with_cells_of_all_kinds_and_no_more_than_they_do(
    instance: Instance, eighths: int
) -> None:
    """With so little memory that it matters what is divided: what is known of a kind that another one stands for
    may be less than of that one, and no stage of any kind takes less than is said.
    """
    instance = in_little_memory(instance, eighths)
    word = Word.of(instance)
    line = SeatLine.of(instance, word.space)
    for each in (False, True):
        own = ReducedStages.of(word, line, each=each)
        with ALL:
            every = ReducedStages.of(word, line, each=each)
        for seat in range(len(line.groups)):
            for slot in range(min(3, instance.devices)):
                assert (own.least(seat, slot) >= every.least(seat, slot)).all()
    if count_plans(instance, MOST_PLANS) <= MOST_PLANS:
        for plan in (one for one in plans(instance) if evaluate(instance, one).feasible):
            rows = zip(plan.stages, own.at_least(plan), strict=True)
            assert all(least <= sum(counted_passes(instance, stage)) for stage, least in rows)


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(repeated().map(paced), st.integers(1, 8), st.sampled_from(Sharing))
def test_a_seat_takes_no_less_priced_itself_than_what_stands_for_it(
    instance: Instance, eighths: int, sharing: Sharing
) -> None:
    """One in the same classes over links that are no slower, or in the slowest of its classes alone."""
    judged = replace(instance, cost=replace(instance.cost, sharing=sharing))
    instance = in_little_memory(judged, eighths, more=1)
    word = Word.of(instance)
    line = SeatLine.of(instance, word.space)
    for each in (False, True):
        own = ReducedStages.of(word, line, each=each)
        with THEMSELVES:
            every = ReducedStages.of(word, line, each=each)
        assert own.firsts <= every.firsts == set(range(len(line.groups)))
        for seat in range(len(line.groups)):
            for slot in range(min(3, instance.devices)):
                assert (own.least(seat, slot) <= every.least(seat, slot)).all()
