"""What a step takes at least: chains of passes that wait for one another, before, on and behind one rank.

A path goes down to a pass of rank r, stays on the rank for all its passes up to another one, and goes on from
there to the end of the step. Each of its passes begins when the one before it has ended, or later: either the
rank does them in this order, or the next one needs what was made. So whatever the times are, the sum over a path
is never more than the step takes. There are two ways to begin and two ways to end:

* with the first pass of rank r, forward of micro-batch 0 at stage r, behind those of the stages before it; or
  with its first backward pass, of micro-batch 0 at its last stage, which waits for all forward passes of that
  micro-batch and for the backward passes of the stages behind;
* with the last pass of rank r, backward of the last micro-batch at stage r, and then back through the stages
  before it; or with its last forward pass, of the last micro-batch at its last stage, which has then to go
  forward through the stages behind, and all the way back.

Each ends at any rank on the way back whose last pass the way has come to, and with what that rank synchronises: of
all its stages where that waits for all passes, and at least of its first stage, whose pass this was.

Of a plan that was executed there is one path more: its critical one, which has exactly the time of the step. It
is a path of every other plan, too. Where stages synchronise beside other work, one after another as their last
passes end, the order of these passes is that of the rank, whatever the times are.

Of stages that are laid as a V all paths are such: to begin with the critical ones of made-up times, in which every
stage takes as long, or those of one rank take most, with long or with short gradients of weights.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from pipecut.formulation.executed import PipelinePasses, in_turn
from pipecut.formulation.limits import NEVER, Deadline, in_time
from pipecut.formulation.problem.training import Training
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.table import Kind

KNOWN = 16
LONG = 1 << 30
"""A time beside which others count for nothing."""
NAMES = ("forward", "backward", "backward", "weight")
"""What passes are called in a path, by the number of their kind."""
FORWARD, INPUT_GRADIENT = int(Kind.FORWARD), int(Kind.INPUT_GRADIENT)


@dataclass(frozen=True, slots=True)
class ChunkPath:
    """How often each stage's passes, its synchronisation and the transfers behind it lie on a path.

    ``rank`` is the rank that does most of the passes. ``weight`` counts second halves of backward passes, and
    ``backward`` first halves or whole ones.
    """

    rank: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    sync: tuple[int, ...]
    activation: tuple[int, ...]
    gradient: tuple[int, ...]

    @property
    def often(self) -> tuple[int, ...]:
        """How often everything lies on the path: its fields one after another, each by stage or boundary."""
        rows = (self.forward, self.backward, self.weight, self.sync, self.activation, self.gradient)
        return tuple(itertools.chain.from_iterable(rows))


Steps = Counter[tuple[str, int]]
Pass = tuple[int, int, int]
"""Stage, number of the kind, and micro-batch, as ``in_turn`` has them."""


def paths(training: Training, stages: int, overlapped: bool, deadline: Deadline = NEVER) -> tuple[ChunkPath, ...]:
    """Return the paths of any step. Cost: linear in its passes, for every path; interleaved, in stages for each.

    Raises StoppedError after the deadline.
    """
    if not training.schedule.in_a_v:
        return _interleaved_paths(training, stages, overlapped)
    rows = in_time(itertools.product(range(-1, training.ranks(stages)), (True, False)), deadline)
    return tuple(dict.fromkeys(_of_made_up(training, stages, overlapped, *row) for row in rows))


@lru_cache(maxsize=KNOWN)
def _interleaved_paths(training: Training, stages: int, overlapped: bool) -> tuple[ChunkPath, ...]:
    ranks = training.ranks(stages)
    schedule = interleaved(ranks, training.chunks, training.micro_batches)
    found: list[ChunkPath] = []
    for rank in range(ranks):
        part = schedule.row(rank)
        row = [
            ("forward" if kind == Kind.FORWARD else "backward", stage)
            for kind, stage in zip(schedule.kind[part].tolist(), schedule.stage[part].tolist(), strict=True)
        ]
        first_backward = next(at for at, (kind, _) in enumerate(row) if kind == "backward")
        last_forward = max(at for at, (kind, _) in enumerate(row) if kind == "forward")
        last = stages - ranks + rank
        heads = ((0, _down(0, rank)), (first_backward, _down(0, stages) + _up(stages, last + 1, stages)))
        for begin, head in heads:
            for stop, tails in (
                (len(row) - 1, _ends(rank, rank, stages)),
                (last_forward, _round(last, ranks, stages)),
            ):
                if begin <= stop:
                    middle = head + Counter(row[begin : stop + 1])
                    found += [
                        _path(rank, middle + tail + _synchronised(end, ranks, stages, overlapped), stages)
                        for end, tail in tails
                    ]
    return tuple(found)


def _down(first: int, stop: int) -> Steps:
    """Return forward passes from a stage to before another one, and what each sends on."""
    return Counter({(kind, at): 1 for at in range(first, stop) for kind in ("forward", "activation")})


def _up(above: int, stop: int, stages: int) -> Steps:
    """Return backward passes of the stages before ``above`` back to ``stop``, and what each sends on."""
    passes = {("backward", at): 1 for at in range(stop, min(above, stages))}
    return Counter(passes | {("gradient", at - 1): 1 for at in range(max(1, stop), min(above, stages))})


def _ends(rank: int, above: int, stages: int) -> Iterator[tuple[int, Steps]]:
    """Yield the ways from behind the last pass of a rank back to each rank before it."""
    for end in range(rank, -1, -1):
        steps = _up(above, end, stages)
        steps.pop(("gradient", end - 1), None)
        if rank > end:
            steps["gradient", rank - 1] = 1
        yield end, steps


def _round(last: int, ranks: int, stages: int) -> Iterator[tuple[int, Steps]]:
    """Yield the ways from behind the last forward pass of a rank to the end of the pipeline, and back."""
    onward: Steps = Counter({("activation", at): 1 for at in range(last, stages)})
    onward.update({("forward", at): 1 for at in range(last + 1, stages)})
    for end in range(ranks - 1, -1, -1):
        steps = _up(stages, end, stages)
        steps.pop(("gradient", end - 1), None)
        yield end, onward + steps


def _synchronised(end: int, ranks: int, stages: int, overlapped: bool) -> Steps:
    """Return what a rank synchronises behind its last pass: all its stages, or at least the one of this pass."""
    return Counter({("sync", at): 1 for at in ([end] if overlapped else range(end, stages, ranks))})


def _path(rank: int, steps: Steps, stages: int) -> ChunkPath:
    def row(kind: str) -> tuple[int, ...]:
        return tuple(steps[kind, at] for at in range(stages - (kind in ("activation", "gradient"))))

    passes = row("forward"), row("backward"), row("weight")
    return ChunkPath(rank, *passes, row("sync"), row("activation"), row("gradient"))


@lru_cache(maxsize=16 * KNOWN)
def _of_made_up(training: Training, stages: int, overlapped: bool, busy: int, late: bool) -> ChunkPath:
    """Return the critical path of times in which the passes of one rank are much longer than those of others.

    Of no rank where ``busy`` is none. ``late``: gradients of weights take as long as other passes, or nothing.
    """
    own = tuple(LONG if training.rank_of(at, stages) == busy else 1 for at in range(stages))
    nothing, whole = (0,) * (stages - 1), tuple(one * (1 + late) for one in own)
    passes = PipelinePasses(own, whole, (1,) * stages, nothing, nothing, own if late else ())
    return critical_path(training, passes, overlapped=overlapped)


def critical_path(training: Training, passes: PipelinePasses, *, overlapped: bool) -> ChunkPath:
    """Return a path that takes as long as the step does. Cost: linear in its passes."""
    stages, spent = passes.stages, _spent(passes)
    on = [training.rank_of(stage, stages) for stage in range(stages)]
    ranks = training.ranks(stages)
    ends: dict[Pass, int] = {}
    waited: dict[Pass, tuple[Pass | None, bool]] = {}
    free: list[Pass | None] = [None] * ranks
    last: dict[int, Pass] = {}
    for one in in_turn(training.schedule, ranks, training.chunks, training.micro_batches):
        stage, kind, _ = one
        before, needed = free[on[stage]], _needed(one, stages)
        arrived = 0 if needed is None else ends[needed] + _sent_ns(passes, needed, one)
        begun = 0 if before is None else ends[before]
        sent = needed is not None and arrived > begun
        ends[one] = max(begun, arrived) + spent[kind][stage]
        waited[one] = (needed, needed is not None and needed[0] != stage) if sent else (before, False)
        free[on[stage]] = one
        # By the order of the last passes of stages, which on one rank is the same whatever the times are.
        last.pop(stage, None)
        last[stage] = one
    done = [[one for one in last.values() if on[one[0]] == rank] for rank in range(ranks)]
    found = (_end(passes, ends, row if overlapped else [row[-1]], row) for row in done)
    _, at, steps = max(found, key=lambda one: one[0])
    busy: Counter[int] = Counter()
    while at is not None:
        steps[NAMES[at[1]], at[0]] += 1
        busy[on[at[0]]] += 1
        at, crossed = waited[at]
        if crossed and at is not None:
            steps[("activation", at[0]) if at[1] == Kind.FORWARD else ("gradient", at[0] - 1)] += 1
    return _path(busy.most_common(1)[0][0], steps, stages)


def _spent(passes: PipelinePasses) -> tuple[tuple[int, ...], ...]:
    """Return how long passes take, by the number of their kind and by stage."""
    late = passes.weight_ns or (0,) * passes.stages
    first = tuple(whole - own for whole, own in zip(passes.backward_ns, late, strict=True))
    return passes.forward_ns, first, first, late


def _needed(one: Pass, stages: int) -> Pass | None:
    """Return the pass whose result another one takes."""
    stage, kind, micro_batch = one
    if kind == Kind.FORWARD:
        return (stage - 1, kind, micro_batch) if stage else None
    if kind == Kind.WEIGHT_GRADIENT:
        return stage, INPUT_GRADIENT, micro_batch
    return (stage, FORWARD, micro_batch) if stage == stages - 1 else (stage + 1, kind, micro_batch)


def _sent_ns(passes: PipelinePasses, needed: Pass, one: Pass) -> int:
    if needed[0] == one[0]:
        return 0
    return passes.activation_ns[needed[0]] if one[1] == Kind.FORWARD else passes.gradient_ns[one[0]]


def _end(
    passes: PipelinePasses, ends: dict[Pass, int], waits: list[Pass], last: list[Pass]
) -> tuple[int, Pass, Steps]:
    """Return when a rank has synchronised all its stages, the pass that it last waits for, and what follows.

    ``last`` are the last passes of its stages in their order, ``waits`` those that synchronisations wait for: each
    its own, or all the last one.
    """
    now, begun, steps = 0, last[-1], Counter[tuple[str, int]]()
    for at, one in enumerate(last):
        wait = waits[min(at, len(waits) - 1)]
        if ends[wait] >= now:
            now, begun, steps = ends[wait], wait, Counter()
        now += passes.sync_ns[one[0]]
        steps["sync", one[0]] += 1
    return now, begun, steps
