"""Closed forms against the timeline: equal where theory says equal, bounded where it does not."""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.schedules.async_one_f_one_b import async_one_f_one_b
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.naive import naive
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import peak_in_flight
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.schedules.zero_bubble_v import zero_bubble_v
from pipecut.formulation.timeline.durations import Contention, Durations, Execution, Transfers
from pipecut.formulation.timeline.measures import (
    Footprint,
    TimelineMeasures,
    iteration_lower_bound_ns,
    uniform_iteration_ns,
)
from pipecut.formulation.timeline.timeline import run
from pipecut.report.simulation import (
    gpipe_bubble,
    gpipe_iteration_ns,
    iteration_upper_bound_ns,
    naive_iteration_ns,
    one_f_one_b_period_ns,
    zero_bubble_h1_iteration_ns,
    zero_bubble_v_iteration_ns,
)
from tests.theory import idle_of_ideal, interleaved_in_flight, pipedream_period_ns, zero_bubble_v_in_flight
from tests.timelines import uniform

SIZE = st.integers(1, 7)
TIME = st.integers(1, 9)


def bubble_of_ideal(stages: int, micro_batches: int, chunks: int = 1) -> Fraction:
    """Idle time as a share of the time without any, as Megatron-LM counts it: (p - 1) / (v m)."""
    return Fraction(stages - 1, chunks * micro_batches)


@st.composite
def uneven(draw: st.DrawFn, max_stages: int = 5) -> Durations:
    """Unequal stages and boundaries, some of them recomputing; zero times too."""
    stages = draw(st.integers(1, max_stages))

    def times(count: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(0, 9)) for _ in range(count))

    return Durations(
        times(stages),
        times(stages),
        recompute_ns=times(stages),
        activation_ns=times(stages - 1),
        gradient_ns=times(stages - 1),
    )


def makespan_ns(schedule, durations: Durations) -> int:
    return run(schedule, durations).makespan_ns


@given(SIZE, SIZE, TIME, TIME)
def test_bubble_and_iteration_time_of_uniform_stages(stages: int, micro_batches: int, forward: int, backward: int):
    durations = uniform(stages, forward, backward)
    for build in (gpipe, one_f_one_b):
        timeline = run(build(stages, micro_batches), durations)
        assert timeline.makespan_ns == uniform_iteration_ns(stages, micro_batches, forward, backward)
        assert TimelineMeasures(timeline).bubble_of_total == gpipe_bubble(stages, micro_batches)
        assert idle_of_ideal(timeline) == bubble_of_ideal(stages, micro_batches)


def test_the_two_conventions_by_hand():
    # GPipe, K = 4, M = 4: 3 of 7 slots are empty, 3 for 4 that are not.
    assert gpipe_bubble(4, 4) == Fraction(3, 7)
    assert bubble_of_ideal(4, 4) == Fraction(3, 4)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), TIME, TIME)
def test_bubble_of_interleaved_stages(ranks: int, chunks: int, groups: int, forward: int, backward: int):
    micro_batches = ranks * groups
    timeline = run(interleaved(ranks, chunks, micro_batches), uniform(ranks * chunks, forward, backward))
    assert timeline.makespan_ns == uniform_iteration_ns(ranks, micro_batches, forward, backward, chunks)
    assert idle_of_ideal(timeline) == bubble_of_ideal(ranks, micro_batches, chunks)


def test_interleaving_pays_with_memory():
    # Korthikanti et al.: rank 0 keeps 1 + (p - 1) / (p v) times the p stages' worth of plain 1F1B.
    ranks, chunks = 8, 4
    passes = interleaved_in_flight(ranks, chunks, 64, 0)
    assert Fraction(passes, chunks * ranks) == 1 + Fraction(ranks - 1, ranks * chunks)


