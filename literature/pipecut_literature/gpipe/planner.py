"""GPipe's partitioner (Huang et al., NeurIPS 2019, section 2): K cells whose estimated costs vary least.

The paper minimises the variance of the estimated costs of all cells, so that their times are in step, and says no
more: it gives no algorithm, leaves K to the user, and lets the user estimate costs. Here K is the number of
devices (of layers, if they are fewer), one cell a device in line order, the cost of a layer is its forward and
backward time of one micro-batch on the slowest class of device, and the minimum is exact. Since the costs of K
cells always have the same sum, the variance is least where the sum of their squares is::

    V(0, 0) = 0        V(k, j) = least over i < j of  V(k - 1, i) + (S_j - S_i)**2

with S the running sum of costs. The square of a sum obeys the quadrangle inequality, so the best i grows with both
k and j (the bound of Knuth and Yao), and most i need not be tried. Among equal cuts the earliest last one wins.

What this does not see: transfers, weights, memory, that devices differ, and that a stage may have several. Nor is
least variance the least maximum, which is what a pipeline's period is (literature/tests/test_gpipe.py has a case).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pipecut.formulation.limits import NEVER, Deadline, in_time
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.reference.flat_cluster import flat_view
from pipecut.solvers.search.stoppable import stoppable
from pipecut.solvers.search.support import blind_to
from pipecut_literature.common.priced import priced

NAME = "gpipe"

accepts = blind_to("memory", "devices")
"""What the planner makes of an instance (``solvers.search.support``)."""


@stoppable(NAME)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return the plan of least variance, one cell a device, priced by the evaluator (proof FEASIBLE).

    UNKNOWN if stopped. Cost: that of :func:`least_variance`.
    """
    deadline = begin(limits).deadline
    costs = [int(cost) for cost in flat_view(instance, 1, None, deadline).tables.compute[0]]
    cuts = least_variance(costs, min(instance.devices, len(costs)), deadline)
    stages = (
        Stage(Span(first, stop), Group.on_line(instance, place, 1), (0,) * (stop - first))
        for place, (first, stop) in enumerate(itertools.pairwise(cuts))
    )
    largest = max(sum(costs[first:stop]) for first, stop in itertools.pairwise(cuts))
    believed = "the largest estimated cell is", largest
    return priced(NAME, instance, Plan(tuple(stages)), accepts, believed=believed)


def least_variance(costs: Sequence[int], cells: int, deadline: Deadline = NEVER) -> tuple[int, ...]:
    """Return the ends 0, ..., N of ``cells`` runs of costs, none empty, whose sums vary least.

    Raises ValueError unless there is a cost for every cell, and StoppedError after the deadline.
    Cost: O(N**2 + N x cells) exact whole numbers.
    """
    total = len(costs)
    if not 1 <= cells <= total:
        raise ValueError(f"{cells} cells of {total} layers, expected 1 or more and at most one for each layer")
    sums = list(itertools.accumulate(costs, initial=0))
    values = [0, *(running**2 for running in sums[1:])]
    starts = [[0] * (total + 1)]
    for cell in in_time(range(2, cells + 1), deadline):
        values, start = _one_more(values, starts[-1], sums, cell)
        starts.append(start)
    ends = [total]
    for start in reversed(starts):
        ends.append(start[ends[-1]])
    return tuple(reversed(ends))


def _one_more(values: list[int], before: list[int], sums: list[int], cell: int) -> tuple[list[int], list[int]]:
    """Return V(cell, .) and the best i of each j, from V(cell - 1, .) and its best i; j < cell stays unused."""
    total = len(sums) - 1
    found, start = [0] * (total + 1), [0] * (total + 2)
    start[total + 1] = total - 1
    for j in range(total, cell - 1, -1):
        candidates = range(max(before[j], cell - 1), min(start[j + 1], j - 1) + 1)
        found[j], start[j] = min((values[i] + (sums[j] - sums[i]) ** 2, i) for i in candidates)
    return found, start[:-1]
