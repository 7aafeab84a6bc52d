"""What a stage adds to the period: its passes, and the synchronisation that only the top of a run waits for.

Of the forms of a stage two numbers matter: ``pace``, its forward and backward pass, and ``limit``, which is its
pace with a synchronisation that is charged, or a synchronisation alone that is overlapped. The least of each is
tabled. Where no forms have both at once, all pairs of which none beats the other are worked out, and take the
place of the two.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from formulation.costs import times
from formulation.costs.memory_tables import MemoryTables
from formulation.costs.tables import FORBIDDEN, Tables, Times
from formulation.limits.deadline import in_time
from formulation.problem.cuts import CutSpace
from formulation.problem.options import Compute, Synchronisation
from formulation.problem.plan import Span
from solvers.dynamic.tables.atom_tables import atom_tables
from solvers.dynamic.tables.best_forms import best_forms
from solvers.dynamic.tables.forms_under_memory import Thrift
from solvers.dynamic.tables.stage_limits import StageLimits
from solvers.dynamic.tables.stage_table import stage_time_ns
from solvers.dynamic.tables.stage_times import StageTimes

__all__: list[str] = []

Forms = tuple[int, ...]


class StagePeriods:
    """Pace and limit of all stages by kind and span of atoms, [k, i, j]; and the pairs that were worked out.

    ``pairs[kind]`` has for spans (i, j) the rows (pace, limit) that take the place of the tables there. Raises
    ValueError and TooLargeError as ``solvers.dynamic.tables.stage_times.StageTimes.of`` does.
    """

    def __init__(self, tables: Tables, space: CutSpace) -> None:
        instance = tables.instance
        self.space, self._whole = space, tables
        self.charged = instance.cost.synchronisation is Synchronisation.CHARGED
        sync = sync_table(tables)
        passes = np.where(tables.inside < FORBIDDEN, tables.inside - sync * self.charged, FORBIDDEN)
        self.fine = replace(tables, inside=passes)
        self._sync = replace(
            tables,
            inside=np.where(tables.inside < FORBIDDEN, sync, FORBIDDEN),
            compute=np.zeros_like(tables.compute),
            between=np.zeros_like(tables.between),
        )
        self.atoms = atom_tables(self.fine, space)
        self.pace: Times = self.atoms.times.time
        self.reaching = StageLimits(self.atoms.times, self.atoms.least)
        self.limit: Times | None = None
        if sync.any():
            self.limit = StageTimes.of(tables if self.charged else self._sync, space).time.copy()
        self.pairs: dict[int, list[tuple[int, int, Times]]] = {}

    def forms(self, kind: int, span: Span, spare: int, most: int) -> Forms | None:
        """Return the forms of a stage with its tabled pace and a limit within ``most``, less ``spare`` if charged.

        ``spare`` is what the run behind the stage takes beyond its periods. None where no forms have both;
        their pairs are then known.
        """
        layers = self.space.layers(span)
        allowed = most - spare if self.charged else most
        known = [
            rows for first, stop, rows in self.pairs.get(kind, []) if (first, stop) == (span.first, span.stop)
        ]
        if known:
            fitting = known[0][known[0][:, 1] <= allowed]
            return self._on_frontier(kind, layers, int(fitting[:, 0].min()))
        for tables in (self.fine, self._whole):
            forms = best_forms(tables, kind, layers)
            pace, limit = self._pair(kind, layers, forms)
            if pace == self.pace[kind, span.first, span.stop] and (self.limit is None or limit <= allowed):
                return forms
        self._work_out(kind, span)
        return None

    def _pair(self, kind: int, layers: Span, forms: Forms) -> tuple[int, int]:
        pace = stage_time_ns(self.fine, kind, layers, forms)
        sync = stage_time_ns(self._sync, kind, layers, forms)
        return pace, pace + sync if self.charged else sync

    def _work_out(self, kind: int, span: Span) -> None:
        """Put the pairs of a stage in the place of what is tabled."""
        rows = [
            self._pair(kind, self.space.layers(span), forms)
            for forms in self._frontier(kind, self.space.layers(span))
        ]
        self.pairs.setdefault(kind, []).append((span.first, span.stop, np.array(rows, dtype=np.int64)))
        if self.limit is not None:
            self.limit[kind, span.first, span.stop] = FORBIDDEN

    def _on_frontier(self, kind: int, layers: Span, pace: int) -> Forms:
        found = [one for one in self._frontier(kind, layers) if self._pair(kind, layers, one)[0] == pace]
        return min(found, key=lambda one: self._pair(kind, layers, one)[1])

    def _frontier(self, kind: int, layers: Span) -> list[Forms]:
        """Return forms by rising pace and falling synchronisation, none beaten in both."""
        sync = self._sync.inside
        held = MemoryTables.of(self.fine)
        nothing = np.zeros_like(held.once)
        held = replace(
            held,
            once=np.where(sync < FORBIDDEN, sync, 0),
            by_version=nothing,
            by_micro_batch=nothing,
            working_set=nothing,
            received=np.zeros_like(held.received),
        )
        found: list[Forms] = []
        room = FORBIDDEN - 1
        while room >= 0:
            held = replace(held, capacity=(room,) * len(self.fine.kinds))
            forms = Thrift(self.fine, held).forms(0, kind, layers, FORBIDDEN - 1)
            if forms is None:
                break
            found.append(forms)
            room = stage_time_ns(self._sync, kind, layers, forms) - 1
        return found


def sync_table(tables: Tables) -> Times:
    """Return the synchronisation of a step by kind, layer and form of its layout; 0 for no such form."""
    instance = tables.instance
    found = np.zeros_like(tables.inside)
    for at, kind in enumerate(in_time(tables.kinds, tables.deadline)):
        alone = kind.link is None and not kind.mode.optimizer_on_host
        if alone and instance.cost.compute is not Compute.ROOFLINE:
            continue
        for layer in range(len(instance.layers)):
            for form in range(tables.inside.shape[2] if kind.tensor_parallel_degree > 1 else 1):
                if tables.inside[at, layer, form] < FORBIDDEN:
                    found[at, layer, form] = times.synchronisation_ns(instance, layer, form, kind)
    return found
