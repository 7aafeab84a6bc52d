"""Groups that hold several stages, as executed: what a step takes, and what a rank keeps of each of its chunks.

Ranks hold their stages as ``Training.stages_of`` says, in Megatron's interleaved order or laid as a V
(``formulation.schedules``). The order of the passes of a rank does not depend on any time. So each pass starts
when the pass before it on its rank has ended and what it needs has arrived, and what a rank keeps after so many of
its passes is known before anything is priced. ``tests/formulation/executed/test_chunks.py`` compares both with the
timeline by ``==``.

The passes of a pipeline in whole nanoseconds: all that its executed times depend on.

The period of 1F1B without a flush as executed: exact, with the synchronisation of weights.

Pair k of stage s is forward pass k + w_s and then backward pass k, with w_s the stages behind it. Far from the
start every pair comes one period after the one before it, on average: the *maximum cycle mean* of what waits for
what (Baccelli et al., Synchronization and Linearity, 1992). The recursion from pair to pair is run as often as it
has places, and Karp's formula read off (Karp, Discrete Mathematics 23, 1978), in whole numbers.

Weights are updated after every M micro-batches. A synchronisation that is charged keeps its device from the next
pass. One that is overlapped runs beside them, and the stage waits for it only where it takes longer than the next
M micro-batches: then it alone sets the pace of its stage.

The time of a step as executed: what the timeline says, from recursions over passes.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import ceil

from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.schedules.catalogue import in_chunks
from pipecut.formulation.schedules.table import Kind


@dataclass(frozen=True, slots=True)
class PipelinePasses:
    """Times in ns, by stage: forward and backward pass (with what it computes again), synchronisation of a step.

    ``weight_ns`` is what of the backward pass is for the gradients of weights, where that is a pass of its own.
    ``activation_ns`` and ``gradient_ns`` are the transfers over the boundary behind each stage but the last. Links
    carry any number of transfers at once, each at full speed (``Contention.NONE`` of the timeline).
    """

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    sync_ns: tuple[int, ...]
    activation_ns: tuple[int, ...]
    gradient_ns: tuple[int, ...]
    weight_ns: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.forward_ns)

    def fetched(self) -> PipelinePasses:
        """Return the same with devices that stand still while they fetch what they receive.

        Fetching begins when a device comes to the pass and the tensor is there, so it is a part of that pass.
        """
        forward = map(sum, zip(self.forward_ns, (0, *self.activation_ns), strict=True))
        backward = map(sum, zip(self.backward_ns, (*self.gradient_ns, 0), strict=True))
        nothing = (0,) * (self.stages - 1)
        return replace(
            self,
            forward_ns=tuple(forward),
            backward_ns=tuple(backward),
            activation_ns=nothing,
            gradient_ns=nothing,
        )


KNOWN = 32
"""Orders that are remembered: a search prices many plans of one."""
IN_ROUNDS = (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.NAIVE, Schedule.ZERO_BUBBLE_H1)
"""Schedules of which :func:`step_ns` knows the step by what comes again; others are gone through pass by pass."""
Pass = tuple[int, int, int]
"""Stage, the number of the kind (members of enumerations are slow keys), and micro-batch."""


def chunks_step_ns(training: Training, passes: PipelinePasses, *, overlapped: bool) -> int:
    """Return the time of one optimiser step, pass by pass, whose groups share the stages of ``passes`` evenly.

    ``overlapped``: the gradients of a stage are summed from its last backward pass on, one stage of a rank after
    another; else of all stages of a rank when it has done all passes. Raises ScheduleError for micro-batches that
    the order does not take. Cost: linear in passes.
    """
    stages, micro_batches = passes.stages, training.micro_batches
    ranks = training.ranks(stages)
    arrived = [[0] * micro_batches for _ in range(stages + 1)]
    returned = [[0] * micro_batches for _ in range(stages + 1)]
    free, last = [0] * ranks, [0] * stages
    activation, gradient = (*passes.activation_ns, 0), (0, *passes.gradient_ns)
    weights = passes.weight_ns if training.schedule.in_halves and passes.weight_ns else (0,) * stages
    on = [training.rank_of(stage, stages) for stage in range(stages)]
    for stage, kind, micro_batch in in_turn(training.schedule, ranks, training.chunks, micro_batches):
        rank = on[stage]
        if kind == Kind.FORWARD:
            ended = max(free[rank], arrived[stage][micro_batch]) + passes.forward_ns[stage]
            arrived[stage + 1][micro_batch] = ended + activation[stage]
        elif kind == Kind.WEIGHT_GRADIENT:
            last[stage] = ended = free[rank] + weights[stage]
        else:
            own = passes.backward_ns[stage] - weights[stage]
            last[stage] = ended = max(free[rank], returned[stage + 1][micro_batch]) + own
            returned[stage][micro_batch] = ended + gradient[stage]
        free[rank] = ended
    begun = [0] * ranks if overlapped else free
    for stage in sorted(range(stages), key=last.__getitem__):
        # The stages of a rank are synchronised one after another, the first one that is done first.
        begun[on[stage]] = max(begun[on[stage]], last[stage]) + passes.sync_ns[stage]
    return max(begun)


@lru_cache(maxsize=KNOWN)
def in_turn(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> tuple[Pass, ...]:
    """Return all passes of a step, each behind those that it waits for."""
    rows = _rows(schedule, ranks, chunks, micro_batches)
    done: dict[tuple[int, bool, int], None] = {}
    found: list[Pass] = []
    places = [0] * ranks
    while len(found) < sum(map(len, rows)):
        for rank, row in enumerate(rows):
            while places[rank] < len(row) and _ready(row[places[rank]], done, ranks * chunks):
                stage, kind, micro_batch = row[places[rank]]
                found.append(row[places[rank]])
                if kind != Kind.WEIGHT_GRADIENT:
                    done[stage, kind == Kind.FORWARD, micro_batch] = None
                places[rank] += 1
    return tuple(found)


def _rows(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> list[list[Pass]]:
    """Return the passes of each rank in its order."""
    table = in_chunks(schedule, ranks, chunks, micro_batches)
    columns = (table.stage, table.kind, table.micro_batch)
    passes: list[Pass] = list(zip(*(one.tolist() for one in columns), strict=True))
    return [passes[table.row(rank)] for rank in range(ranks)]


def _ready(one: Pass, done: dict[tuple[int, bool, int], None], stages: int) -> bool:
    stage, kind, micro_batch = one
    if kind == Kind.FORWARD:
        return stage == 0 or (stage - 1, True, micro_batch) in done
    if kind == Kind.WEIGHT_GRADIENT:
        return (stage, False, micro_batch) in done
    return (stage, True, micro_batch) in done and (stage == stages - 1 or (stage + 1, False, micro_batch) in done)


@lru_cache(maxsize=KNOWN)
def most_kept(
    schedule: Schedule, ranks: int, chunks: int, micro_batches: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return for each rank how many micro-batches it keeps of its chunks, at the moments that can be worst.

    Each entry has a number for each chunk, from the first, of those that were forwarded and not yet taken back;
    with backward passes in halves then also for each chunk of those of which the first half has begun and the
    second is not done. Whatever a micro-batch of each chunk takes, the largest sum over all moments of the step is
    that of one of the entries: at no moment is as much or more kept of everything. Raises ScheduleError as
    :func:`chunks_step_ns` does. Cost: linear in passes times chunks, and quadratic in the entries.
    """
    found = []
    for row in _rows(schedule, ranks, chunks, micro_batches):
        held, seen = [0] * chunks * (2 if schedule.in_halves else 1), dict[tuple[int, ...], None]()
        for stage, kind, _ in row:
            chunk = stage // ranks
            if kind in (Kind.FORWARD, Kind.INPUT_GRADIENT):
                held[chunk + chunks * (kind == Kind.INPUT_GRADIENT)] += 1
                seen[tuple(held)] = None
            else:
                held[chunk] -= 1
            if kind == Kind.WEIGHT_GRADIENT:
                held[chunk + chunks] -= 1
        found.append(tuple(_largest(list(seen))))
    return tuple(found)


