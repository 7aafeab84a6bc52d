"""Groups that hold several stages, as executed: what a step takes, and what a rank keeps of each of its chunks.

Ranks hold their stages as ``Training.stages_of`` says, in Megatron's interleaved order or laid as a V
(``formulation.schedules``). The order of the passes of a rank does not depend on any time. So each pass starts
when the pass before it on its rank has ended and what it needs has arrived, and what a rank keeps after so many of
its passes is known before anything is priced. ``tests/formulation/executed/test_chunks.py`` compares both with the
timeline by ``==``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from formulation.executed.pipeline import PipelinePasses
from formulation.problem.training import Schedule, Training
from formulation.schedules.actions import Kind
from formulation.schedules.catalogue import in_chunks

KNOWN = 32
"""Orders that are remembered: a search prices many plans of one."""
Pass = tuple[int, int, int]
"""Stage, the number of the kind (members of enumerations are slow keys), and micro-batch."""


def chunks_step_ns(training: Training, passes: PipelinePasses, *, overlapped: bool) -> int:
    """Return the time of one optimiser step whose groups share the stages of ``passes`` evenly.

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
