"""What layers take in the passes of a stage, and in the synchronisation, as tables of their own.

Where passes and communication add up, one table has both passes. Where communication hides behind the computation
of its own pass (``StageTime.OVERLAP``) each pass has one: forward, computed again, backward. Of each the time of a
stage is that of ``solvers.dynamic.tables.stage_table.stage_time_ns``, and they add up to the pace of the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipecut.formulation.costs.passes import change_passes, passes_apart
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.modes import forward_passes
from pipecut.formulation.problem.options import Compute, StageTime, Synchronisation
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.dynamic.tables.stage_table import stage_time_ns

Cell = Callable[[int, int, int, int], int]
"""What a layer takes on a kind, in a form, in a stage that starts at some layer."""


@dataclass(frozen=True, slots=True, eq=False)
class PassParts:
    """Tables in ns whose stage times add up to the pace of a stage, and one for what it synchronises once a step.

    ``sync`` is None where no stage synchronises anything.
    """

    passes: tuple[Tables, ...]
    sync: Tables | None

    @property
    def instance(self) -> Instance:
        """The instance."""
        return self.passes[0].instance

    def pair(self, kind: int, layers: Span, forms: Sequence[int]) -> tuple[int, int]:
        """Return pace and synchronisation of a stage with these forms."""
        pace = sum(stage_time_ns(table, kind, layers, forms) for table in self.passes)
        return pace, 0 if self.sync is None else stage_time_ns(self.sync, kind, layers, forms)


def pass_parts(tables: Tables) -> PassParts:
    """Work out the passes of layers. Raises StoppedError after the deadline of the tables."""
    sync = _sync(tables)
    passes = _apart(tables) if tables.instance.cost.stage_time is StageTime.OVERLAP else (_added(tables, sync),)
    return PassParts(passes, sync if sync.inside.any(where=sync.inside < FORBIDDEN) or _copied(sync) else None)


def _copied(tables: Tables) -> bool:
    return any(bool(copy.any()) for copy in tables.copies.values())


def _sync(tables: Tables) -> Tables:
    """Return the synchronisation of a step by kind, layer and form of its layout."""
    instance = tables.instance

    def spent(kind: int, layer: int, form: int, first: int) -> int:
        return passes_apart(instance, layer, form, tables.kinds[kind], first)[2]

    some = [at for at, kind in enumerate(tables.kinds) if _synchronises(instance, kind)]
    return replace(
        tables,
        inside=_cells(tables, spent, some),
        compute=np.zeros_like(tables.compute),
        between=np.zeros_like(tables.between),
        copies=_copies(tables, spent),
    )


def _synchronises(instance: Instance, kind: GroupKind) -> bool:
    """Tell whether stages of a kind may synchronise anything but copies."""
    alone = kind.link is None and not kind.mode.optimizer_on_host
    return not alone or instance.cost.compute is Compute.ROOFLINE


def _added(tables: Tables, sync: Tables) -> Tables:
    """Return both passes in one, where they and what they send add up: the tables without the synchronisation."""
    instance = tables.instance
    steps = instance.training.micro_batches

    def spent(kind: int, layer: int, form: int, first: int) -> int:
        own = tables.kinds[kind]
        forward, backward, _ = passes_apart(instance, layer, form, own, first)
        return forward_passes(instance, own.mode, layer) * sum(forward) + sum(backward)

    if instance.cost.synchronisation is Synchronisation.CHARGED:
        inside = tables.inside - -(-sync.inside // steps)
    else:  # they have of it what passes do not hide
        inside = tables.inside.copy()
        for kind, layer, form in in_time(np.argwhere(sync.inside % FORBIDDEN).tolist(), tables.deadline):
            inside[kind, layer, form] = spent(kind, layer, form, 0) - tables.compute[kind, layer]
    between = tables.between.copy()
    for at, kind in enumerate(tables.kinds):
        if kind.inner is not None and kind.mode.recompute:  # what is sent again is rounded by itself
            between[at] = _changes(tables, at, lambda forward, backward, _: forward + backward)
    return replace(
        tables,
        inside=np.where(tables.inside < FORBIDDEN, inside, FORBIDDEN),
        between=between,
        copies=_copies(tables, spent),
    )


def _apart(tables: Tables) -> tuple[Tables, ...]:
    """Return one table for each pass: forward, what is computed again, and backward."""
    again = np.array(
        [
            [forward_passes(tables.instance, kind.mode, layer) - 1 for layer in range(tables.rows)]
            for kind in tables.kinds
        ]
    )
    forward, backward = (_of_pass(tables, one) for one in (0, 1))
    rerun = replace(
        forward,
        compute=forward.compute * again,
        inside=np.where(forward.inside < FORBIDDEN, forward.inside * again[:, :, None], FORBIDDEN),
        between=np.stack([_changes(tables, at, lambda first, _, runs: first * runs) for at in range(len(again))]),
        copies={ends: copy * again[:, ends[1], None] for ends, copy in forward.copies.items()},
    )
    return (forward, rerun, backward) if again.any() else (forward, backward)


def _of_pass(tables: Tables, which: int) -> Tables:
    """Return the table of forward passes (0) or of backward passes (1), each once."""
    instance = tables.instance

    def passes(layer: int, form: int, kind: GroupKind, first: int) -> tuple[tuple[int, int], ...]:
        return passes_apart(instance, layer, form, kind, first)[:2]

    def computed(kind: int, layer: int) -> int:
        return passes(layer, 0, tables.kinds[kind], 0)[which][0]

    def sent(kind: int, layer: int, form: int, first: int) -> int:
        return passes(layer, form, tables.kinds[kind], first)[which][1]

    kinds = range(len(tables.kinds))

    def change(first: int, second: int, runs: int) -> int:
        return second - first * runs if which else first

    return replace(
        tables,
        compute=np.array([[computed(kind, layer) for layer in range(tables.rows)] for kind in kinds]),
        inside=_cells(tables, sent, kinds),
        between=np.stack([_changes(tables, kind, change) for kind in kinds]),
        copies=_copies(tables, sent),
    )


def _cells(tables: Tables, cell: Cell, kinds: Sequence[int]) -> Times:
    """Return a cell for every form that a layer may have on these kinds; of other kinds 0."""
    found = np.where(tables.inside < FORBIDDEN, 0, FORBIDDEN)
    for kind in in_time(kinds, tables.deadline):
        for layer, form in np.argwhere(tables.inside[kind] < FORBIDDEN).tolist():
            found[kind, layer, form] = cell(kind, layer, form, 0)
    return found


def _copies(tables: Tables, cell: Cell) -> dict[tuple[int, int], Times]:
    """Return what layers take with their copies, less what they take alone."""
    found: dict[tuple[int, int], Times] = {}
    for layer, copy in enumerate(tables.instance.copies):
        if copy is None:
            continue
        found[copy.earlier, layer] = more = np.zeros((len(tables.kinds), tables.inside.shape[2]), dtype=np.int64)
        for kind, form in in_time(np.argwhere(tables.inside[:, layer] < FORBIDDEN).tolist(), tables.deadline):
            more[kind, form] = cell(kind, layer, form, copy.earlier + 1) - cell(kind, layer, form, 0)
    return found


def _changes(tables: Tables, kind: int, cell: Callable[[int, int, int], int]) -> Times:
    """Return by edge and forms a cell of what a change of layout takes.

    A cell is asked with: forward, backward with what is sent again, and how often it is sent again.
    """
    instance, own, found = tables.instance, tables.kinds[kind], np.zeros_like(tables.between[kind])
    if own.inner is None:
        return found
    for at, edge in enumerate(in_time(instance.form_edges, tables.deadline)):
        runs = forward_passes(instance, own.mode, edge.consumer) - 1
        for source, form in np.ndindex(found.shape[1:]):
            found[at, source, form] = cell(*change_passes(instance, edge, source, form, own), runs)
    return found
