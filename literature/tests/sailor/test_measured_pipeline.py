"""1F1B with messages that hold both ends, against a plain simulation of two-sided messages."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import ScheduleError
from pipecut.formulation.timeline.durations import Durations
from pipecut.formulation.timeline.measures import uniform_iteration_ns
from pipecut.formulation.timeline.timeline import run
from pipecut.report.simulation import naive_iteration_ns
from pipecut_literature.sailor.time import blocking_pipeline_ns
from tests.laws import so_many

TIMES = st.integers(0, 40)


@st.composite
def pipelines(draw):
    stages = draw(st.integers(1, 5))
    lists = [
        draw(st.lists(TIMES, min_size=size, max_size=size)) for size in (stages, stages, stages - 1, stages - 1)
    ]
    forward, backward, activation, gradient = map(tuple, lists)
    return Durations(forward, backward, activation_ns=activation, gradient_ns=gradient), draw(st.integers(1, 8))


def steps_of(stage: int, stages: int, micro_batches: int) -> list[tuple]:
    """The passes of a stage as (kind, micro-batch), messages between them as (kind, boundary, micro-batch)."""
    warmup = min(stages - stage - 1, micro_batches)
    passes: list[tuple] = [("F", m) for m in range(warmup)]
    for m in range(micro_batches):
        passes += [("F", m + warmup)] * (m + warmup < micro_batches) + [("B", m)]
    steps: list[tuple] = []
    for before, now in zip([None, *passes], [*passes, None], strict=True):
        given = before and (before[0], stage if before[0] == "F" else stage - 1, before[1])
        taken = now and (now[0], stage - 1 if now[0] == "F" else stage, now[1])
        messages = [one for one in (given, taken) if one and 0 <= one[1] < stages - 1]
        steps += messages[::-1] if before and now and before[0] + now[0] == "BF" else messages
        steps += [now] if now else []
    return steps


def rendezvous(durations: Durations, micro_batches: int) -> int:
    """Each device does its list in order; a message starts when both have come to it, and holds both."""
    stages = range(durations.stages)
    lists = [steps_of(stage, durations.stages, micro_batches) for stage in stages]
    clock = [0 for _ in stages]
    pass_ns = {"F": durations.forward_ns, "B": durations.backward_ns}
    message_ns = {"F": durations.activation_ns, "B": durations.gradient_ns}
    while any(lists):
        at_door: dict[tuple, list[int]] = {}
        for stage in stages:
            while lists[stage] and len(lists[stage][0]) == 2:
                clock[stage] += pass_ns[lists[stage].pop(0)[0]][stage]
            for message in lists[stage][:1]:
                at_door.setdefault(message, []).append(stage)
        for (kind, boundary, _), ends in at_door.items():
            if len(ends) == 2:
                clock[ends[0]] = clock[ends[1]] = max(clock[end] for end in ends) + message_ns[kind][boundary]
                for end in ends:
                    lists[end].pop(0)
    return max(clock)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(150))
@given(pipelines())
def test_the_program_does_what_two_sided_messages_do(case):
    durations, micro_batches = case
    assert blocking_pipeline_ns(durations, micro_batches) == rendezvous(durations, micro_batches)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(100))
@given(pipelines())
def test_waiting_for_messages_never_helps(case):
    durations, micro_batches = case
    overlapped = run(one_f_one_b(durations.stages, micro_batches), durations).makespan_ns
    found = blocking_pipeline_ns(durations, micro_batches)
    assert overlapped <= found <= naive_iteration_ns(durations, micro_batches)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 5), (3, 1), (3, 2), (4, 9)])
def test_without_messages_it_is_plain_1f1b(stages, micro_batches):
    durations = Durations((3,) * stages, (5,) * stages)
    assert blocking_pipeline_ns(durations, micro_batches) == uniform_iteration_ns(stages, micro_batches, 3, 5)


def test_a_stage_between_two_others_pays_for_four_messages():
    # Far from both ends a micro-batch takes a middle stage f + b and four messages, two with either neighbour.
    durations = Durations((10,) * 3, (20,) * 3, activation_ns=(2,) * 2, gradient_ns=(3,) * 2)
    assert blocking_pipeline_ns(durations, 40) - blocking_pipeline_ns(durations, 30) == 10 * (30 + 2 * (2 + 3))


def test_no_micro_batch_is_no_schedule():
    with pytest.raises(ScheduleError, match="micro_batches is 0"):
        blocking_pipeline_ns(Durations((1,), (1,)), 0)
