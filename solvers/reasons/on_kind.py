"""Stages on one kind of group, by tables: what they take and hold, their fastest forms, and the fastest that fit.

Tables are made for many kinds at once (``KindTables``), as most of what they cost is the same for all.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from formulation.costs.memory_tables import MemoryTables
from formulation.costs.tables import Times as Rows
from formulation.costs.tables import build_tables
from formulation.limits.deadline import Deadline
from formulation.problem.cuts import CutSpace
from formulation.problem.groups import Group
from formulation.problem.instance import FORBIDDEN, Instance
from formulation.problem.layers import Split
from formulation.problem.plan import Span
from solvers.atoms.chains import Chains, Chosen
from solvers.dynamic.tables.best_forms import best_forms, last_uses
from solvers.dynamic.tables.stage_times import MAX_LIVE

Forms = tuple[int, ...]
Times = tuple[int, int]
"""Computation and communication of a stage in ns, without what it receives over boundaries."""


class KindTables:
    """What is known of some kinds of groups; of memory only once it is asked for."""

    def __init__(self, instance: Instance, groups: tuple[Group, ...], deadline: Deadline) -> None:
        self.tables, self.space = build_tables(instance, groups, deadline), CutSpace.of(instance)
        self.places = frozenset(self.space.places)

    @cached_property
    def last(self) -> tuple[int, ...]:
        """By layer the last one whose communication depends on its form."""
        return last_uses(self.tables)

    @cached_property
    def held(self) -> MemoryTables:
        """What layers hold."""
        return MemoryTables.of(self.tables)

    @cached_property
    def chains(self) -> Chains:
        """The stages that fit."""
        return Chains(self.tables, self.held, self.space)


class StagesOnKind:
    """Prices stages of any span and forms on one kind of group."""

    def __init__(self, known: KindTables, kind: int) -> None:
        self._known, self._kind = known, kind
        self.tables, self.instance = known.tables, known.tables.instance
        instance = self.instance
        inside = self.tables.inside[kind].min(axis=1)
        self._compute = np.append(0, self.tables.compute[kind].cumsum())
        self._inside = np.append(0, np.minimum(inside, FORBIDDEN // len(inside)).cumsum())
        ends = [(edge.source, edge.consumer) for edge in instance.form_edges]
        self._ends = np.array(ends, dtype=np.int64).reshape(len(ends), 2)
        # Without a source, or with one in another stage, a layer lies by rows: as nothing is at place -1.
        sources = [-1 if source is None else source for source in instance.sources]
        self._sources = np.array(sources, dtype=np.int64)
        self._fastest: dict[Span, Forms | None] = {}
        self._wide: dict[Span, bool] = {}
        self._fitting: dict[tuple[Span, int], tuple[int, Chosen | None]] = {}

    def at_least(self, span: Span) -> Times:
        """Return what a stage takes at least, whatever its forms."""
        first, stop = span.first, span.stop
        computed, moved = (int(row[stop] - row[first]) for row in (self._compute, self._inside))
        return computed, moved

    def times(self, span: Span, forms: Forms) -> Times:
        """Return what a stage takes with these forms; the least of all forms where it may not have these."""
        own, lies = np.array(forms, dtype=np.int64), self._lies(span, forms)
        inside = self.tables.inside[self._kind, np.arange(span.first, span.stop), lies]
        if (inside >= FORBIDDEN).any():
            return self.at_least(span)
        moved = int(inside.sum())
        for (earlier, layer), copies in self.tables.copies.items():
            if earlier < span.first <= layer < span.stop:
                moved += int(copies[self._kind, lies[layer - span.first]])
        inner = np.flatnonzero((self._ends[:, 0] >= span.first) & (self._ends[:, 1] < span.stop))
        source, consumer = (own[self._ends[inner, end] - span.first] for end in (0, 1))
        moved += int(self.tables.between[self._kind, inner, source, consumer].sum())
        return int(self._compute[span.stop] - self._compute[span.first]), moved

    def holds(self, span: Span, forms: Forms, slot: int) -> tuple[int, int]:
        """Return what a stage holds with these forms, without what it received, and what there is room for."""
        lies, layers = self._lies(span, forms), np.arange(span.first, span.stop)
        held, kind = self._known.held, self._kind
        lasting, working = held.in_stage(slot, kind, span.first, held.lasting(slot, kind))
        needed = int(lasting[layers, lies].sum() + working[layers, lies].max())
        return needed, held.room(slot, kind, span.first)

    def fastest(self, span: Span) -> Forms | None:
        """Return the forms with the least communication; None where too many layers matter at once."""
        if span not in self._fastest:
            self._fastest[span] = None if self._is_wide(span) else best_forms(self.tables, self._kind, span)
        return self._fastest[span]

    def fitting(self, span: Span, slot: int, limit_ns: int | None) -> Chosen | None:
        """Return the fastest choice that fits into memory; None where none do within a limit (None: none at all).

        None too where a stage may not begin or end there, or too many layers matter at once. Raises StoppedError.
        """
        if not self.can_fit(span) or self._never_fits(span, slot):
            return None
        within, found = self._fitting.get((span, slot), (-1, None))
        asked = FORBIDDEN if limit_ns is None else limit_ns
        if found is None and within < asked:
            run, chains = self._known.space.run(span), self._known.chains
            if limit_ns is None:
                found = chains.fastest(slot, self._kind, run, 2 * sum(self.at_least(span)) + 1)
            else:
                found = chains.forms(slot, self._kind, run, limit_ns)
            self._fitting[span, slot] = asked, found
        return found

    def _never_fits(self, span: Span, slot: int) -> bool:
        """Tell whether a stage needs too much even if every layer has the form in which it holds least."""
        held, keeps, layers = self._known.held, self._known.held.keeps(slot), slice(span.first, span.stop)
        once, weights, stash = (
            int(held.least(part, self._kind)[layers].sum())
            for part in (held.once, held.by_version, held.by_micro_batch)
        )
        lasting = once + keeps.versions * weights + keeps.in_flight * stash
        working = int(held.least(held.working_set, self._kind)[layers].max())
        return lasting + working > held.room(slot, self._kind, span.first)

    def can_fit(self, span: Span) -> bool:
        """Tell whether forms that fit can be looked for: in whole atoms, where few layers matter at once."""
        return {span.first, span.stop} <= self._known.places and not self._is_wide(span)

    def _lies(self, span: Span, forms: Forms) -> Rows:
        """Return by layer of a stage the form that it has, or of whose layer it keeps the layout."""
        sources, own = self._sources[span.first : span.stop], np.array(forms, dtype=np.int64)
        within = (sources >= span.first) & (sources < span.stop)
        return np.where(within, own[np.where(within, sources - span.first, 0)], 0)

    def _is_wide(self, span: Span) -> bool:
        """Tell whether more layers with a choice of forms matter at once than can be searched."""
        if self.tables.kinds[self._kind].tensor_parallel_degree == 1:
            return False
        if span not in self._wide:
            self._wide[span] = self._looked_through(span)
        return self._wide[span]

    def _looked_through(self, span: Span) -> bool:
        last, layers = self._known.last, self.instance.layers
        live: list[int] = []
        for layer in span.layers:
            if layers[layer].split is not Split.FOLLOW and len(layers[layer].allowed_forms) > 1:
                live.append(layer)
            if len(live) > MAX_LIVE:
                return True
            live = [one for one in live if last[one] > layer]
        return False
