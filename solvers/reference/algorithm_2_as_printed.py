"""PipePar's Algorithm 2 as printed, with the repairs that make it run and no others.

The listing's lines, in :func:`_table` and :func:`_walk` below, and its defects by letter (docs/decisions/0001):

====  ====================================================  =====================================================
line  listing                                               here
====  ====================================================  =====================================================
2     ``end = len(Hybrid)``                                 ``total``
3     ``for i = 0->end, j = i->end, m = 1->M``              all i at once, ``for m``; only j = end, the sole
                                                            column that lines 12 to 18 read. This makes the
                                                            O(N**2 M**2) of the paper's text true, where the
                                                            printed loops take O(N**3 M**2) (repair of e)
4     ``Split(i,j,m) = (INF, 0, 0)``                        FORBIDDEN, through ``np.where``
5     ``for k = i->j, n = 1->m``                            k from i + 1, as k = i splits nothing off and would
                                                            hold the walk in place; k = j means no second part
6     ``New_Split(i,j,m) = Hybrid(i,j,k,n)``                undefined (c); read as the two parts of the split, each
                                                            one stage: Hybrid(i,k,n) and Hybrid(k,j,m-n), combined
                                                            by their maximum (or sum, by CostModel.combine)
7, 8  keep (time, k, n) if less                             first least in the order of the loops: k, then n
12    ``k = 0, m = M``                                      same
13    ``while k < end and m < M``                           ``m > 0``; ``m < M`` fails on entry (a)
14    split layer [k, end] at ``.split``                    a stage of ``.machine_used`` devices
15    ``m = m - Split(k,end,m).machine_used``               one tuple is read for lines 14 to 16, or line 16 would
16    ``k = Split(k,end,m).split``                          look up the new m (b)
18    (nothing is returned)                                 the stages (d)
====  ====================================================  =====================================================

``Hybrid`` is that of :mod:`solvers.reference.algorithm_1`, which mends Algorithm 1 (f), on the flat view of
the cluster: all devices joined by its slowest link. As in the listing, boundaries cost nothing (the evaluator
charges them all the same), the second part is never split while a split is chosen (the walk then splits it anew,
so this is a greedy method and no dynamic programme), and devices may stay idle, as a first part may be all layers
on n < m.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import in_time
from pipecut.formulation.outcome import Limits, Outcome, Proof, begin
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.reference.flat_cluster import FlatView, believes, flat_view, lay_on_line, slowest_link
from pipecut.solvers.search.stoppable import stoppable
from pipecut.solvers.search.support import blind_to

NAME = "pipepar_listed"

accepts = blind_to("memory", "devices")
"""What the planner makes of an instance (``solvers.search.support``)."""


@stoppable(NAME)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return the listing's plan with proof FEASIBLE and without a bound; the notes say what it believed.

    UNKNOWN if stopped. Raises ValueError as :func:`solvers.reference.algorithm_1.StageTimes.of`.
    Cost: O(devices**2 x layers**2) numpy operations.
    """
    start = time.perf_counter()
    view = flat_view(instance, instance.devices, slowest_link(instance), begin(limits).deadline)
    split = _table(view)
    stages = [view.stage(span, n) for span, n in _walk(split)]
    plan = lay_on_line(instance, stages)
    found = evaluate(instance, plan).objective
    believed = int(split[-1][0][0])
    notes = (believes("Split(0, end, M), as published, expects", believed, instance, found),)
    seconds = time.perf_counter() - start
    return Outcome(NAME, Proof.FEASIBLE, plan, found, None, seconds, notes, accepts(instance).unseen)


Split = tuple[Times, Times, Times]
"""By first layer i: time, split and machines used of ``Split(i, end, m)``."""


def _table(view: FlatView) -> list[Split]:
    """Return ``Split(., end, m)`` for m = 1 .. M (lines 2 to 11)."""
    total = view.times.time.shape[1]
    hybrid = [view.times.time[kind] for kind in view.kinds]
    combine = np.maximum if view.tables.instance.cost.combine is Combine.MAX else np.add
    nothing = np.append(np.full(total, FORBIDDEN, dtype=np.int64), 0)
    # Hybrid(k, end, m - n) by k: no layers left cost 0, layers left for no device are forbidden.
    rest = [nothing, *(np.append(hybrid[n][:, total], 0) for n in range(1, view.devices + 1))]
    table: list[Split] = []
    for m in in_time(range(1, view.devices + 1), view.tables.deadline):
        options = np.stack([combine(hybrid[n], rest[m - n]) for n in range(1, m + 1)], axis=2)
        flat = options.reshape(total, -1)
        best = flat.argmin(axis=1)
        table.append((flat[np.arange(total), best], best // m, best % m + 1))
    return table


def _walk(table: list[Split]) -> Iterator[tuple[Span, int]]:
    """Yield the stages (span, devices) from the front (lines 12 to 18)."""
    total = len(table[0][0])
    k, m = 0, len(table)
    while k < total and m > 0:
        _, split, used = (int(column[k]) for column in table[m - 1])
        yield Span(k, split), used
        k, m = split, m - used
