"""The time of a step as executed: what the timeline says, from recursions over passes.

Stages have devices of their own, links carry all transfers at once, and the order of passes on a device is that of
the schedule. Then every pass starts when the device is free and what it needs has arrived, and the step ends when
the last stage has synchronised its gradients, each from its own last backward pass on.

With w_s forward passes of stage s before its first backward pass (1F1B: one more than there are stages behind it),
pair k of a stage is forward pass k + w_s - 1 and then backward pass k. A pair needs pairs before it and of stages
before it or behind it alone, so pairs are gone through in order, forward passes from the front, backward passes
from the back. Under ZB-H1 the backward pass of a pair is the half that the stage before waits for; stage s does
the other half of pair k behind pair k + s, and what is left at its end. ``tests/formulation/executed`` compares
every schedule with the timeline by ``==``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from formulation.executed.chunks import chunks_step_ns
from formulation.executed.pipeline import PipelinePasses
from formulation.problem.training import Schedule, Training


def step_of_training_ns(
    training: Training, passes: PipelinePasses, *, overlapped: bool, warm_ups: Sequence[int] = ()
) -> int:
    """Return the time of one optimiser step under a training's schedule, whose groups may hold several stages.

    ``overlapped``: gradients are summed beside other work, which matters where a group holds several.
    ``warm_ups`` as in :func:`step_ns`, which matter where each holds one; without them the training's own. Raises
    as that does.
    """
    if training.chunks == 1:
        own = (warm_ups or training.warm_ups(passes.stages)) if training.warms_up else ()
        return step_ns(training.schedule, passes, training.micro_batches, own)
    return chunks_step_ns(training, passes, overlapped=overlapped)


def step_ns(schedule: Schedule, passes: PipelinePasses, micro_batches: int, warm_ups: Sequence[int] = ()) -> int:
    """Return the time of one optimiser step under a schedule with a flush.

    ``warm_ups`` are by stage the forward passes before its first backward pass under 1F1B, none above the one
    before it (``Plan.warm_ups``); without them as many as there are stages from this one on. Raises ValueError for
    a schedule without one: nothing ends its steps. Cost: O(stages), under 1F1B and ZB-H1
    times micro-batches.
    """
    if not schedule.flushes:
        raise ValueError(f"a step has no end under {schedule}, which runs on without a flush; ask for its period")
    if schedule is Schedule.NAIVE:
        ends = _naive_ends(passes, micro_batches)
    elif schedule is Schedule.GPIPE:
        ends = _gpipe_ends(passes, micro_batches)
    else:
        ends = one_f_one_b_ends(passes, micro_batches, warm_ups, halves=schedule.in_halves)
    return max(end + sync for end, sync in zip(ends, passes.sync_ns, strict=True))


def _naive_ends(passes: PipelinePasses, micro_batches: int) -> list[int]:
    """Return when each stage has done its last backward pass: one micro-batch after another."""
    down = sum(passes.forward_ns) + sum(passes.activation_ns)
    whole = down + sum(passes.backward_ns) + sum(passes.gradient_ns)
    return [(micro_batches - 1) * whole + down + up for up in _way_back(passes)]


def _gpipe_ends(passes: PipelinePasses, micro_batches: int) -> list[int]:
    """Return the same for F-then-B: each half is a flow shop of equal jobs, paced by its slowest stage so far."""
    turn = sum(passes.forward_ns) + sum(passes.activation_ns) + (micro_batches - 1) * max(passes.forward_ns)
    slowest = list(accumulate(reversed(passes.backward_ns), max))[::-1]
    return [turn + up + (micro_batches - 1) * pace for up, pace in zip(_way_back(passes), slowest, strict=True)]


def _way_back(passes: PipelinePasses) -> list[int]:
    """Return by stage the backward passes and transfers of one micro-batch from the last stage up to it."""
    steps = map(sum, zip(passes.backward_ns, (*passes.gradient_ns, 0), strict=True))
    return list(accumulate(list(steps)[::-1]))[::-1]


def one_f_one_b_ends(
    passes: PipelinePasses, micro_batches: int, warm_ups: Sequence[int] = (), *, halves: bool = False
) -> list[int]:
    """Return when each stage has done its last backward pass under 1F1B; with ``halves`` under ZB-H1."""
    stages = range(passes.stages)
    late = passes.weight_ns if halves and passes.weight_ns else (0,) * passes.stages
    # A pair begins with a forward pass where there is one left, so one fewer comes before the first pair.
    before = [many - 1 for many in warm_ups] or [passes.stages - 1 - stage for stage in stages]
    warmups = [min(many, micro_batches) for many in before]
    forwards: list[list[int]] = []
    free: list[int] = []
    for stage in stages:  # before its first pair a stage does nothing but forward passes
        now, ended = 0, []
        for micro_batch in range(warmups[stage]):
            arrived = forwards[-1][micro_batch] + passes.activation_ns[stage - 1] if stage else 0
            now = max(now, arrived) + passes.forward_ns[stage]
            ended.append(now)
        forwards.append(ended)
        free.append(now)
    for pair in range(micro_batches):
        for stage in stages:
            micro_batch = pair + warmups[stage]
            if micro_batch < micro_batches:
                arrived = forwards[stage - 1][micro_batch] + passes.activation_ns[stage - 1] if stage else 0
                free[stage] = max(free[stage], arrived) + passes.forward_ns[stage]
                forwards[stage].append(free[stage])
        arrived = 0
        for stage in reversed(stages):
            free[stage] = max(free[stage], arrived) + passes.backward_ns[stage] - late[stage]
            arrived = free[stage] + (passes.gradient_ns[stage - 1] if stage else 0)
            free[stage] += late[stage] if pair >= stage else 0
    return [end + min(stage, micro_batches) * late[stage] for stage, end in enumerate(free)]
