"""The least of passes and synchronisation together, in several proportions, whatever the forms of a stage.

Forms trade passes for synchronisation: split by samples a layer runs quickly and has much to synchronise, split
otherwise it has nothing to synchronise and takes long. So the least of, say, seven times both passes and one
synchronisation is far above seven times the least passes and the least synchronisation. Here it is known exactly,
over all forms of every stage, for some *proportions* of the three. Any other sum of passes holds some of these so
often, and a rest; it is no less than the least ones of what it holds, as forms are the same for all its parts.

Which of them a sum holds is a small linear programme, of which there are thousands (:func:`most_worth`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN, longest_run_ns
from pipecut.solvers.reference.algorithm_1 import StageTimes
from pipecut.solvers.step_time.bounds.pass_tables import PassTables

Numbers = NDArray[np.float64]
SMALL = 1e-10


def most_worth(worth: Numbers, needs: Numbers, limits: Numbers) -> tuple[Numbers, Numbers]:
    """Return amounts x >= 0 with needs x <= limits that are worth most, and the prices of the limits.

    By the simplex method on a table (Dantzig 1951), from nothing on; ``limits`` are 0 or more. It may stop a
    little early, so whoever relies on the answer checks it. Cost: some tens of steps through the table.
    """
    rows, columns = needs.shape
    table = np.zeros((rows + 1, columns + rows + 1))
    table[:rows, :columns], table[:rows, columns:-1] = needs, np.eye(rows)
    table[:rows, -1], table[rows, :columns] = limits, -worth
    basis = np.arange(columns, columns + rows)
    enough = SMALL * max(1.0, float(np.abs(worth).max()))
    for _ in range(10 * (rows + columns)):
        column = int(table[rows, :-1].argmin())
        entering = table[:rows, column]
        if table[rows, column] >= -enough or not (entering > SMALL).any():
            break
        row = int(np.where(entering > SMALL, table[:rows, -1] / np.maximum(entering, SMALL), np.inf).argmin())
        table[row] /= table[row, column]
        others = table[:, column].copy()
        others[row] = 0
        table -= np.outer(others, table[row])
        basis[row] = column
    found = np.zeros(columns + rows)
    found[basis] = np.maximum(table[:rows, -1], 0)
    return found[:columns], np.maximum(table[rows, columns:-1], 0)


Proportion = tuple[int, int, int]
"""So many forward passes, backward passes and synchronisations."""
PACE: Proportion = (1, 1, 0)
ALONE: tuple[Proportion, ...] = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
TILTED: tuple[Proportion, ...] = ((1, 2, 1), (1, 4, 1), (2, 4, 1))
"""Paths end with more backward passes than forward ones of the stage whose synchronisation comes last."""
MOST_NS = 1 << 58
MANY = 200
"""A part of the counts that is added to all, so that what does not count is no larger than need be."""


@dataclass(frozen=True, slots=True, eq=False)
class Rays:
    """``least[row, kind, first, stop]``: least sums of the ``proportion`` of this row, by pairs of blocks.

    ``block``: of every place, the number of its block. Sums are 0 for other ``kinds`` than those asked for.
    """

    proportions: tuple[Proportion, ...]
    least: Times
    block: NDArray[np.int64]
    kinds: frozenset[int]


def proportions(micro_batches: int) -> tuple[Proportion, ...]:
    """Return the proportions that are worth knowing beside paces and whole steps."""
    often = [1 << power for power in range(micro_batches.bit_length() + 2)]
    even: list[Proportion] = [(one, one, 1) for one in often if one != micro_batches]
    return (*even, *(one for one in TILTED if one[1] <= micro_batches))


def rays_of(
    tables: Tables,
    passes: PassTables,
    space: CutSpace,
    starts: NDArray[np.int64],
    kinds: Collection[int],
    known: Rays | None = None,
) -> Rays:
    """Work out the rays of some kinds for blocks of places with these starts; those of ``known`` are taken over.

    Raises StoppedError after the deadline. Cost: stage times of the other kinds for every proportion.
    """
    some = np.array(sorted(set(kinds) - (known.kinds if known else set())), dtype=np.int64)
    fewer = replace(tables, kinds=tuple(tables.kinds[kind] for kind in some))
    own = passes.of_kinds(some)
    count = tables.instance.training.micro_batches
    found = tuple(one for one in proportions(count) if longest_run_ns(tables.instance, max(one)) < MOST_NS)
    shape = (len(found), len(tables.kinds), len(starts) - 1, len(starts))
    least = np.zeros(shape, dtype=np.int64) if known is None else known.least.copy()
    for at, one in enumerate(in_time(found if len(some) else (), tables.deadline)):
        least[at, some] = least_of(least_times(fewer, own, one, space).time, starts)
    block = np.searchsorted(starts, np.arange(space.stops + 1), side="right") - 1
    return Rays(found, least, block, frozenset(some.tolist()) | (known.kinds if known else frozenset()))


def least_of(table: Times | NDArray[np.bool_], starts: NDArray[np.int64]) -> Times:
    """Return the least of a table by kind and pair of places, between blocks that start at these places."""
    firsts = np.minimum.reduceat(table, starts[:-1], axis=1)
    return np.asarray(np.minimum.reduceat(firsts, starts, axis=2))


def least_times(tables: Tables, passes: PassTables, often: Sequence[int], space: CutSpace) -> StageTimes:
    """Return what stages take at least whose passes count so ``often``, as ``columns.PassColumns`` has it.

    Where communication hides behind computing that is the larger of what either side says, pass by pass. Raises as
    ``StageTimes.of`` does.
    """
    found: StageTimes | None = None
    for counts in np.unique(passes.columns.below(often), axis=0):
        one = StageTimes.of(weighed(tables, passes, counts), space)
        if found is not None:
            np.maximum(one.time, found.time, out=one.time)
        found = one
    if found is None:
        raise ValueError("no sum is known of these passes")
    return found


def weighed(tables: Tables, passes: PassTables, counts: Times) -> Tables:
    """Return tables in which columns count so often, all of it inside and between layers."""
    own = passes.layers @ counts
    return replace(
        tables,
        compute=np.zeros(own.shape[:2], dtype=np.int64),
        inside=np.where(passes.layers[..., 0] < FORBIDDEN, own, FORBIDDEN),
        between=passes.changes @ counts,
        copies={ends: copy @ counts for ends, copy in passes.copies.items()},
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """A sum of passes in parts: ``known`` proportions so often, and ``alone`` what is left of each pass."""

    known: tuple[tuple[Proportion, int], ...]
    alone: Proportion


def parts_of(counts: Proportion, known: Sequence[Proportion], values: NDArray[np.float64]) -> Parts:
    """Return a sum of passes in the parts that are largest for a stage with these least times.

    ``values`` are those of ``known``, PACE first, and then of each pass alone. Whatever they are, the parts make
    up the counts.
    """
    forward, backward, sync = counts
    if not sync:
        both = min(forward, backward)
        return Parts(((PACE, both),) if both else (), (forward - both, backward - both, 0))
    rows = np.array([*known, *ALONE], dtype=np.float64).T
    often = np.floor(most_worth(values, rows, np.array(counts, dtype=np.float64))[0] * (1 - 1e-9)).astype(np.int64)
    found = tuple((one, int(times)) for one, times in zip(known, often, strict=False) if times)
    left = [count - sum(one[at] * times for one, times in found) for at, count in enumerate(counts)]
    return Parts(found, (left[0], left[1], left[2])) if min(left) >= 0 else Parts((), counts)


def passes_of(counts: Proportion, known: Sequence[Proportion], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return passes of a stage with these least times that make a sum the least: what the counts are worth."""
    rows = np.array([*known, *ALONE], dtype=np.float64)
    if not counts[2] and counts[0] == counts[1]:
        pace, (forward, backward, sync) = values[0], values[-len(ALONE) :]
        own = forward + (pace - forward - backward) * forward / max(1.0, forward + backward)
        more = (values - rows[:, 0] * own - rows[:, 1] * (pace - own))[rows[:, 2] == 1]
        return np.array([own, pace - own, max(sync, more.max())])
    limits = np.array(counts, dtype=np.float64)
    return most_worth(values, rows.T, limits + max(1.0, limits.max()) / MANY)[1]
