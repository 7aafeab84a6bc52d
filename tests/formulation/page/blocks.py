"""docs/formulation.md, "Constraints": blocks that are computed again by themselves, and what stages have alike."""

from __future__ import annotations

from itertools import pairwise

from pipecut.formulation.problem.constraints import Recompute, Sharded
from pipecut.formulation.problem.plan import Plan
from tests.formulation.page.goals import priced
from tests.formulation.page.numbers import Numbers
from tests.formulation.page.stages import PricedStage


def runs_may_be(numbers: Numbers, stage: PricedStage) -> bool:
    """Runs are blocks, where a stage may choose them and does not recompute as a whole; or all of its blocks."""
    asked, found = numbers.constraints.recompute, {(run.start, run.stop) for run in stage.runs}
    if not found and asked is not Recompute.EVERY_BLOCK:
        return True
    named = _named_blocks(numbers, stage)
    return not stage.recompute and (found == named if asked is Recompute.EVERY_BLOCK else found <= named)


def _named_blocks(numbers: Numbers, stage: PricedStage) -> set[tuple[int, int]]:
    """The blocks of a stage that may be computed again alone: whose layers are named, or all."""
    if numbers.constraints.recompute not in (Recompute.BLOCKS, Recompute.EVERY_BLOCK):
        return set()
    named = numbers.again if numbers.constraints.recompute_layers else {*range(len(numbers.layers))}
    return {ends for ends in _blocks(numbers) if {*range(*ends)} <= named & {*stage.layers}}


def _blocks(numbers: Numbers) -> set[tuple[int, int]]:
    """First and last end of what lies between two neighbouring places to cut."""
    limits, total = numbers.constraints, len(numbers.layers)
    closed = numbers.matching(*limits.no_cut)
    for layers in (numbers.matching(*globs) for globs in limits.together):
        closed |= {*range(min(layers) + 1, max(layers) + 1)}
    inner = numbers.cuts if numbers.cuts is not None else set(range(1, total))
    return set(pairwise([0, *sorted(inner - closed - {0}), total]))


def told_once(numbers: Numbers, plan: Plan) -> bool:
    """Stages are in one mode, with equal samples, and compute again all blocks that they may, or none."""
    modes, stages = {stage.group.mode for stage in plan.stages}, priced(numbers, plan)
    again = [stage.runs for stage in stages]
    every = all(len(one) == len(_named_blocks(numbers, stage)) for one, stage in zip(again, stages, strict=True))
    even = all(numbers.training.micro_batch % one.replicas == 0 for one in modes)
    alone = any(one.replicas == 1 and one.sharded is not Sharded.NONE for one in modes)
    return len(modes) == 1 and even and not alone and (every or not any(again))