@given(SIZE, st.integers(0, 6), TIME, TIME, st.integers(0, 9))
def test_iteration_time_of_zero_bubble_h1(stages: int, more: int, forward: int, inputs: int, weights: int):
    micro_batches = stages + more
    weights = min(weights, forward, inputs)
    durations = Durations(
        (forward,) * stages, (inputs + weights,) * stages, weight_gradient_ns=(weights,) * stages
    )
    expected = zero_bubble_h1_iteration_ns(stages, micro_batches, forward, inputs, weights)
    assert makespan_ns(zero_bubble_h1(stages, micro_batches), durations) == expected


@pytest.mark.parametrize(("micro_batches", "weights"), [(3, 1), (4, 3)])
def test_where_zero_bubbles_formula_ends(micro_batches: int, weights: int):
    # Too few micro-batches to fill the bubbles, or weight gradients too long for them: the formula is too good.
    durations = Durations((2,) * 4, (2 + weights,) * 4, weight_gradient_ns=(weights,) * 4)
    formula = zero_bubble_h1_iteration_ns(4, micro_batches, 2, 2, weights)
    assert makespan_ns(zero_bubble_h1(4, micro_batches), durations) > formula


@given(SIZE, SIZE, TIME, TIME, st.integers(0, 9), st.integers(0, 9))
def test_zero_bubble_is_never_slower_than_1f1b_on_uniform_stages(
    stages: int, micro_batches: int, forward: int, inputs: int, weights: int, transfer: int
):
    boundaries = (transfer,) * (stages - 1)
    durations = Durations(
        (forward,) * stages,
        (inputs + weights,) * stages,
        weight_gradient_ns=(weights,) * stages,
        activation_ns=boundaries,
        gradient_ns=boundaries,
    )
    zero_bubble, plain = zero_bubble_h1(stages, micro_batches), one_f_one_b(stages, micro_batches)
    assert makespan_ns(zero_bubble, durations) <= makespan_ns(plain, durations)


@given(SIZE, st.integers(1, 20), TIME)
def test_a_v_has_no_bubble_but_at_its_ends(ranks: int, micro_batches: int, time: int):
    durations = Durations(*[(time,) * 2 * ranks, (2 * time,) * 2 * ranks, (time,) * 2 * ranks])
    timeline = run(zero_bubble_v(ranks, micro_batches), durations)
    assert timeline.makespan_ns == zero_bubble_v_iteration_ns(ranks, micro_batches, time)
    if micro_batches >= 2 * ranks - 1:
        for rank in range(ranks):
            starts, stops = zip(*((start, stop) for _, start, stop in timeline.actions(rank)), strict=True)
            assert max(stops) - min(starts) == 6 * micro_batches * time


@given(SIZE, st.integers(1, 20))
def test_a_v_keeps_as_much_on_every_rank_as_the_first_stage_of_1f1b(ranks: int, micro_batches: int):
    schedule = zero_bubble_v(ranks, micro_batches)
    durations = Durations((1,) * 2 * ranks, (2,) * 2 * ranks)
    timeline = run(schedule, durations)
    # A byte for each pass of either chunk: half of what a micro-batch takes of a stage of 1F1B.
    footprint = Footprint((0,) * 2 * ranks, (1,) * 2 * ranks)
    held = [footprint.over_time(timeline, rank).peak_bytes for rank in range(ranks)]
    assert held == [zero_bubble_v_in_flight(ranks, micro_batches, rank) for rank in range(ranks)]
    assert max(held) <= 2 * peak_in_flight(one_f_one_b(ranks, micro_batches))[0]


@given(st.integers(2, 6), st.integers(1, 4), TIME)
def test_a_v_is_faster_than_other_orders_of_as_much_work_in_as_much_memory(ranks: int, more: int, time: int):
    micro_batches, chunks = ranks * (more + 1), uniform(2 * ranks, time, 2 * time)
    in_a_v = makespan_ns(zero_bubble_v(ranks, micro_batches), chunks)
    dealt = makespan_ns(interleaved(ranks, 2, micro_batches), chunks)
    plain = makespan_ns(one_f_one_b(ranks, micro_batches), uniform(ranks, 2 * time, 4 * time))
    assert in_a_v < dealt < plain


