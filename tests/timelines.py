"""Hypothesis strategies for schedules, durations and timelines, and what happened in one, by token."""

from __future__ import annotations

from hypothesis import strategies as st

from pipecut.formulation.schedules.async_one_f_one_b import async_one_f_one_b
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.naive import naive
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.timeline.durations import Contention, Durations, Execution, Transfers
from pipecut.formulation.timeline.timeline import Timeline, run

NANOSECONDS = st.integers(0, 12)
ONE_RANK_EACH = (naive, gpipe, one_f_one_b, zero_bubble_h1)
executions = st.builds(
    Execution,
    contention=st.sampled_from(Contention),
    transfers=st.sampled_from(Transfers),
    overlap_sync=st.booleans(),
    updates_every=st.integers(1, 3),
)


@st.composite
def schedules(draw: st.DrawFn) -> PipelineSchedule:
    """Any schedule of up to 4 stages, interleaved and replicated ones too."""
    which = draw(st.integers(0, 5))
    if which == 4:
        ranks = draw(st.integers(1, 3))
        return interleaved(ranks, draw(st.integers(1, 2)), ranks * draw(st.integers(1, 2)))
    if which == 5:
        replicas = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        return async_one_f_one_b(len(replicas), draw(st.integers(1, 9)), replicas)
    return ONE_RANK_EACH[which](draw(st.integers(1, 4)), draw(st.integers(1, 6)))


@st.composite
def durations_for(draw: st.DrawFn, stages: int) -> Durations:
    """Durations with transfers over few shared links, recomputation, synchronisation and optimiser."""

    def times(count: int) -> tuple[int, ...]:
        return tuple(draw(NANOSECONDS) for _ in range(count))

    def links() -> tuple[int, ...]:
        return tuple(draw(st.integers(0, 2)) for _ in range(stages - 1))

    halves = times(stages), times(stages)
    return Durations(
        forward_ns=times(stages),
        backward_ns=tuple(one + other for one, other in zip(*halves, strict=True)),
        weight_gradient_ns=halves[0],
        recompute_ns=times(stages),
        sync_ns=times(stages) if draw(st.booleans()) else (),
        optimizer_ns=times(stages) if draw(st.booleans()) else (),
        activation_ns=times(stages - 1),
        gradient_ns=times(stages - 1),
        activation_link=links(),
        gradient_link=links(),
    )


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    schedule = draw(schedules())
    return run(schedule, draw(durations_for(schedule.stages)), draw(executions))


def stamps(timeline: Timeline) -> dict[str, tuple[int, int]]:
    """Start and stop by token, of everything."""
    found = {
        str(action): (start, stop)
        for rank in range(timeline.schedule.ranks)
        for action, start, stop in timeline.actions(rank)
    }
    return found | {one.label: (one.start_ns, one.stop_ns) for one in timeline.updates()}


def messages(timeline: Timeline) -> dict[str, tuple[int, int]]:
    return {one.label: (one.start_ns, one.stop_ns) for one in timeline.transfers()}


def uniform(stages: int, forward_ns: int, backward_ns: int, transfer_ns: int = 0) -> Durations:
    """Return durations of equal stages; every boundary takes ``transfer_ns`` in either direction."""
    boundaries = (transfer_ns,) * (stages - 1)
    return Durations(
        (forward_ns,) * stages, (backward_ns,) * stages, activation_ns=boundaries, gradient_ns=boundaries
    )
