"""Naive model parallelism: the same number of layers on every device, whatever they cost.

The baseline that pipeline papers start from (GPipe Fig. 2 b, PipeDream's "model parallelism") and none of them
defines: the reading taken here is one stage a device, in line order, no layer split or replicated, and numbers
of layers that differ by at most one, larger ones first. With fewer layers than devices the last devices
stay idle. Strictly, naive model parallelism runs one micro-batch at a time (Schedule.NAIVE); the schedule is part
of the instance, so what is compared here is where such a planner cuts.
"""

from __future__ import annotations

import time

from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.search.support import blind_to
from pipecut_literature.common.priced import priced

NAME = "naive_model_parallel"

accepts = blind_to("memory", "devices")
"""What the planner makes of an instance (``solvers.search.support``)."""


def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return the plan with equally many layers on every device, priced by the evaluator (proof FEASIBLE).

    ``limits`` do not bind. Cost: linear in layers, and one evaluation.
    """
    start = time.perf_counter()
    sizes = equal_parts(len(instance.layers), min(instance.devices, len(instance.layers)))
    stages: list[Stage] = []
    first = 0
    for place, size in enumerate(sizes):
        stages.append(Stage(Span(first, first + size), Group.on_line(instance, place, 1), (0,) * size))
        first += size
    return priced(NAME, instance, Plan(tuple(stages)), accepts, start=start)


def equal_parts(total: int, parts: int) -> tuple[int, ...]:
    """Return ``parts`` whole numbers that add up to ``total`` and differ by at most one, larger ones first."""
    least, over = divmod(total, parts)
    return tuple(least + 1 if part < over else least for part in range(parts))