def test_zero_bubble_can_be_slower_than_1f1b_on_uneven_stages():
    # Stage 1 waits 5 for every activation, just long enough for a weight gradient; ZB-H1 puts it off to the end.
    durations = Durations((5, 0), (0, 6), weight_gradient_ns=(0, 5))
    assert makespan_ns(one_f_one_b(2, 2), durations) == 17
    assert makespan_ns(zero_bubble_h1(2, 2), durations) == 21


@given(uneven(), SIZE)
def test_naive_and_gpipe_are_exact_on_uneven_stages(durations: Durations, micro_batches: int):
    stages = durations.stages
    assert makespan_ns(naive(stages, micro_batches), durations) == naive_iteration_ns(durations, micro_batches)
    assert makespan_ns(gpipe(stages, micro_batches), durations) == gpipe_iteration_ns(durations, micro_batches)


@given(uneven(), SIZE)
def test_whole_backward_passes_stay_above_the_lower_bound_and_1f1b_below_the_upper(
    durations: Durations, micro_batches: int
):
    lower, upper = (
        bound(durations, micro_batches) for bound in (iteration_lower_bound_ns, iteration_upper_bound_ns)
    )
    for build in (naive, gpipe, one_f_one_b, async_one_f_one_b):
        assert lower <= makespan_ns(build(durations.stages, micro_batches), durations)
    for build in (gpipe, one_f_one_b):
        assert makespan_ns(build(durations.stages, micro_batches), durations) <= upper


@given(SIZE, SIZE, TIME, TIME)
def test_the_bounds_meet_on_uniform_stages(stages: int, micro_batches: int, forward: int, backward: int):
    durations = uniform(stages, forward, backward)
    expected = uniform_iteration_ns(stages, micro_batches, forward, backward)
    assert iteration_lower_bound_ns(durations, micro_batches) == expected
    assert iteration_upper_bound_ns(durations, micro_batches) == expected


def test_the_lower_bound_by_hand():
    durations = Durations((1, 5, 2), (2, 8, 4), activation_ns=(1, 1), gradient_ns=(3, 1))
    # Stage 1: 1 + 1 before it, 10 times 13, 3 + 2 after it.
    assert iteration_lower_bound_ns(durations, 10) == 137
    assert durations.latency_ns == iteration_lower_bound_ns(durations, 1) == 28
    assert makespan_ns(one_f_one_b(3, 10), durations) >= 137


@given(uneven(max_stages=4), st.sampled_from([one_f_one_b, async_one_f_one_b]))
def test_the_period_of_1f1b_is_the_maximum_cycle_mean(durations: Durations, build):
    # All cycle lengths divide `more`, so far from the start this many micro-batches take exactly as many periods.
    many, more = 400, lcm(*range(1, durations.stages + 1))
    longer, shorter = (makespan_ns(build(durations.stages, count), durations) for count in (many + more, many))
    assert Fraction(longer - shorter, more) == one_f_one_b_period_ns(durations)


@given(uneven(max_stages=4))
def test_the_measured_period_comes_close(durations: Durations):
    measured = TimelineMeasures(run(one_f_one_b(durations.stages, 240), durations)).period_ns
    assert measured is not None
    # Over 120 micro-batches the two ends of the measurement may be off by a latency at most.
    assert abs(measured - one_f_one_b_period_ns(durations)) * 120 <= durations.latency_ns


@given(uneven(), st.integers(2, 9))
def test_the_measured_period_of_naive_and_gpipe(durations: Durations, micro_batches: int):
    stages = durations.stages
    assert TimelineMeasures(run(naive(stages, micro_batches), durations)).period_ns == durations.latency_ns
    slowest = gpipe_iteration_ns(durations, 2) - durations.latency_ns
    assert TimelineMeasures(run(gpipe(stages, micro_batches), durations)).period_ns == slowest


def test_there_is_no_period_of_one_micro_batch():
    assert TimelineMeasures(run(gpipe(3, 1), uniform(3, 1, 1))).period_ns is None


@given(st.integers(1, 6), TIME, TIME)
def test_without_transfers_the_period_is_the_slowest_stage(stages: int, forward: int, backward: int):
    assert one_f_one_b_period_ns(uniform(stages, forward, backward)) == forward + backward


