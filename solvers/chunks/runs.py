"""What every run of atoms takes as a stage, on groups of one kind: passes, synchronisation and memory.

Layers have one form here, so what a stage takes is a sum over its layers, and over the edges between them. Of a
FOLLOW layer the form is that of its source where this lies in the run, so sums are made anew for every start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from formulation.costs import times
from formulation.costs.memory import MemoryParts, received_bytes
from formulation.costs.passes import change_passes, layer_passes
from formulation.costs.prices import form_of
from formulation.limits.deadline import Deadline, in_time
from formulation.problem.cuts import CutSpace
from formulation.problem.groups import Group, GroupKind, forms_on
from formulation.problem.instance import FormEdge, Instance
from formulation.problem.layers import Split
from formulation.problem.plan import Span, Stage

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class AtomRun:
    """A run of atoms as a stage: ``total_ns`` as the evaluator charges it, its passes, its memory.

    ``backward_ns`` has what is computed again, and of backward passes in halves the first; ``weight_ns`` is the
    second. ``parts`` are those of one micro-batch and one version.
    """

    total_ns: int
    forward_ns: int
    backward_ns: int
    weight_ns: int
    sync_ns: int
    parts: MemoryParts

    @property
    def passes_ns(self) -> int:
        """All passes of a micro-batch."""
        return self.forward_ns + self.backward_ns + self.weight_ns


Runs = Mapping[tuple[int, int], AtomRun]
"""By the place where a run begins and that where it ends."""


def forms_of(instance: Instance, group: Group) -> tuple[int, ...]:
    """Return the one form of every layer on groups of this size and mode."""
    return tuple(0 if row.split is Split.FOLLOW else forms_on(row, group)[0] for row in instance.layers)


def runs_of(instance: Instance, space: CutSpace, group: Group, most_ns: int, deadline: Deadline) -> Runs:
    """Return every run that takes at most so long on groups of this kind.

    A run that takes longer is too long with more atoms as well: nothing of a layer takes less than no time.
    Raises StoppedError after the deadline. Cost: linear in the layers of all longest runs.
    """
    rows = _Rows(instance, GroupKind.of(instance, group), defaultdict(list), {})
    for edge in instance.form_edges:
        rows.edges[edge.consumer].append(edge)
    found: dict[tuple[int, int], AtomRun] = {}
    forms, total = forms_of(instance, group), len(instance.layers)
    for start, first in enumerate(space.places[:-1]):
        stage = Stage(Span(first, total), group, forms[first:])
        sums, parts = [0, 0, 0, 0, 0], MemoryParts(received=received_bytes(instance, rows.kind, first))
        for stop, (begin, end) in in_time(enumerate(list(space.atoms())[start:], start + 1), deadline):
            held = [parts]
            for layer in range(begin, end):
                row, own = rows.of(stage, layer)
                sums = [one + more for one, more in zip(sums, row, strict=True)]
                held.append(own)
            parts = MemoryParts.sum(held)
            if min(sums[0], sums[1] + sums[2]) > most_ns:
                break
            total_ns, forward_ns, backward_ns, sync_ns, weight_ns = sums
            found[start, stop] = AtomRun(total_ns, forward_ns, backward_ns - weight_ns, weight_ns, sync_ns, parts)
    return found


@dataclass(frozen=True, slots=True)
class _Rows:
    """What layers and edges take on groups of one kind, each found once for every form."""

    instance: Instance
    kind: GroupKind
    edges: dict[int, list[FormEdge]]
    known: dict[tuple[int, int], tuple[list[int], MemoryParts]]

    def of(self, stage: Stage, layer: int) -> tuple[list[int], MemoryParts]:
        """Return total, forward, backward and synchronisation of a layer with the edges before it; its memory.

        And before its memory what of the backward pass is a second half.
        """
        form = form_of(self.instance, stage, layer)
        if (layer, form) not in self.known:
            alone = times.compute_ns(self.instance, layer, form, self.kind)
            alone += times.inside_ns(self.instance, layer, form, self.kind)
            passes = layer_passes(self.instance, layer, form, self.kind)
            parts = MemoryParts.of_layer(self.instance, self.kind, layer, form, None)
            self.known[layer, form] = [alone, *passes], parts
        row, parts = self.known[layer, form]
        for edge in self.edges[layer]:
            if edge.source in stage.span:
                source = stage.form(edge.source)
                changed = change_passes(self.instance, edge, source, form, self.kind)
                spent = times.between_ns(self.instance, edge, source, form, self.kind)
                row = [row[0] + spent, row[1] + changed[0], row[2] + changed[1], *row[3:]]
        return row, parts