def _largest(rows: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield the rows that no other one reaches in every place."""
    for row in rows:
        above = (other for other in rows if other != row)
        if not any(all(one <= more for one, more in zip(row, other, strict=True)) for other in above):
            yield row


def period_ns(passes: PipelinePasses, micro_batches: int, *, overlapped: bool) -> int:
    """Return the period of a micro-batch in ns, rounded up to a whole one.

    ``micro_batches`` is how many lie between two updates of the weights; ``overlapped``: their synchronisation
    hides behind other work. Cost: O(stages**2), times the micro-batches where a synchronisation is charged.
    """
    return ceil(exact_period_ns(passes, micro_batches, overlapped=overlapped))


def exact_period_ns(passes: PipelinePasses, micro_batches: int, *, overlapped: bool) -> Fraction:
    """Return the same to the last fraction of a nanosecond."""
    if overlapped:
        alone = Fraction(max(passes.sync_ns), micro_batches)
        return max(alone, _cycle_mean(passes, (0,) * passes.stages, 1))
    return _cycle_mean(passes, passes.sync_ns, micro_batches if any(passes.sync_ns) else 1)


def _cycle_mean(passes: PipelinePasses, sync_ns: tuple[int, ...], micro_batches: int) -> Fraction:
    """Return the maximum cycle mean of rounds of so many pairs, for each pair."""
    places = 2 * passes.stages
    rows = [[0] * places]
    for _ in range(places):
        rows.append(_round(passes, sync_ns, micro_batches, rows[-1]))
    ways = zip(*rows, strict=True)
    means = (min(Fraction(way[-1] - way[at], places - at) for at in range(places)) for way in ways)
    return max(means) / micro_batches


def _round(passes: PipelinePasses, sync_ns: tuple[int, ...], micro_batches: int, before: list[int]) -> list[int]:
    """Return when forward passes end and when devices are free after one more round, two places a stage."""
    forward, free = before[: passes.stages], before[passes.stages :]
    for _ in range(micro_batches):
        arrived = [0, *map(sum, zip(forward, passes.activation_ns, strict=False))]
        arrived[0] = free[0]
        forward = [max(ways) + own for *ways, own in zip(free, arrived, passes.forward_ns, strict=True)]
        back = 0
        free = [0] * passes.stages
        for stage in reversed(range(passes.stages)):
            free[stage] = max(forward[stage], back) + passes.backward_ns[stage]
            back = free[stage] + (passes.gradient_ns[stage - 1] if stage else 0)
    return forward + [one + sync for one, sync in zip(free, sync_ns, strict=True)]


def step_of_training_ns(
    training: Training, passes: PipelinePasses, *, overlapped: bool, warm_ups: Sequence[int] = ()
) -> int:
    """Return the time of one optimiser step under a training's schedule, whose groups may hold several stages.

    ``overlapped``: gradients are summed beside other work, which matters where a group holds several.
    ``warm_ups`` as in :func:`step_ns`, which matter where each holds one; without them the training's own. Raises
    as that does.
    """
    schedule = training.schedule
    if training.chunks == 1 and (schedule in IN_ROUNDS or not schedule.flushes):
        own = (warm_ups or training.warm_ups(passes.stages)) if training.warms_up else ()
        return step_ns(schedule, passes, training.micro_batches, own)
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
