"""The same problem with atoms for layers, exactly: what a programme needs where stages are cut at places alone.

What lies between two neighbouring places of a cut space is taken for one *layer* of a smaller problem: stages are
runs of these, their least times are those of the layers (``solvers.dynamic.tables.stage_times``), and sums of what
single layers hold stay sums. Plans are expanded to their layers, and get their forms, in
``solvers.dynamic.tables.stage_table``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from formulation.costs.memory_tables import MemoryTables
from formulation.costs.tables import Tables, Times
from formulation.problem.cuts import CutSpace
from solvers.dynamic.tables.stage_times import StageTimes


@dataclass(frozen=True, slots=True, eq=False)
class AtomTables:
    """The smaller problem: its tables (those of ``times``), its stage times, and what its atoms hold at least.

    The instance stays that of the layers: the tables alone have rows of atoms.

    ``fine`` are the tables of the layers and ``held`` their memory (None: it is not limited). ``least`` has the
    same three forms for every atom, each with the least of any possible form.
    """

    space: CutSpace
    fine: Tables
    times: StageTimes
    held: MemoryTables | None
    least: MemoryTables | None


def atom_tables(
    tables: Tables, space: CutSpace, times: StageTimes | None = None, *, memory: bool = True
) -> AtomTables:
    """Build the smaller problem of a cut space. ``times``: its stage times, where they are known.

    ``memory`` is False for who does not see its limit.

    Raises ValueError as ``solvers.dynamic.tables.stage_times.StageTimes.of`` does.
    """
    times = StageTimes.of(tables, space) if times is None else times
    held = MemoryTables.of(tables) if memory and tables.instance.constraints.memory else None
    least = None if held is None else _small_memory(held, space)
    return AtomTables(space, tables, replace(times, tables=_small_tables(tables, space)), held, least)


def _small_tables(tables: Tables, space: CutSpace) -> Tables:
    """Return the tables of the atoms: sums of computation, of the least communication inside, and boundaries.

    Copies of weights are left out here: they are in the stage times, and what is inside is a lower limit.
    """
    starts, places = list(space.places[:-1]), list(space.places)
    least = np.add.reduceat(tables.inside.min(axis=2), starts, axis=1)
    return replace(
        tables,
        compute=np.add.reduceat(tables.compute, starts, axis=1),
        inside=np.repeat(least[:, :, None], 3, axis=2),
        between=np.zeros((len(tables.kinds), 0, 3, 3), dtype=np.int64),
        activation=tables.activation[:, places],
        gradient=tables.gradient[:, places],
        copies={},
    )


def _small_memory(held: MemoryTables, space: CutSpace) -> MemoryTables:
    starts = list(space.places[:-1])

    def same(least: Times) -> Times:
        return np.repeat(least[:, :, None], 3, axis=2)

    return replace(
        held,
        once=same(np.add.reduceat(held.least(held.once), starts, axis=1)),
        by_version=same(np.add.reduceat(held.least(held.by_version), starts, axis=1)),
        by_micro_batch=same(np.add.reduceat(held.least(held.by_micro_batch), starts, axis=1)),
        working_set=same(np.maximum.reduceat(held.least(held.working_set), starts, axis=1)),
        received=held.received[:, list(space.places)],
        copies={},
        possible=np.ones((len(held.once), len(starts), 3), dtype=np.bool_),
    )
