"""What holds of every execution, whatever the schedule, the durations and the way they are executed."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.schedules.table import Kind, PipelineSchedule, peak_in_flight
from pipecut.formulation.timeline.critical_path import Reason, critical_chain
from pipecut.formulation.timeline.durations import Contention, Durations, Execution, Transfers
from pipecut.formulation.timeline.measures import Footprint, TimelineMeasures
from pipecut.formulation.timeline.timeline import Timeline, run
from tests.timelines import durations_for, messages, schedules, stamps, timelines, uniform


@given(timelines())
def test_everything_starts_as_soon_as_it_can_and_never_before(timeline: Timeline):
    program, times, execution = timeline.program, timeline.times, timeline.program.execution
    firsts = set(program.offsets)
    for at in range(len(program)):
        assert times.stop_ns[at] == times.start_ns[at] + program.duration[at]
        freed = times.arrive_ns if execution.transfers is Transfers.SENDER else times.stop_ns
        possible = [0] if at in firsts else [int(freed[at - 1])]
        source, gated = program.needs[at], program.gate[at]
        if gated >= 0:
            possible.append(int(freed[gated]))
        if source >= 0 and execution.transfers is Transfers.RECEIVER and program.link[source] >= 0:
            possible.append(int(times.stop_ns[source]))
            assert times.start_ns[at] == times.arrive_ns[source]
            check_departure(timeline, source, max(possible))
        else:
            possible += [int(times.arrive_ns[source])] if source >= 0 else []
            assert times.start_ns[at] == max(possible)
        if program.link[at] >= 0 and execution.transfers is not Transfers.RECEIVER:
            check_departure(timeline, at, int(times.stop_ns[at]))


def check_departure(timeline: Timeline, source: int, asked: int) -> None:
    """A message leaves when asked, or under contention right behind the one before it."""
    times, before = timeline.times, timeline.times.link_before[source]
    if before >= 0:
        asked = max(asked, int(times.arrive_ns[before]))
    assert times.depart_ns[source] == asked
    assert times.arrive_ns[source] == asked + timeline.program.message_ns[source]


@given(timelines())
def test_a_link_under_contention_serves_in_the_order_of_requests(timeline: Timeline):
    program, times = timeline.program, timeline.times
    senders = [at for at in range(len(program)) if program.link[at] >= 0]
    if program.execution.contention is Contention.NONE:
        assert all(times.link_before[at] < 0 for at in senders)
        return
    for link in {int(program.link[at]) for at in senders}:
        queue = sorted((at for at in senders if program.link[at] == link), key=lambda at: times.depart_ns[at])
        assert [int(times.link_before[at]) for at in queue] == [-1, *queue[:-1]]
        if program.execution.transfers is not Transfers.RECEIVER:
            requests = [int(times.stop_ns[at]) for at in queue]
            assert requests == sorted(requests)


@given(timelines())
def test_actions_wait_for_what_they_compute_with(timeline: Timeline):
    found = stamps(timeline)
    last = timeline.schedule.stages - 1
    for token, (start, _) in found.items():
        match = re.fullmatch(r"(\d+)([FBIW])(\d+)", token)
        if match is None:
            continue
        stage, letter, micro_batch = int(match[1]), match[2], match[3]
        if letter == "F":
            needed = [f"{stage - 1}F{micro_batch}"] if stage else []
        elif letter == "W":
            needed = [f"{stage}I{micro_batch}"]
        else:
            above = [f"{stage + 1}{kind}{micro_batch}" for kind in "BI"]
            needed = [f"{stage}F{micro_batch}", *([one for one in above if one in found] if stage < last else [])]
            assert stage == last or len(needed) == 2
        assert all(found[one][1] <= start for one in needed)


@given(timelines())
def test_the_critical_chain_has_no_gap(timeline: Timeline):
    chain = critical_chain(timeline)
    assert chain[0].reason is Reason.START
    assert chain[0].start_ns == 0
    assert chain[-1].stop_ns == timeline.makespan_ns
    assert all(one.stop_ns == other.start_ns for one, other in pairwise(chain))
    found, sent = stamps(timeline), messages(timeline)
    for event in chain:
        assert (sent if event.transfer else found)[event.label] == (event.start_ns, event.stop_ns)
    assert all(event.reason is not Reason.START for event in chain[1:])


@given(timelines())
def test_times_add_up(timeline: Timeline):
    computed, occupied, whole = (
        TimelineMeasures(timeline).compute_ns,
        TimelineMeasures(timeline).occupied_ns,
        timeline.makespan_ns,
    )
    by_hand = [sum(stop - start for _, start, stop in timeline.actions(rank)) for rank in range(len(computed))]
    assert computed == by_hand
    for rank in range(timeline.schedule.ranks):
        assert computed[rank] <= occupied[rank]
        if timeline.schedule.flush:
            assert occupied[rank] <= whole


@given(timelines())
def test_a_device_is_occupied_from_fetching_to_sending(timeline: Timeline):
    program, times, transfers = timeline.program, timeline.times, timeline.program.execution.transfers
    if any(timeline.program.durations.sync_ns + timeline.program.durations.optimizer_ns):
        return
    for rank, occupied in enumerate(TimelineMeasures(timeline).occupied_ns):
        spent = 0
        for at in range(program.offsets[rank], program.offsets[rank + 1]):
            source = int(program.needs[at])
            fetches = transfers is Transfers.RECEIVER and source >= 0 and program.link[source] >= 0
            begins = times.depart_ns[source] if fetches else times.start_ns[at]
            spent += int((times.arrive_ns if transfers is Transfers.SENDER else times.stop_ns)[at] - begins)
        assert occupied == spent


@given(st.data(), st.sampled_from(Transfers), st.booleans(), st.integers(2, 9))
def test_times_scale(data: st.DataObject, transfers: Transfers, overlap: bool, factor: int):
    schedule = data.draw(schedules())
    durations = data.draw(durations_for(schedule.stages))
    for contention in Contention:
        execution = Execution(contention, transfers, overlap)
        scaled = run(schedule, scale(durations, factor), execution)
        assert scaled.makespan_ns == factor * run(schedule, durations, execution).makespan_ns


def scale(durations: Durations, factor: int) -> Durations:
    names = ("forward", "backward", "weight_gradient", "recompute", "sync", "optimizer", "activation", "gradient")
    return replace(
        durations,
        **{f"{name}_ns": tuple(factor * time for time in getattr(durations, f"{name}_ns")) for name in names},
    )


@given(st.data(), st.sampled_from(Transfers), st.booleans())
def test_longer_times_and_contention_never_help(data: st.DataObject, transfers: Transfers, overlap: bool):
    schedule = data.draw(schedules())
    durations = data.draw(durations_for(schedule.stages))
    name = data.draw(st.sampled_from(["forward_ns", "backward_ns", "activation_ns", "gradient_ns", "sync_ns"]))
    times = getattr(durations, name)
    at = data.draw(st.integers(0, max(0, len(times) - 1)))
    longer = replace(durations, **{name: tuple(time + 3 * (one == at) for one, time in enumerate(times))})
    free = run(schedule, durations, Execution(Contention.NONE, transfers, overlap))
    slower = run(schedule, longer, Execution(Contention.NONE, transfers, overlap))
    shared = run(schedule, durations, Execution(Contention.FIFO, transfers, overlap))
    actions = slice(0, len(schedule))
    assert np.all(free.times.stop_ns[actions] <= slower.times.stop_ns[actions])
    assert free.makespan_ns <= slower.makespan_ns
    assert np.all(free.times.stop_ns <= shared.times.stop_ns)


@given(st.data(), st.booleans())
def test_without_two_messages_at_once_contention_changes_nothing(data: st.DataObject, overlap: bool):
    schedule = data.draw(schedules())
    durations = data.draw(durations_for(schedule.stages))
    links = tuple(range(2 * schedule.stages - 2))
    own = replace(
        durations, activation_link=links[: schedule.stages - 1], gradient_link=links[schedule.stages - 1 :]
    )
    if not schedule.flush:
        return  # replicas share the links of their boundaries
    # A device that stands still while it sends has no second message under way.
    free = run(schedule, own, Execution(Contention.NONE, Transfers.SENDER, overlap))
    shared = run(schedule, own, Execution(Contention.FIFO, Transfers.SENDER, overlap))
    assert free.times.stop_ns.tolist() == shared.times.stop_ns.tolist()
    assert free.times.arrive_ns.tolist() == shared.times.arrive_ns.tolist()


@given(schedules())
def test_a_schedule_without_durations_takes_no_time(schedule: PipelineSchedule):
    timeline = run(schedule, uniform(schedule.stages, 0, 0))
    assert timeline.makespan_ns == 0
    assert TimelineMeasures(timeline).bubble_of_total == 0
    assert critical_chain(timeline)[0].reason is Reason.START


@given(timelines())
def test_the_peak_is_the_most_in_flight(timeline: Timeline):
    schedule = timeline.schedule
    for stage, count in enumerate(peak_in_flight(schedule)):
        stash = tuple(int(one == stage) for one in range(schedule.stages))
        nothing = (0,) * schedule.stages
        peaks = [
            Footprint(nothing, stash).over_time(timeline, rank).peak_bytes for rank in schedule.stage_ranks[stage]
        ]
        assert max(peaks) == count


@given(timelines(), st.data())
def test_memory_is_what_has_started_and_not_stopped(timeline: Timeline, data: st.DataObject):
    schedule = timeline.schedule
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    static = tuple(data.draw(st.integers(0, 9)) for _ in range(schedule.stages))
    stash = tuple(data.draw(st.integers(0, 9)) for _ in range(schedule.stages))
    held = Footprint(static, stash).over_time(timeline, rank)
    now = data.draw(st.sampled_from(held.time_ns.tolist()))
    at_last = held.held_bytes[np.flatnonzero(held.time_ns == now)[-1]]
    expected = sum(static[stage] for stage, ranks in enumerate(schedule.stage_ranks) if rank in ranks)
    for action, start, stop in timeline.actions(rank):
        if action.kind is Kind.FORWARD and start <= now:
            expected += stash[action.stage]
        if action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT) and stop <= now:
            expected -= stash[action.stage]
    assert at_last == expected