def test_transfers_slow_1f1b_down_even_when_they_are_shorter_than_a_stage():
    # S = 4, f + b = 10, transfers of 3 there and 3 back: PipeDream's formula says 10, 1F1B takes 10 + 6 * 3 / 4.
    durations = uniform(4, 4, 6, 3)
    assert one_f_one_b_period_ns(durations) == Fraction(29, 2)
    assert TimelineMeasures(run(one_f_one_b(4, 800), durations)).period_ns == Fraction(29, 2)


def test_split_backward_passes_hide_transfers_that_1f1b_cannot():
    durations = uniform(4, 4, 6, 1)
    assert TimelineMeasures(run(one_f_one_b(4, 800), durations)).period_ns == Fraction(23, 2)
    assert TimelineMeasures(run(zero_bubble_h1(4, 800), durations)).period_ns == 10


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_pipedreams_period_bounds_replicated_stages(replicas: list[int], data: st.DataObject):
    times = st.tuples(*(TIME for _ in replicas))
    durations = Durations(data.draw(times), data.draw(times))
    measured = TimelineMeasures(run(async_one_f_one_b(len(replicas), 240, replicas), durations)).period_ns
    assert measured is not None
    assert measured * 120 >= pipedream_period_ns(durations, replicas) * 120 - durations.latency_ns


@pytest.mark.parametrize(
    ("replicas", "forward", "backward"),
    [((2, 1), (4, 2), (8, 4)), ((3, 2), (3, 2), (6, 4)), ((2, 1, 1), (4, 2, 2), (8, 4, 4))],
)
def test_pipedreams_period_is_reached(
    replicas: tuple[int, ...], forward: tuple[int, ...], backward: tuple[int, ...]
):
    durations = Durations(forward, backward)
    measured = TimelineMeasures(run(async_one_f_one_b(len(replicas), 240, replicas), durations)).period_ns
    assert measured == pipedream_period_ns(durations, replicas)


def test_pipedreams_period_is_not_always_reached():
    # "2-4-1": stage 1 has 4 replicas for which round-robin keeps too little in flight.
    durations, replicas = Durations((11, 18, 6), (11, 16, 6)), (2, 4, 1)
    assert pipedream_period_ns(durations, replicas) == 12
    measured = TimelineMeasures(run(async_one_f_one_b(3, 2400, replicas), durations)).period_ns
    assert measured is not None
    assert measured > Fraction(27, 2)


@given(uneven(), SIZE)
def test_contention_and_standing_still_stay_above_the_lower_bound(durations: Durations, micro_batches: int):
    lower = iteration_lower_bound_ns(durations, micro_batches)
    for contention in Contention:
        for transfers in Transfers:
            execution = Execution(contention, transfers)
            timeline = run(one_f_one_b(durations.stages, micro_batches), durations, execution)
            assert lower <= timeline.makespan_ns


def table_rows() -> list[str]:
    """The table of docs/schedules.md: times in halves, so that a stage of half a unit stays whole."""
    rows: list[str] = []
    for schedule, durations in (
        (naive(4, 8), uniform(4, 2, 4)),
        (gpipe(4, 8), uniform(4, 2, 4)),
        (one_f_one_b(4, 8), uniform(4, 2, 4)),
        (interleaved(4, 2, 8), uniform(8, 1, 2)),
        (zero_bubble_h1(4, 8), uniform(4, 2, 4)),
        (zero_bubble_v(4, 8), uniform(8, 1, 2)),
    ):
        timeline = run(schedule, durations)
        in_flight = " ".join(map(str, peak_in_flight(schedule)))
        bubbles = f"{TimelineMeasures(timeline).bubble_of_total} | {idle_of_ideal(timeline)}"
        rows.append(f"| {schedule.name} | {Fraction(timeline.makespan_ns, 2)} | {bubbles} | {in_flight} |")
    return rows


def test_the_table_in_the_docs():
    text = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")
    assert "|---|---|---|---|---|\n" + "\n".join(table_rows()) + "\n\n" in text
