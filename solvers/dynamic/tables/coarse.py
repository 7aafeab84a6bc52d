"""Stages that may be cut at some places only: the same problem with runs of layers for layers, exactly.

Where layers may not be separated (``no_cut``, ``together``) nothing is lost by taking each run between two
possible cuts for one *layer* of a smaller problem: stages are runs of these, their least times are those of the
layers (``solvers.dynamic.tables.stage_times``), sums of what single layers hold stay sums. :func:`coarsen` applies
this; stages are expanded to their layers, and get their forms, in ``solvers.dynamic.tables.coarse_table``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from formulation.costs.memory_tables import MemoryTables, memory_tables
from formulation.costs.tables import Tables, Times
from formulation.problem.demands import possible_cuts
from solvers.dynamic.tables.stage_times import StageTimes, stage_times


@dataclass(frozen=True, slots=True, eq=False)
class Coarse:
    """The smaller problem: its tables, its stage times, and what its runs of layers hold at least.

    The instance stays that of the layers: the tables alone have rows of runs.

    ``fine`` are the tables of the layers; run ``a`` holds the layers from ``cuts[a]`` to ``cuts[a + 1]``. ``held``
    has the same three forms for every run, each with the least of any possible form (None: memory is not limited).
    """

    cuts: tuple[int, ...]
    fine: Tables
    times: StageTimes
    held: MemoryTables | None


def coarsen(tables: Tables, some: Sequence[int] = ()) -> Coarse:
    """Build the smaller problem, of possible cuts or only ``some`` of them, 0 and N with them.

    Raises ValueError as ``solvers.dynamic.tables.stage_times.stage_times`` does.
    """
    cuts = tuple(some) or possible_cuts(tables.instance)
    times = stage_times(tables, cuts=cuts)
    small = _small_tables(tables, cuts)
    held = _small_memory(memory_tables(tables), cuts) if tables.instance.constraints.memory else None
    return Coarse(cuts, tables, replace(times, tables=small), held)


def _small_tables(tables: Tables, cuts: tuple[int, ...]) -> Tables:
    """Return the tables of the runs: sums of computation, of the least communication inside, and boundaries."""
    starts = list(cuts[:-1])
    least = np.add.reduceat(tables.inside.min(axis=2), starts, axis=1)
    return replace(
        tables,
        compute=np.add.reduceat(tables.compute, starts, axis=1),
        inside=np.repeat(least[:, :, None], 3, axis=2),
        between=np.zeros((len(tables.kinds), 0, 3, 3), dtype=np.int64),
        activation=tables.activation[:, list(cuts)],
        gradient=tables.gradient[:, list(cuts)],
    )


def _small_memory(held: MemoryTables, cuts: tuple[int, ...]) -> MemoryTables:
    starts = list(cuts[:-1])

    def same(least: Times) -> Times:
        return np.repeat(least[:, :, None], 3, axis=2)

    return replace(
        held,
        once=same(np.add.reduceat(held.least(held.once), starts, axis=1)),
        by_version=same(np.add.reduceat(held.least(held.by_version), starts, axis=1)),
        by_micro_batch=same(np.add.reduceat(held.least(held.by_micro_batch), starts, axis=1)),
        working_set=same(np.maximum.reduceat(held.least(held.working_set), starts, axis=1)),
        received=held.received[:, list(cuts)],
        possible=np.ones((len(held.once), len(starts), 3), dtype=np.bool_),
    )
