"""The timeline, by arithmetic in one's head."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from pipecut.formulation.schedules.async_one_f_one_b import async_one_f_one_b
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import Action, DeadlockError, PipelineSchedule
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.timeline.critical_path import Reason, critical_chain
from pipecut.formulation.timeline.durations import Contention, Durations, Execution, Transfers
from pipecut.formulation.timeline.measures import Footprint, TimelineMeasures
from pipecut.formulation.timeline.timeline import run
from tests.timelines import messages, stamps, uniform

FIFO = Execution(contention=Contention.FIFO)


def test_one_micro_batch_there_and_back():
    durations = Durations((2, 3), (4, 5), recompute_ns=(0, 7), activation_ns=(1,), gradient_ns=(2,))
    timeline = run(one_f_one_b(2, 1), durations)
    assert stamps(timeline) == {"0F0": (0, 2), "1F0": (3, 6), "1B0": (6, 18), "0B0": (20, 24)}
    assert messages(timeline) == {"0F0": (2, 3), "1B0": (18, 20)}
    assert timeline.makespan_ns == 24


@pytest.mark.parametrize("contention", Contention)
@pytest.mark.parametrize(
    ("transfers", "of_rank_0", "of_rank_1"),
    [
        (Transfers.SENDER, [(0, 1), (3, 4), (10, 11), (13, 14)], [(3, 4), (6, 7), (7, 8), (10, 11)]),
        (Transfers.RECEIVER, [(0, 1), (1, 2), (10, 11), (13, 14)], [(3, 4), (6, 7), (7, 8), (8, 9)]),
    ],
)
def test_who_stands_still_for_a_transfer(
    transfers: Transfers,
    of_rank_0: list[tuple[int, int]],
    of_rank_1: list[tuple[int, int]],
    contention: Contention,
):
    timeline = run(gpipe(2, 2), uniform(2, 1, 1, 2), Execution(contention, transfers))
    assert list(stamps(timeline).values()) == of_rank_0 + of_rank_1
    assert messages(timeline)["0F1"] == (4, 6)
    assert TimelineMeasures(timeline).occupied_ns == [8, 8]


@pytest.mark.parametrize(
    ("contention", "of_rank_0", "of_rank_1"),
    [
        (Contention.NONE, [(0, 1), (1, 2), (8, 9), (9, 10)], [(3, 4), (4, 5), (5, 6), (6, 7)]),
        (Contention.FIFO, [(0, 1), (1, 2), (9, 10), (11, 12)], [(3, 4), (5, 6), (6, 7), (7, 8)]),
    ],
)
def test_transfers_overlap_with_computation(
    contention: Contention, of_rank_0: list[tuple[int, int]], of_rank_1: list[tuple[int, int]]
):
    timeline = run(gpipe(2, 2), uniform(2, 1, 1, 2), Execution(contention))
    assert list(stamps(timeline).values()) == of_rank_0 + of_rank_1
    assert TimelineMeasures(timeline).occupied_ns == [4, 4]
    assert TimelineMeasures(timeline).device_utilisation == [Fraction(4, timeline.makespan_ns)] * 2


def test_a_shared_link_carries_one_message_after_another():
    durations = Durations((1, 1, 1), (1, 1, 1), activation_ns=(4, 4), activation_link=(7, 7))
    free = messages(run(gpipe(3, 2), durations))
    assert free == {"0F0": (1, 5), "0F1": (2, 6), "1F0": (6, 10), "1F1": (7, 11)}
    timeline = run(gpipe(3, 2), durations, FIFO)
    assert messages(timeline) == {"0F0": (1, 5), "0F1": (5, 9), "1F0": (9, 13), "1F1": (13, 17)}
    waited = [(event.label, event.transfer, event.reason) for event in critical_chain(timeline)[:5]]
    assert waited == [
        ("0F0", False, Reason.START),
        ("0F0", True, Reason.ACTIVATION),
        ("0F1", True, Reason.LINK),
        ("1F0", True, Reason.LINK),
        ("1F1", True, Reason.LINK),
    ]


def test_a_device_that_sends_stands_still_for_a_busy_link_too():
    # 1F0, done at 6, asks for the link that 0F1 has from 6 to 10.
    durations = Durations((1, 1, 1), (0, 0, 0), activation_ns=(4, 4), activation_link=(7, 7))
    timeline = run(gpipe(3, 2), durations, Execution(Contention.FIFO, Transfers.SENDER))
    assert messages(timeline) == {"0F0": (1, 5), "0F1": (6, 10), "1F0": (10, 14), "1F1": (15, 19)}
    assert TimelineMeasures(timeline).occupied_ns == [10, 14, 2]


def test_requests_at_the_same_moment_are_served_in_the_order_of_ranks():
    # At 2 rank 0 has done 0F1, and rank 1, which got 0F0 at 2 and takes no time, 1B0: both want the link.
    durations = Durations((1, 0), (1, 0), activation_ns=(1,), gradient_ns=(5,), gradient_link=(0,))
    timeline = run(one_f_one_b(2, 3), durations, FIFO)
    assert messages(timeline)["0F1"] == (2, 3)
    assert messages(timeline)["1B0"] == (3, 8)


def test_synchronisation_and_optimiser_end_a_step():
    durations = Durations((1, 1), (1, 1), sync_ns=(5, 3), optimizer_ns=(1, 2))
    found = stamps(run(one_f_one_b(2, 1), durations))
    assert found["1S0"] == (3, 6)
    assert found["1U0"] == (6, 8)
    assert found["0S0"] == (4, 9)
    assert found["0U0"] == (9, 10)


@pytest.mark.parametrize(("overlap", "expected"), [(False, [(4, 7), (7, 12)]), (True, [(3, 6), (6, 11)])])
def test_synchronisation_of_two_stages_on_a_rank_takes_turns(overlap: bool, expected: list[tuple[int, int]]):
    durations = Durations((1, 1), (1, 1), sync_ns=(5, 3))
    timeline = run(interleaved(1, 2, 1), durations, Execution(overlap_sync=overlap))
    found = stamps(timeline)
    assert [found["1S0"], found["0S0"]] == expected
    assert TimelineMeasures(timeline).occupied_ns == [4 if overlap else 12]


def test_a_device_that_stands_still_to_send_synchronises_afterwards():
    durations = Durations((1, 1), (1, 1), sync_ns=(0, 2), gradient_ns=(10,))
    for contention in Contention:
        timeline = run(one_f_one_b(2, 1), durations, Execution(contention, Transfers.SENDER))
        assert stamps(timeline)["1S0"] == (13, 15)
        assert TimelineMeasures(timeline).occupied_ns == [2, 14]
        assert [event.label for event in critical_chain(timeline)] == ["0F0", "1F0", "1B0", "1B0", "1S0"]


@pytest.mark.parametrize(("overlap", "expected"), [(False, [(12, 14), (14, 15)]), (True, [(6, 8), (11, 12)])])
def test_the_optimiser_waits_for_every_synchronisation_that_holds_its_device(
    overlap: bool, expected: list[tuple[int, int]]
):
    durations = Durations((1, 1), (1, 1), sync_ns=(5, 3), optimizer_ns=(1, 2))
    found = stamps(run(interleaved(1, 2, 1), durations, Execution(overlap_sync=overlap)))
    assert [found["1U0"], found["0U0"]] == expected


def test_replicas_of_a_step_synchronise_when_all_are_done():
    rows = [["0F0", "0B0"], ["0F1", "0B1"]]
    schedule = PipelineSchedule.of_actions(
        "data parallel", [[Action.parse(token) for token in row] for row in rows]
    )
    assert schedule.stage_ranks == ((0, 1),)
    found = stamps(run(schedule, Durations((1,), (2,), sync_ns=(4,), optimizer_ns=(1,))))
    assert TimelineMeasures(run(schedule, Durations((1,), (2,), sync_ns=(4,), optimizer_ns=(1,)))).occupied_ns == [
        8,
        8,
    ]
    assert found["0S1"] == (3, 7)
    assert found["0U1"] == (7, 8)


@pytest.mark.parametrize("sync", [0, 3, 12, 40])
@pytest.mark.parametrize("updates_every", [1, 2])
def test_period_of_replicas_is_pipedreams_formula(sync: int, updates_every: int):
    # T(i -> j, m) = max(compute, synchronisation) / m; without overlap, their sum.
    schedule, durations = async_one_f_one_b(1, 96, (2,)), Durations((4,), (8,), sync_ns=(sync,))
    overlapped = run(schedule, durations, Execution(overlap_sync=True, updates_every=updates_every))
    assert TimelineMeasures(overlapped).period_ns == Fraction(max(12 * updates_every, sync), 2 * updates_every)
    blocking = run(schedule, durations, Execution(updates_every=updates_every))
    assert TimelineMeasures(blocking).period_ns == Fraction(12 * updates_every + sync, 2 * updates_every)


def test_a_deadlock_over_a_synchronisation_is_told():
    # Stage 1 wants 0 and 2 first, but replica 0 of stage 0 goes on to 2 only after an update, which needs 0B1.
    rows = ["0F0 0B0 0F2 0B2", "0F1 0B1 0F3 0B3", "1F0 1B0 1F2 1B2 1F1 1B1 1F3 1B3"]
    schedule = PipelineSchedule.of_actions(
        "late", [[Action.parse(token) for token in row.split()] for row in rows], flush=False
    )
    run(schedule, uniform(2, 1, 1))
    for contention in Contention:
        with pytest.raises(DeadlockError, match="0F2 on rank 0 waits for 0S1; 0S1 on the network waits for 0B1; "):
            run(schedule, Durations((1, 1), (1, 1), sync_ns=(1, 0)), Execution(contention))


def test_half_of_a_backward_pass_is_the_weight_gradient_unless_told():
    assert Durations((1, 1), (5, 4)).weight_gradient_ns == (2, 2)
    assert Durations((1, 1), (5, 4)).input_gradient_ns == (3, 2)
    timeline = run(zero_bubble_h1(1, 1), Durations((1,), (5,), weight_gradient_ns=(4,), recompute_ns=(2,)))
    assert stamps(timeline) == {"0F0": (0, 1), "0I0": (1, 4), "0W0": (4, 8)}


@pytest.mark.parametrize(
    ("given_durations", "message"),
    [
        (lambda: Durations((), ()), "forward_ns has no stage"),
        (lambda: Durations((1, 1), (1,)), "backward_ns has 1 entries, expected 2"),
        (lambda: Durations((1,), (-1,)), "backward_ns[0] is -1, expected a whole number, 0 or more"),
        (lambda: Durations((1,), (1.5,)), "backward_ns[0] is 1.5"),  # pyright: ignore[reportArgumentType]
        (lambda: Durations((1,), (1,), weight_gradient_ns=(2,)), "weight_gradient_ns 2 is above backward_ns 1"),
        (lambda: Durations((1, 1), (1, 1), activation_ns=(1, 1)), "activation_ns has 2 entries, expected 1"),
        (lambda: Execution(updates_every=0), "updates_every is 0"),
        (lambda: run(gpipe(3, 1), uniform(2, 1, 1)), "durations of 2 stages for a schedule of 3"),
        (lambda: Footprint((1, 1), (1,)), "stash_bytes has 1 entries, expected 2"),
        (lambda: Footprint((1,), (-1,)), "stash_bytes is (-1,)"),
        (
            lambda: Footprint((1,), (1,)).over_time(run(gpipe(2, 1), uniform(2, 1, 1)), 0),
            "a footprint of 1 stages for 2",
        ),
    ],
)
def test_what_cannot_be_is_refused(given_durations, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        given_durations()


def test_memory_over_time_by_hand():
    timeline = run(one_f_one_b(2, 2), uniform(2, 1, 2))
    held = Footprint((100, 200), (10, 20)).over_time(timeline, 0)
    assert held.time_ns.tolist() == [0, 1, 1, 2, 4, 6, 7, 9]
    assert held.held_bytes.tolist() == [110, 110, 120, 120, 120, 110, 110, 100]
    assert (held.peak_bytes, held.peak_ns) == (120, 1)
    assert Footprint((100, 200), (10, 20)).over_time(timeline, 1).peak_bytes == 220


def test_the_input_gradient_gives_back_all_but_what_the_weight_gradient_needs():
    timeline = run(zero_bubble_h1(2, 2), uniform(2, 1, 2))
    held = Footprint((0, 0), (10, 10), weight_stash_bytes=(4, 4)).over_time(timeline, 1)
    # At start and stop of 1F0 1I0 1F1 1I1 1W0 1W1:
    assert held.held_bytes.tolist() == [10, 10, 10, 4, 14, 14, 14, 8, 8, 4, 4, 0]


def test_every_micro_batch_in_flight_but_one_keeps_a_version_of_the_weights():
    timeline = run(async_one_f_one_b(3, 9), uniform(3, 1, 2))
    peaks = [Footprint((0,) * 3, (1,) * 3, version_bytes=(100,) * 3).over_time(timeline, r) for r in range(3)]
    assert [one.peak_bytes for one in peaks] == [203, 102, 1]
    rows = [list(zero_bubble_h1(2, 2).actions(rank)) for rank in range(2)]
    split = run(PipelineSchedule.of_actions("split", rows, flush=False), uniform(2, 1, 2))
    # 1F0 1I0 1F1 1I1 1W0 1W1: two micro-batches before their weight gradient, but never two before their input's.
    assert Footprint((0,) * 2, (1,) * 2, version_bytes=(100,) * 2).over_time(split, 1).peak_bytes == 2
    flushed = run(one_f_one_b(3, 9), uniform(3, 1, 2))
    assert Footprint((0,) * 3, (1,) * 3, version_bytes=(100,) * 3).over_time(flushed, 0).peak_bytes == 3


def test_the_critical_chain_runs_along_the_slowest_device():
    timeline = run(one_f_one_b(3, 20), Durations((1, 5, 1), (2, 10, 2)))
    labels = [event.label for event in critical_chain(timeline)]
    on_slowest = [label for label in labels if label.startswith("1")]
    assert len(on_slowest) == 40
    assert [label for label in labels if not label.startswith("1")] == ["0F0", "0B19"]


def test_the_critical_chain_does_not_jump_to_a_rank_that_happens_to_stop_then():
    # Rank 2 starts its first pass, 1F1, when rank 1 stops its last, 1B0; but it waited for 0F1.
    timeline = run(async_one_f_one_b(2, 2, (1, 2)), Durations((2, 1), (1, 1)))
    assert stamps(timeline)["1B0"][1] == stamps(timeline)["1F1"][0]
    assert [event.label for event in critical_chain(timeline)] == ["0F0", "0F1", "1F1", "1B1", "0B1"]


def test_the_critical_chain_shows_a_synchronisation():
    durations = Durations((1, 1), (1, 1), sync_ns=(5, 30), optimizer_ns=(1, 1))
    chain = critical_chain(run(one_f_one_b(2, 1), durations))
    assert [event.label for event in chain] == ["0F0", "1F0", "1B0", "1S0", "1U0"]
    assert [event.reason for event in chain][-2:] == [Reason.UPDATE, Reason.UPDATE]
