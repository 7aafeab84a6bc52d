"""What layers and changes of layout take in each pass of a step, for every kind and form: arrays for searches.

The columns are forward pass, backward pass (with what it computes again) and synchronisation once a step; under a
schedule with backward passes in halves also what of them is for the gradients of weights.
The specification is ``formulation.costs.passes``, whose functions fill the cells; layers that are alike are asked
once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from formulation.costs.passes import change_passes, layer_passes
from formulation.costs.tables import FORBIDDEN, Tables, Times
from formulation.limits.deadline import in_time
from formulation.problem.groups import GroupKind
from formulation.problem.instance import Instance
from formulation.problem.layers import Split
from formulation.problem.precision import Copy

__all__: list[str] = []

FORWARD, BACKWARD, SYNC, WEIGHTS = 0, 1, 2, 3
COLUMNS = 3
"""Without halves."""
HELD, WORKING = -2, -1
"""Where memory may run out, behind the passes of a row: bytes that are held, and the largest working set."""


@dataclass(frozen=True, slots=True, eq=False)
class PassTables:
    """Times in ns: ``layers[k, l, form, column]``, FORBIDDEN for no such form; ``changes[k, e, s, t, column]``.

    ``copies[e, l][k, form, column]`` is what layer l takes beside that in a stage that starts behind layer e, of
    whose weights it has a copy.
    """

    layers: Times
    changes: Times
    copies: Mapping[tuple[int, int], Times]

    @property
    def columns(self) -> int:
        """Number of columns."""
        return int(self.layers.shape[-1])

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
        return PassTables(self.layers[kinds], self.changes[kinds], copies)


def pass_tables(tables: Tables) -> PassTables:
    """Price every layer and form edge on every kind. Raises StoppedError after the deadline of the tables."""
    instance, forms = tables.instance, tables.inside.shape[2]
    columns = COLUMNS + instance.training.schedule.in_halves
    shape = (len(tables.kinds), len(instance.layers), forms, columns)
    layers = np.full(shape, FORBIDDEN, dtype=np.int64)
    changes = np.zeros((len(tables.kinds), len(instance.form_edges), forms, forms, columns), dtype=np.int64)
    alike = [_alike(instance, at) for at in range(len(instance.layers))]
    for at, kind in enumerate(in_time(tables.kinds, tables.deadline)):
        known: dict[Hashable, Times] = {}
        for layer, costs in enumerate(alike):
            key = (costs, layer in instance.demands.recompute_layers)
            if key not in known:
                known[key] = _of_layer(instance, kind, layer, tables.inside[at, layer] < FORBIDDEN)[:, :columns]
            layers[at, layer] = known[key]
        if kind.inner is not None:
            _fill_changes(instance, kind, changes[at])
    return PassTables(layers, changes, _copies(tables, layers))


def _copies(tables: Tables, layers: Times) -> Mapping[tuple[int, int], Times]:
    """Return what layers take with their copies, less what they take alone."""
    found: dict[tuple[int, int], Times] = {}
    for layer, copy in enumerate(tables.instance.copies):
        if copy is not None:
            rows = [
                _of_layer(tables.instance, kind, layer, tables.inside[at, layer] < FORBIDDEN, copy)
                for at, kind in enumerate(in_time(tables.kinds, tables.deadline))
            ]
            own = layers[:, layer]
            found[copy.earlier, layer] = np.where(own < FORBIDDEN, np.array(rows)[..., : own.shape[-1]] - own, 0)
    return found


def _of_layer(
    instance: Instance, kind: GroupKind, layer: int, allowed: NDArray[np.bool_], copy: Copy | None = None
) -> Times:
    found = np.full((len(allowed), COLUMNS + 1), FORBIDDEN, dtype=np.int64)
    split = kind.tensor_parallel_degree > 1
    for form in sorted({0, *np.flatnonzero(allowed).tolist()}) if split else [0]:
        found[form] = layer_passes(instance, layer, form, kind, copy)
    return found


def _fill_changes(instance: Instance, kind: GroupKind, into: Times) -> None:
    known, forms = dict[Hashable, Times](), range(into.shape[1])
    for at, edge in enumerate(instance.form_edges):
        named = edge.consumer in instance.demands.recompute_layers
        key = (edge.size_bytes, instance.layers[edge.consumer].split is Split.MATRIX, named)
        if key not in known:
            cells = [[change_passes(instance, edge, s, t, kind) for t in forms] for s in forms]
            known[key] = np.array(cells, dtype=np.int64)
        into[at, :, :, : BACKWARD + 1] = known[key]


def _alike(instance: Instance, at: int) -> Hashable:
    """Return all that the passes of a layer depend on."""
    layer = instance.layers[at]
    sizes = (instance.input_bytes, instance.output_bytes, instance.parameter_bytes, instance.gradient_bytes)
    more = (instance.updated_bytes, instance.optimizer_bytes)
    return (
        *(layer.split, layer.allowed_forms, layer.across, layer.work, layer.measured),
        *(instance.predictor.products[layer.name], instance.sent_bytes[at]),
        *(layer.macs, layer.input_bytes, layer.output_bytes, layer.parameter_bytes, layer.trained_bytes),
        *(rows[at] for rows in (*sizes, *more, *instance.forward_ns, *instance.backward_ns)),
    )


def compared(labels: Times, *, memory: bool) -> Times:
    """Return by what rows of passes, with two columns of memory, are compared: each but the synchronisation.

    Nobody waits for that but the end of the step. It follows upon a backward pass, with which it is compared;
    where backward passes have halves, each of which is compared, upon that of the weights.
    """
    own = labels[:, :HELD].copy()
    last = BACKWARD if own.shape[1] == COLUMNS else WEIGHTS
    own[:, SYNC] += own[:, last]
    if last == WEIGHTS:
        own[:, BACKWARD] -= own[:, WEIGHTS]
    return np.concatenate([own, labels[:, HELD:]], axis=1) if memory else own
