"""What layers and changes of layout take in each pass of a step, for every kind and form: arrays for searches.

The columns are those of ``solvers.step_time.bounds.columns``: passes, or the sums that they are made of.
The specification is ``formulation.costs.passes``, whose functions fill the cells; layers that are alike are asked
once.

With them what else stages are made of (:class:`StageParts`): worked out once for all searches of an instance.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.precision import Copy
from pipecut.solvers.atoms.programs import Programs, programs
from pipecut.solvers.step_time.bounds.columns import (
    BACKWARD,
    FORWARD,
    SYNC,
    Formula,
    OfFormula,
    PassColumns,
    Period,
    PricedColumns,
    columns_of,
)

HELD, WORKING = -2, -1
"""Behind the columns of a row, where memory may run out: bytes that are held, and the largest working set."""


@dataclass(frozen=True, slots=True, eq=False)
class PassTables:
    """Times in ns: ``layers[k, l, form, column]``, FORBIDDEN for no such form; ``changes[k, e, s, t, column]``.

    ``copies[e, l][k, form, column]`` is what layer l takes beside that in a stage that starts behind layer e, of
    whose weights it has a copy. A plan takes at least ``often`` times the passes of each of its stages;
    ``formula`` is what it is made of where that is no step as executed, ``period`` what keeps it to a period.
    """

    columns: PassColumns
    layers: Times
    changes: Times
    copies: Mapping[tuple[int, int], Times]
    often: int
    formula: Formula | None = None
    period: Period | None = None

    @property
    def whole(self) -> tuple[tuple[int, int, int], int]:
        """Return a sum of passes, and how many values of the goal none of its stages is above in any plan."""
        if self.period is None:
            return (self.often, self.often, 1), 1
        many = self.period.pairs
        return (many, many, int(self.period.charged)), many

    def alone(self, passes: Times) -> Times:
        """Return the least that plans take which have a stage with these passes."""
        pace, sync = passes[:, FORWARD] + passes[:, BACKWARD], passes[:, SYNC]
        return self.often * pace + sync if self.period is None else self.period.alone(pace, sync)

    def told_apart(self, tables: Tables) -> Tables:
        """Return the tables with passes in place of sums, so that what differs in any pass is not taken for alike.

        For numbers of programs alone (``solvers.atoms.programs``).
        """
        return replace(
            tables,
            inside=np.concatenate([tables.inside, *np.moveaxis(self.layers, -1, 0)]),
            between=np.concatenate([tables.between, *np.moveaxis(self.changes, -1, 0)]),
            copies={
                ends: np.concatenate([tables.copies[ends], *np.moveaxis(copy, -1, 0)])
                for ends, copy in self.copies.items()
            },
        )

    def of_kinds(self, kinds: NDArray[np.int64]) -> PassTables:
        """Return the tables of some kinds."""
        copies = {ends: copy[kinds] for ends, copy in self.copies.items()}
        return replace(self, layers=self.layers[kinds], changes=self.changes[kinds], copies=copies)


def pass_tables(tables: Tables) -> PassTables:
    """Price every layer and form edge on every kind. Raises StoppedError after the deadline of the tables."""
    instance, forms = tables.instance, tables.inside.shape[2]
    columns, kinds = columns_of(instance), len(tables.kinds)
    layers = np.full((kinds, len(instance.layers), forms, columns.width), FORBIDDEN, dtype=np.int64)
    changes = np.zeros((kinds, len(instance.form_edges), forms, forms, columns.width), dtype=np.int64)
    for at, kind in enumerate(in_time(tables.kinds, tables.deadline)):
        known: dict[int, Times] = {}
        for layer, like in enumerate(instance.alike):
            if like not in known:
                known[like] = _of_layer(columns, instance, kind, layer, tables.inside[at, layer] < FORBIDDEN)
            layers[at, layer] = known[like]
        if kind.inner is not None:
            _fill_changes(columns, instance, kind, changes[at])
    copies, period = _copies(columns, tables, layers), Period.of(instance)
    if period is not None:
        idle = not columns.passes(np.where(layers < FORBIDDEN, layers, 0))[..., SYNC].any()
        period = replace(period, charged=period.charged and not (idle and not any(map(np.any, copies.values()))))
    often = instance.training.micro_batches if period is None else 1
    return PassTables(columns, layers, changes, copies, often, period=period)


def formula_tables(tables: Tables, formula: Formula) -> PassTables:
    """Return what layers take by a formula, which tables of costs say already."""

    def sent(times: Times) -> Times:
        return np.stack([np.zeros_like(times), times], axis=-1)

    layers = sent(tables.inside)
    layers[..., 0] = np.where(tables.inside < FORBIDDEN, tables.compute[:, :, None], FORBIDDEN)
    copies = {ends: sent(copy) for ends, copy in tables.copies.items()}
    overlap = tables.instance.cost.stage_time is StageTime.OVERLAP
    return PassTables(OfFormula(overlap=overlap), layers, sent(tables.between), copies, formula.often, formula)


def _copies(columns: PricedColumns, tables: Tables, layers: Times) -> Mapping[tuple[int, int], Times]:
    """Return what layers take with their copies, less what they take alone."""
    found: dict[tuple[int, int], Times] = {}
    for layer, copy in enumerate(tables.instance.copies):
        if copy is not None:
            rows = [
                _of_layer(columns, tables.instance, kind, layer, tables.inside[at, layer] < FORBIDDEN, copy)
                for at, kind in enumerate(in_time(tables.kinds, tables.deadline))
            ]
            own = layers[:, layer]
            found[copy.earlier, layer] = np.where(own < FORBIDDEN, np.array(rows) - own, 0)
    return found


def _of_layer(
    columns: PricedColumns,
    instance: Instance,
    kind: GroupKind,
    layer: int,
    allowed: NDArray[np.bool_],
    copy: Copy | None = None,
) -> Times:
    found = np.full((len(allowed), columns.width), FORBIDDEN, dtype=np.int64)
    for form in np.flatnonzero(allowed).tolist():
        found[form] = columns.of_layer(instance, layer, form, kind, copy)
    return found


def _fill_changes(columns: PricedColumns, instance: Instance, kind: GroupKind, into: Times) -> None:
    known, forms = dict[Hashable, Times](), range(into.shape[1])
    for at, edge in enumerate(instance.form_edges):
        named = edge.consumer in instance.demands.recompute_layers
        key = (edge.size_bytes, instance.layers[edge.consumer].split is Split.MATRIX, named)
        if key not in known:
            cells = [[columns.of_change(instance, edge, s, t, kind) for t in forms] for s in forms]
            known[key] = np.array(cells, dtype=np.int64)
        into[at] = known[key]


@dataclass(frozen=True, slots=True, eq=False)
class StageParts:
    """What stages are made of: passes of layers, programs of atoms, memory (None: it is not limited)."""

    tables: Tables
    space: CutSpace
    passes: PassTables
    programs: Programs
    held: MemoryTables | None


def stage_parts(tables: Tables, space: CutSpace) -> StageParts:
    """Work out what stages are made of, by the formula of the first goal or as executed.

    Raises StoppedError after the deadline of the tables.
    """
    held = MemoryTables.of(tables) if tables.instance.constraints.memory else None
    formula = Formula.of(tables.instance)
    passes = pass_tables(tables) if formula is None else formula_tables(tables, formula)
    return StageParts(tables, space, passes, programs(passes.told_apart(tables), held, space), held)
