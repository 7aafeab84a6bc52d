"""The iteration time beside the clocks: ``latency + (M - 1) * period`` stays within its limit.

The *period* is at least every reading of a clock and every boundary; the *latency* the sum of all stages and
boundaries. Where computation and communication add up, every layer adds to the latency by itself; where they
overlap, a second row of clocks runs on from stage to stage, as for ``Combine.SUM``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ortools.sat.python import cp_model

from formulation.problem.constraints import Goal
from formulation.problem.training import Schedule
from solvers.cpsat.base.variables import Expression, Variables

Row = Sequence[Expression]


def post_iteration(
    v: Variables,
    ends: Sequence[Expression],
    boundaries: Row,
    latency: Callable[[int], tuple[Expression, list[cp_model.Constraint]]],
) -> Iterator[cp_model.Constraint]:
    """Limit the iteration time, where it is limited.

    ``ends`` are readings of clocks that stages reach; ``boundaries`` the times that links pay before each layer;
    ``latency`` returns the latency, at most its argument, and the constraints that hold it up.
    """
    most = v.thresholds.get(Goal.ITERATION_TIME)
    if most is None:
        return
    training = v.tables.instance.training
    period = v.model.new_int_var(0, v.threshold_ns, "period")
    for reading in (*ends, *boundaries):
        yield v.model.add(period >= reading)
    total: Expression = 0
    if training.schedule.flushes:
        total, constraints = latency(most)
        yield from constraints
    if training.schedule is Schedule.NAIVE:
        yield v.model.add(total <= most // training.micro_batches)
    else:
        rounds = training.micro_batches - training.schedule.flushes
        yield v.model.add(total + rounds * period <= most)
