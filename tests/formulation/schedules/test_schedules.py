"""Schedules: their diagrams, what they keep in flight, and the errors that say why one cannot be."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.problem import training
from pipecut.formulation.schedules import keeps
from pipecut.formulation.schedules.async_one_f_one_b import async_one_f_one_b, in_flight_of_replica
from pipecut.formulation.schedules.catalogue import schedule_of
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.naive import naive
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import (
    Action,
    DeadlockError,
    Kind,
    PipelineSchedule,
    ScheduleError,
    peak_in_flight,
    validate,
)
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.schedules.zero_bubble_v import zero_bubble_v
from pipecut.formulation.timeline.durations import Durations
from pipecut.formulation.timeline.timeline import run
from pipecut.report import simulation as theory
from tests.generators import OF_SINGLE_STAGES
from tests.theory import interleaved_in_flight, noam
from tests.timelines import uniform

SIZES = st.integers(1, 6)
FOUR = [naive, gpipe, one_f_one_b, zero_bubble_h1]
EVERY_DIAGRAM: list[tuple[str, PipelineSchedule, Durations]] = [
    ("naive", naive(4, 2), uniform(4, 1, 1)),
    ("gpipe", gpipe(4, 4), uniform(4, 1, 1)),
    ("one_f_one_b", one_f_one_b(4, 6), uniform(4, 1, 1)),
    ("zero_bubble_h1", zero_bubble_h1(4, 6), uniform(4, 1, 2)),
    ("interleaved", interleaved(2, 2, 4), uniform(4, 1, 1)),
    ("zero_bubble_v", zero_bubble_v(2, 4), uniform(4, 1, 2)),
    ("async_one_f_one_b", async_one_f_one_b(2, 8, (2, 1)), Durations((2, 1), (2, 1))),
]


def rows(*texts: str) -> PipelineSchedule:
    """A schedule out of one text of tokens for each rank."""
    return PipelineSchedule.of_actions("test", [[Action.parse(token) for token in text.split()] for text in texts])


def tokens(schedule: PipelineSchedule) -> list[str]:
    """One text of tokens for each rank."""
    return [" ".join(map(str, schedule.actions(rank))) for rank in range(schedule.ranks)]


@given(st.integers(0, 10**6), st.sampled_from(Kind), st.integers(0, 10**6))
def test_action_prints_and_parses_as_a_pytorch_token(stage: int, kind: Kind, micro_batch: int):
    action = Action(stage, kind, micro_batch)
    assert str(action) == f"{stage}{kind.letter}{micro_batch}"
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize("token", ["", "F0", "0F", "0X1", "0SEND_F1", "-1F0", "0f1", "0F1 ", "0F1.0", "0F²"])
def test_what_is_no_token_is_refused(token: str):
    with pytest.raises(ValueError, match="expected stage, one of F B I W, micro-batch"):
        Action.parse(token)


def test_an_action_below_zero_is_refused():
    with pytest.raises(ValueError, match="expected 0 or more"):
        Action(-1, Kind.FORWARD, 0)


@pytest.mark.parametrize(("name", "schedule", "durations"), EVERY_DIAGRAM, ids=[row[0] for row in EVERY_DIAGRAM])
def test_the_diagram_in_the_docstring_is_the_timeline(name: str, schedule: PipelineSchedule, durations: Durations):
    module = importlib.import_module(f"pipecut.formulation.schedules.{name}")
    assert diagram_of(module) == drawn(schedule, durations)


def diagram_of(module: ModuleType) -> list[list[str]]:
    return [row.split() for row in re.findall(r"^ +rank \d  (.*)$", module.__doc__ or "", re.MULTILINE)]


def drawn(schedule: PipelineSchedule, durations: Durations) -> list[list[str]]:
    timeline = run(schedule, durations)
    cells = [["."] * timeline.makespan_ns for _ in range(schedule.ranks)]
    whole = schedule.ranks < schedule.stages
    for rank, row in enumerate(cells):
        for action, start, stop in timeline.actions(rank):
            row[start:stop] = [str(action) if whole else str(action)[1:]] + ["--"] * (stop - start - 1)
    return cells


@given(st.sampled_from(FOUR), SIZES, SIZES)
def test_schedules_of_one_stage_a_rank_are_possible(
    build: Callable[..., PipelineSchedule], stages: int, size: int
):
    validate(build(stages, size))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_interleaved_schedules_are_possible(ranks: int, chunks: int, groups: int):
    schedule = interleaved(ranks, chunks, ranks * groups)
    validate(schedule)
    assert schedule.stage_ranks == tuple((stage % ranks,) for stage in range(ranks * chunks))


@given(SIZES, st.integers(1, 14))
def test_a_v_is_possible_and_ends_where_it_begins(ranks: int, micro_batches: int):
    schedule = zero_bubble_v(ranks, micro_batches)
    validate(schedule)
    down = [(rank,) for rank in range(ranks)]
    assert schedule.stage_ranks == (*down, *reversed(down))


@pytest.mark.slow
def test_a_v_has_the_order_of_torch():
    module = pytest.importorskip("torch.distributed.pipelining.schedules")
    letters = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
    for ranks, micro_batches in itertools.product(range(1, 6), range(1, 12)):
        asked = SimpleNamespace(pp_group_size=ranks, num_stages=2 * ranks, _n_microbatches=micro_batches)
        for rank, ours in enumerate(tokens(zero_bubble_v(ranks, micro_batches))):
            row = module.ScheduleZBVZeroBubble._calculate_single_rank_operations(asked, rank)
            passes = (one for one in row if one is not None)
            assert ours.split() == [
                f"{one.stage_index}{letters[one.computation_type.name]}{one.microbatch_index}" for one in passes
            ]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 12))
def test_replicated_schedules_are_possible_and_in_turn(replicas: list[int], micro_batches: int):
    schedule = async_one_f_one_b(len(replicas), micro_batches, replicas)
    validate(schedule)
    assert not schedule.flush
    for stage, ranks in enumerate(schedule.stage_ranks):
        for replica, rank in enumerate(ranks):
            seen = {action.micro_batch for action in schedule.actions(rank)}
            assert {action.stage for action in schedule.actions(rank)} <= {stage}
            assert seen == set(range(replica, micro_batches, replicas[stage]))


@given(SIZES, SIZES)
def test_interleaving_one_chunk_is_1f1b(ranks: int, groups: int):
    # Megatron warms up with twice the distance to the last rank, so only the first forward passes move ahead.
    schedule = interleaved(ranks, 1, ranks * groups)
    assert (
        run(schedule, uniform(ranks, 1, 2)).makespan_ns
        == run(one_f_one_b(ranks, ranks * groups), uniform(ranks, 1, 2)).makespan_ns
    )


def test_asynchronous_1f1b_without_replicas_is_1f1b():
    assert tokens(async_one_f_one_b(4, 9)) == tokens(one_f_one_b(4, 9))


@given(st.sampled_from(OF_SINGLE_STAGES), SIZES, SIZES)
def test_in_flight_of_the_memory_formula_is_that_of_the_schedule(kind: training.Schedule, stages: int, size: int):
    counted = peak_in_flight(schedule_of(training.Training(size, size, schedule=kind), stages))
    expected = [
        keeps.in_flight(training.Training(size, size, schedule=kind), stage, stages) for stage in range(stages)
    ]
    if not kind.flushes:  # the formula is that of a run without end
        expected = [min(count, size) for count in expected]
    assert counted == expected
    if not kind.in_halves:  # what programmes rest on that put stages before others
        behind = peak_in_flight(schedule_of(training.Training(size, size, schedule=kind), stages + 1))
        assert behind[1:] == counted


@given(SIZES, SIZES)
def test_zero_bubble_keeps_no_more_in_flight_than_the_first_stage_of_1f1b(stages: int, micro_batches: int):
    schedule = zero_bubble_h1(stages, micro_batches)
    until_inputs = peak_in_flight(schedule, until_weights=False)
    until_weights = peak_in_flight(schedule)
    of_1f1b = peak_in_flight(one_f_one_b(stages, micro_batches))
    assert until_inputs == of_1f1b
    assert max(until_weights) == max(of_1f1b)
    assert list(zip(until_inputs, until_weights, strict=True)) == [
        theory.zero_bubble_h1_in_flight(stages, stage, micro_batches) for stage in range(stages)
    ]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_in_flight_of_interleaved_ranks(ranks: int, chunks: int, groups: int):
    schedule = interleaved(ranks, chunks, ranks * groups)
    for rank in range(ranks):
        live = peak = 0
        for action in schedule.actions(rank):
            live += 1 if action.kind is Kind.FORWARD else -1
            peak = max(peak, live)
        assert peak == interleaved_in_flight(ranks, chunks, ranks * groups, rank)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_noam_is_what_the_input_stage_keeps_in_flight(replicas: list[int]):
    schedule = async_one_f_one_b(len(replicas), 12 * sum(replicas), replicas)
    expected = [in_flight_of_replica(replicas, stage) for stage in range(len(replicas))]
    assert peak_in_flight(schedule) == expected
    assert expected[0] == noam(replicas)


def test_noam_of_pipedreams_configurations():
    # "2-1-1" keeps ceil(4 / 2) minibatches at each replica of its input stage, "15-1" keeps ceil(16 / 15).
    assert noam((2, 1, 1)) == 2
    assert noam((15, 1)) == 2
    assert noam((1, 1, 1, 1)) == 4


@pytest.mark.parametrize(
    ("build", "sizes", "message"),
    [
        (gpipe, (0, 4), "stages is 0: expected 1 or more"),
        (one_f_one_b, (4, 0), "micro_batches is 0: expected 1 or more"),
        (interleaved, (2, 0, -2), "chunks is 0, micro_batches is -2: expected 1 or more"),
        (interleaved, (4, 2, 6), "on 4 ranks needs a multiple of 4 micro-batches, got 6; the next is 8"),
        (async_one_f_one_b, (2, 4, (1, 0)), "replicas of stage 1 is 0: expected 1 or more"),
        (async_one_f_one_b, (2, 4, (1,)), "1 replica counts for 2 stages"),
    ],
)
def test_impossible_sizes_are_refused(build: Callable[..., object], sizes: Sequence[object], message: str):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        build(*sizes)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (["0F0 0B0 0F1 0B1", "1F0 1B0 1B1"], "2 stages with 2 micro-batches take 8 actions or more, found 7"),
        (["0F0 0B0 0F1 0B1", "1F0 1B0 1B1 1B1"], "1B1 stands 2 times; 1F1 is missing"),
        (["0F0 0I0 0F1 0B1 0B1", "1F0 1F1 1I1 1B0"], "0W0 (or 0B0) is missing"),
        (["0F0 0I0 0F1 0B1 0B1", "1F0 1F1 1I1 1B0"], "1W1 (or 1B1) is missing"),
        (["0F0 0B0 0W0"], "0B0 stands beside 0I0 or 0W0"),
        (["0F0 0B0 1F0", "1B0"], "1B0 stands on rank 1, expected rank 0"),
        (["0F0 0F3 0B0 0B3", "0F1 0F2 0B2 0B1"], "0F3 stands on rank 0, expected rank 1"),
    ],
)
def test_incomplete_schedules_say_what_is_wrong(ranks: list[str], message: str):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        validate(rows(*ranks))
    stages = 1 + max(int(token[0]) for text in ranks for token in text.split())
    with pytest.raises(ScheduleError, match=re.escape(message)):
        run(rows(*ranks), uniform(stages, 1, 1))


def test_replicas_are_numbered_by_their_first_micro_batch():
    schedule = rows("0F1 0B1", "0F0 0B0 0F2 0B2")
    assert schedule.stage_ranks == ((1, 0),)
    validate(schedule)


def test_an_error_of_many_actions_names_the_first_and_counts_the_rest():
    with pytest.raises(ScheduleError, match=r"0F0 is missing; .*; \.\.\. and 2 more$"):
        validate(rows(" ".join(f"0B{k} 0B{k}" for k in range(5))))


@pytest.mark.parametrize(
    ("ranks", "cycle", "message"),
    [
        (
            ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"],
            ("0B0", "1F1"),
            "deadlock: 0B0 on rank 0 waits for 1B0, which rank 1 does only after 1F1; "
            "1F1 on rank 1 waits for 0F1, which rank 0 does only after 0B0",
        ),
        (["0F0 0B0", "1B0 1F0"], ("1B0",), "1B0 on rank 1 waits for 1F0, which rank 1 does only after 1B0"),
        (["0F0 0W0 0I0"], ("0W0",), "0W0 on rank 0 waits for 0I0, which rank 0 does only after 0W0"),
        (
            ["0F0 0B0 2F0 2B0", "1F0 1B0"],
            ("0B0", "1B0"),
            "0B0 on rank 0 waits for 1B0; 1B0 on rank 1 waits for 2B0, which rank 0 does only after 0B0",
        ),
    ],
)
def test_a_deadlock_shows_who_waits_for_whom(ranks: list[str], cycle: tuple[str, ...], message: str):
    schedule = rows(*ranks)
    with pytest.raises(DeadlockError, match=re.escape(message)) as caught:
        validate(schedule)
    assert caught.value.cycle == cycle
    with pytest.raises(DeadlockError, match=re.escape(message)):
        run(schedule, uniform(schedule.stages, 1, 1))


@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_shuffled_rows_either_run_or_show_a_circle(data: st.DataObject, stages: int, micro_batches: int):
    built = data.draw(st.sampled_from([one_f_one_b, zero_bubble_h1]))(stages, micro_batches)
    shuffled = [data.draw(st.permutations(list(built.actions(rank)))) for rank in range(stages)]
    schedule = PipelineSchedule.of_actions("shuffled", shuffled)
    durations = uniform(stages, 1, 2)
    if runs_by_hand(shuffled, stages):
        validate(schedule)
        run(schedule, durations)
    else:
        with pytest.raises(DeadlockError):
            validate(schedule)
        with pytest.raises(DeadlockError):
            run(schedule, durations)


def runs_by_hand(ranks: list[list[Action]], stages: int) -> bool:
    """Do one action after another wherever possible, until nothing moves."""
    done: set[tuple[int, str, int]] = set()
    left = [list(row) for row in ranks]
    moved = True
    while moved:
        moved = False
        for row in left:
            if row and ready(row[0], done, stages):
                action = row.pop(0)
                kinds = "BI" if action.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT) else action.kind.letter
                done |= {(action.stage, kind, action.micro_batch) for kind in kinds}
                moved = True
    return not any(left)


def ready(action: Action, done: set[tuple[int, str, int]], stages: int) -> bool:
    stage, micro_batch = action.stage, action.micro_batch
    if action.kind is Kind.FORWARD:
        return stage == 0 or (stage - 1, "F", micro_batch) in done
    if action.kind is Kind.WEIGHT_GRADIENT:
        return (stage, "I", micro_batch) in done
    return (stage, "F", micro_batch) in done and (stage == stages - 1 or (stage + 1, "I", micro_batch) in done)
