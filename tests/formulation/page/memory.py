"""docs/formulation.md, "Memory of a stage"."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.training import Schedule, Training
from tests.formulation.page.chunks import kept, on
from tests.formulation.page.numbers import Numbers
from tests.formulation.page.stages import PricedStage


def warm_up(training: Training, behind: int, own: int | None) -> int:
    """omega_s; ``behind`` is S - s, ``own`` what the plan says."""
    if own is not None:
        return own
    if isinstance(training.warm_up, tuple):
        listed = [training.warm_up[0]] * behind + list(training.warm_up)
        return min(listed[-behind], training.micro_batches)
    return min(2 * behind - 1 if training.warm_up == "eager" else behind, training.micro_batches)


def in_flight(stage: PricedStage, behind: int) -> int:
    """Micro-batches in flight at a stage; ``behind`` is S - s."""
    training = stage.numbers.training
    return {
        Schedule.NAIVE: 1,
        Schedule.GPIPE: training.micro_batches,
        Schedule.ZERO_BUBBLE_H1: min(len(stage.plan.stages), training.micro_batches),
        Schedule.ONE_F_ONE_B: warm_up(training, behind, stage.plan.stages[stage.index].warm_up),
        Schedule.ASYNC_ONE_F_ONE_B: behind,
        Schedule.DOUBLE_BUFFERED: behind,
    }[training.schedule]


def versions(schedule: Schedule, behind: int) -> int:
    """Versions of the weights that a stage keeps."""
    return {Schedule.ASYNC_ONE_F_ONE_B: behind, Schedule.DOUBLE_BUFFERED: 2}.get(schedule, 1)


def lent(stage: PricedStage, layer: int) -> int:
    """lent_l of the layers that a stage computes again, undivided."""
    if stage.recompute != "layers" or stage.run_of(layer) is not None:
        return 0
    numbers, named = stage.numbers, stage.numbers.again
    out = [(v, size) for u, v, size in numbers.edges if u == layer and (v in named) != (layer in named)]
    if layer in named:
        read = {v: sum(size for _, w, size in numbers.edges if w == v) for v, _ in out}
        out = [(v, size) for v, size in out if numbers.stash[v] < read[v]]
    return min(numbers.made[layer], sum(size for _, size in out))


def _lent_by_runs(stage: PricedStage, layer: int) -> int:
    """lent_l of a stage that computes some blocks again, undivided."""
    numbers = stage.numbers
    if not stage.runs:
        return 0
    out = [(v, size) for u, v, size in numbers.edges if u == layer and v in stage.layers]
    read = {v: sum(size for _, w, size in numbers.edges if w == v) for v, _ in out}
    counting = [v for v, _ in out if stage.run_of(v) is None and numbers.stash[v] >= read[v]]
    out = [(v, size) for v, size in out if v < min(counting, default=len(numbers.layers))]
    own = stage.run_of(layer)
    needs = [sum(size for v, size in out if v in run) for run in stage.runs if run != own]
    needs += [size for v, size in out if own is not None and stage.run_of(v) is None]
    return min(numbers.made[layer], max(needs, default=0))


@dataclass(frozen=True)
class Parts:
    """What a stage holds: whatever runs, for each micro-batch in flight, of those taken back, at work."""

    fixed: int
    waiting: int
    again: int
    working: int


def parts(stage: PricedStage, copies: int) -> Parts:
    """The parts of a stage that keeps so many versions of its weights."""
    numbers = stage.numbers
    fixed = waiting = again = 0
    halves = numbers.training.schedule in (Schedule.ZERO_BUBBLE_H1, Schedule.ZERO_BUBBLE_V)
    working: dict[int, int] = {}
    rerun: dict[int, int] = {}
    for layer in stage.layers:
        matrix = numbers.layers[layer].split is Split.MATRIX
        follows = numbers.layers[layer].split is Split.FOLLOW
        held, among = stage.held(layer), stage.holders(layer)
        weights, gradients, _, optimizer = stage.sizes(layer)
        shared = [among if stage.divided >= least else 1 for least in (3, 2, 1)]
        whole = {2} if matrix else {1, 7} if follows else {1}
        rows = (0, 4, 5) if matrix else (0, 3, 5)
        taken, made = stage.lies(layer, whole, rows), stage.lies(layer, {1, 7})
        used, added = (
            (stage.lies(layer, whole | {4}, rows), stage.lies(layer, {1, 7, 3})) if matrix else (taken, made)
        )
        fixed += copies * ceil(held * weights / shared[0])
        fixed += ceil(held * gradients / shared[1])
        fixed += 0 if stage.on_host else ceil(held * optimizer / shared[2])
        stash = ceil(taken * numbers.stash[layer])
        rerun[layer] = stash if stage.run_of(layer) is not None and not halves else 0
        if halves and gradients_made(numbers, layer):
            again += ceil(added * numbers.made[layer])
        again += stash - rerun[layer] if stage.again(layer) else 0
        waiting += 0 if stage.again(layer) else stash
        waiting += ceil(made * lent(stage, layer)) + ceil(made * _lent_by_runs(stage, layer))
        both = [weights, gradients]
        gathered = sum(ceil(held * size) for size, part in zip(both, shared, strict=False) if part > 1)
        working[layer] = ceil(used * 2 * numbers.taken[layer]) + ceil(added * 2 * numbers.made[layer]) + gathered
    at_once = [(0, working[layer]) for layer in stage.layers if stage.run_of(layer) is None]
    at_once += [(sum(rerun[layer] for layer in run), max(working[layer] for layer in run)) for run in stage.runs]
    most = max(at_once, key=lambda one: (sum(one), one))
    waiting += ceil(max(stage.rows) * stage.crossing_bytes)
    return Parts(fixed, waiting, again + most[0], most[1])


def gradients_made(numbers: Numbers, layer: int) -> bool:
    """Whether the layer makes gradients of weights, its own or those of an earlier layer."""
    _, (_, copied, *_) = numbers.copies.get(layer, (0, (0, 0)))
    return numbers.gradients[layer] + copied > 0


def peak_bytes(stage: PricedStage, behind: int) -> int:
    """peak_s of a stage on devices of its own that is followed by ``behind - 1`` more."""
    training = stage.numbers.training
    own, stages = parts(stage, versions(training.schedule, behind)), len(stage.plan.stages)
    flying = in_flight(stage, behind)
    halves = training.schedule is Schedule.ZERO_BUBBLE_H1
    there = min(stages - behind + 1, training.micro_batches) if halves else 1
    return own.fixed + flying * own.waiting + there * own.again + own.working


def group_peak_bytes(stages: list[PricedStage], group: int) -> int:
    """peak_a of a group that holds several of these stages."""
    numbers, total = stages[0].numbers, len(stages)
    held = [parts(stage, 1) for stage in stages if on(numbers, stage.index, total) == group]
    whole = numbers.training.schedule is not Schedule.ZERO_BUBBLE_V
    waiting = max(
        sum(n * one.waiting + w * one.again for (n, w), one in zip(row, held, strict=True))
        for row in kept(numbers, total, group)
    )
    return (
        sum(one.fixed for one in held)
        + waiting
        + max(one.again for one in held) * whole
        + max(one.working for one in held)
    )


def capacity_bytes(stage: PricedStage) -> int:
    """Memory of the smallest device of a stage, less what is reserved, and a margin."""
    return min(stage.numbers.memory[server] for server in stage.servers)
