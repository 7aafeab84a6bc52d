"""The executed step over types of stages: critical paths as cuts, and plans that are closed one by one.

The model's step is at least what every known path through it takes, with a least pair of passes for each stage.
Its answer is made a plan, which the evaluator prices; where the critical path of that plan takes more than the
model said, it is a path from then on. Where stages are settled and no path is missing, what is left is how each
stage is run: paths are weighed (``solvers.reduce.executed.leaves``), and the answer is closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.cpsat.on_types.model import TypeModel, TypeQuestion, along
from pipecut.solvers.cpsat.on_types.search import TypeSearch
from pipecut.solvers.reduce.executed.leaves import Leaves, counted_passes, rows_of
from pipecut.solvers.reduce.programme import Cell, time_of
from pipecut.solvers.step_time.bounds.paths import PassPath, longest_path


def critical_path(instance: Instance, plan: Plan) -> PassPath:
    """Return a longest path through the step of a plan."""
    rows = rows_of(instance, plan, (counted_passes(instance, stage) for stage in plan.stages))
    return longest_path(instance.training, rows.astype(np.float64))


@dataclass(slots=True)
class StepSearch(TypeSearch):
    """The search of one number of micro-batches, by number of stages.

    ``paths`` are cuts, ``closed`` plans that are settled, and ``left`` what those of them take at least that paths
    left open.
    """

    paths: dict[int, list[PassPath]] = field(default_factory=dict)
    closed: dict[int, list[tuple[Cell, ...]]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    leaves: Leaves | None = None

    def proved(self, count: int) -> int:
        """Return what no plan with so many stages is below."""
        known, paths, closed = self.known, self.paths.setdefault(count, []), self.closed.setdefault(count, [])
        while True:
            left = self.left.get(count, FORBIDDEN)
            ask = TypeQuestion.of(self.space, count, known.upper - 1)
            ask = replace(ask, paths=tuple(paths), closed=tuple(closed))
            model = TypeModel.of(ask)
            value, cells = (known.upper, None) if model is None else self.solved(model)
            self.raised(count, min(value, left))
            if cells is None or value >= left:
                if min(value, left) < known.upper:
                    self.done.add(count)
                return min(known.upper, left)
            plan = self.offer(cells)
            if self.settle(ask, cells, value):
                continue
            path = None if plan is None else critical_path(known.instance, plan)
            if path is not None and self._taken(path, cells) > value:
                paths.append(path)
                continue
            closed.append(tuple(cells))
            self._close(count, cells, value)

    def _close(self, count: int, cells: list[Cell], value: int) -> None:
        """Weigh the paths of a plan; what is left of it below the best plan is left for good."""
        known = self.known
        if self.leaves is None:
            judged = replace(known.instance, goals=known.instance.goals[:1])
            self.leaves = Leaves(judged, self.space.stages, lambda plan, _: known.offer(plan))
        found = self.leaves.bound(cells, value, known.upper)
        if found < known.upper:
            self.left[count] = min(self.left.get(count, FORBIDDEN), found)

    def _taken(self, path: PassPath, cells: list[Cell]) -> int:
        """Return what a path takes at least with these stages."""
        space, line, total = self.space, self.space.line, 0
        stages, boundaries = along(path)
        for slot, (cell, (many, ends)) in enumerate(zip(reversed(cells), stages, strict=True)):
            seat = int(line.seat[cell.x, cell.size])
            times = space.whole(seat, slot) if ends else space.stages.least(seat, slot)
            total += many * int(times[cell.first, cell.stop])
        rows = zip(boundaries, reversed([*pairwise(cells)]), strict=True)
        for many, (one, two) in rows:
            total += many * int(line.crossing[line.joint[two.x, one.size, two.size], two.first])
        return total

    def settle(self, ask: TypeQuestion, cells: list[Cell], value: int) -> bool:
        """Settle the stages of an answer as far as they are of use; tell whether anything changed.

        With more than that its own way through the step takes too long, whatever the other stages do.
        """
        stages, last, many, changed = self.space.stages, len(cells) - 1, ask.micro_batches, False
        rows = [
            (last - at, cell, time_of(self.space.line, stages.least, cell, last - at))
            for at, cell in enumerate(cells)
        ]
        before, total, most = 0, sum(time for *_, time in rows), self.known.upper - 1
        for slot, cell, time in rows:
            limit = (most - before) // many
            if many >= slot + 2:
                limit = min(limit, (most - before - 2 * (total - before - time)) // (many - slot))
            changed |= stages.settle(cell, slot, limit + 1)
            before += time
        return changed
