"""Where the formula of an iteration time holds against the timeline, as docs/formulation.md says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.naive import naive
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.timeline.durations import Durations, Execution
from pipecut.formulation.timeline.timeline import run
from tests.laws import so_many

TIMES = st.integers(1, 30)
QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "max_examples": so_many(60)}


def formula_ns(forward: tuple[int, ...], backward: tuple[int, ...], micro_batches: int) -> int:
    """``latency + (M - 1) * bottleneck`` of stages without transfers."""
    terms = [one + other for one, other in zip(forward, backward, strict=True)]
    return sum(terms) + (micro_batches - 1) * max(terms)


@settings(**QUIET)  # type: ignore[arg-type]
@given(st.integers(1, 6), st.integers(1, 9), TIMES, TIMES)
def test_it_is_exact_for_equal_stages(stages: int, micro_batches: int, forward: int, backward: int) -> None:
    times = (forward,) * stages, (backward,) * stages
    for make in (gpipe, one_f_one_b):
        makespan = run(make(stages, micro_batches), Durations(*times), Execution()).makespan_ns
        assert makespan == formula_ns(*times, micro_batches) == (micro_batches + stages - 1) * (forward + backward)


@settings(**QUIET)  # type: ignore[arg-type]
@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=5), st.integers(1, 9))
def test_for_unequal_stages_f_then_b_takes_at_least_as_long(
    stages: list[tuple[int, int]], micro_batches: int
) -> None:
    forward, backward = zip(*stages, strict=True)
    schedule = gpipe(len(stages), micro_batches)
    makespan = run(schedule, Durations(forward, backward), Execution()).makespan_ns
    assert makespan >= formula_ns(forward, backward, micro_batches)
    alone = run(naive(len(stages), micro_batches), Durations(forward, backward), Execution()).makespan_ns
    assert alone == micro_batches * (sum(forward) + sum(backward))


@pytest.mark.parametrize(
    ("forward", "backward", "micro_batches", "timeline", "formula"),
    [
        ((1, 1), (2, 1), 2, 7, 8),
        ((4, 1, 1), (1, 4, 1), 4, 28, 27),
    ],
    ids=["1f1b-is-shorter", "1f1b-is-longer"],
)
def test_for_unequal_stages_1f1b_can_be_on_either_side(
    forward: tuple[int, ...], backward: tuple[int, ...], micro_batches: int, timeline: int, formula: int
) -> None:
    schedule = one_f_one_b(len(forward), micro_batches)
    assert run(schedule, Durations(forward, backward), Execution()).makespan_ns == timeline
    assert formula_ns(forward, backward, micro_batches) == formula
