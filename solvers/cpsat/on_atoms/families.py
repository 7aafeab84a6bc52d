"""The families of the model on atoms: those of plans, devices and links, and how far each stage may reach.

(104) ``stage_reach``: a slot of kind c that starts at place i ends at ``E(slot, c, i)`` at the latest
      (``solvers.atoms.stages``). It stands for the families of single layers (forms, stage times, memory): exactly
      by time, by a lower limit of memory, and exactly by both for stages that were proposed and refused. With
      memory it is logic-based Benders decomposition: the model proposes stages, chains of atoms decide them.
      Where receivers pay for boundaries, stages have the time that these leave: a kind pays some at least, and
      what a dearer link takes away is said where it joins the slot. A stage that may not stop at a place may then
      stop later, where tensors are smaller: such places are forbidden one by one.
      Rows of prices (``solvers.cpsat.on_atoms.prices``) are part of the family and stand for the areas of the
      model on layers; where they forbid a slot of a kind to start, nothing more is said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.solvers.atoms.stages import AtomStages, ends_of
from pipecut.solvers.cpsat.constraints.symmetry import post_alike
from pipecut.solvers.cpsat.model import FAMILIES
from pipecut.solvers.cpsat.on_atoms.charges import Charges
from pipecut.solvers.cpsat.on_atoms.prices import DevicePrices, rows_of
from pipecut.solvers.cpsat.variables import Family, Literal, Posted, Variables

WITHOUT_LAYERS = (
    *("cover", "devices", "line", "boundary_time", "stages"),
    *("devices_per_stage", "at_most", "stages_per_server", "equal_stages"),
)
"""The families of the model that speak of slots, groups, links and cuts alone: of places they say the same."""

Slot = tuple[int, int]
"""A slot and a kind."""
Fits = NDArray[np.bool_]
"""By first and last place, whether a stage keeps its limits."""


def families_of(stages: AtomStages, charges: Charges) -> tuple[Family, ...]:
    """Return the families; the rows of refused stages may grow between questions."""
    prices = DevicePrices(stages.tables)

    def post(v: Variables) -> Posted:
        ends = _ends(stages, charges, v)
        reach = [np.maximum.accumulate(ends[slot], axis=1) for slot in stages.rules(v.slots)]
        ways = prices.dearest(reach)
        before = ways.before(reach)
        dear = [around > ways.total for around in ways.around(reach, before)]
        yield from _stage_reach(stages, charges, v, dear)
        yield from rows_of(v, ways, before, dear)

    return (
        *(family for family in FAMILIES if family.name in WITHOUT_LAYERS),
        Family(103, "alike", post_alike),
        Family(104, "stage_reach", post),
    )


def tables_of_places(stages: AtomStages) -> Tables:
    """Return tables with a row for each atom: what links carry at places; times are in the reach of stages."""
    tables, places = stages.tables, list(stages.space.places)
    kinds, atoms = len(tables.kinds), stages.space.stops
    return replace(
        tables,
        compute=np.zeros((kinds, atoms), dtype=np.int64),
        inside=np.zeros((kinds, atoms, 3), dtype=np.int64),
        between=np.zeros((kinds, 0, 3, 3), dtype=np.int64),
        activation=tables.activation[:, places],
        gradient=tables.gradient[:, places],
    )


def _stage_reach(stages: AtomStages, charges: Charges, v: Variables, dear: Sequence[Fits]) -> Posted:
    """(104) What any stage keeps, and what one keeps that dearer links join."""
    for k, rule in enumerate(in_time(stages.rules(v.slots), v.tables.deadline)):
        for c in range(len(v.tables.kinds)):
            starts = np.flatnonzero(~dear[k][c, : v.layers])
            if not len(starts):
                continue
            time = stages.least(rule, c)
            fits = within(v.threshold_ns, time, charges.least(c))
            yield from _reach(v, (k, c), starts, fits, [])
            for x, y, paid in charges.dearer(c):
                # Nothing comes to the first slot of all, and nothing comes back to the last stage.
                literals = [v.join[k][x]] if x is not None and k + 1 < v.slots else []
                literals += [v.join[k - 1][y]] if y is not None and k else []
                if literals and len(literals) == (x is not None) + (y is not None):
                    less = within(v.threshold_ns, time, paid)
                    yield from _reach(v, (k, c), starts, less, literals, fits)


def within(threshold_ns: int, time: Times, paid: tuple[Times, Times]) -> Fits:
    """Tell by first and last place whether a stage keeps a threshold with what it pays at both."""
    return time <= threshold_ns - paid[0][:-1, None] - paid[1]


def _reach(
    v: Variables, one: Slot, starts: Times, fits: Fits, literals: Sequence[Literal], known: Fits | None = None
) -> Posted:
    """Forbid a slot and kind the stages that do not fit where the literals hold; no clause for what is ``known``.

    A clause for each step of the stairs, one for each row below them, and one for each run of places in a row at
    which a stage may not stop, though it may later on. Other starts than these are forbidden anyhow.
    """
    rows, ends = fits[starts], ends_of(fits)[starts]
    widest = np.maximum.accumulate(ends)
    before = np.full(len(starts), v.layers + 1) if known is None else ends_of(known)[starts]
    stairs = np.maximum.accumulate(before)
    rises = np.append(widest[:-1] < widest[1:], True)
    for at in np.flatnonzero(rises & (widest < np.minimum(stairs, v.layers))).tolist():
        yield from _forbid(v, one, int(starts[at]), (int(widest[at]) + 1, v.layers), literals, exact=False)
    for at in np.flatnonzero(ends < np.minimum(widest, before)).tolist():
        yield from _forbid(v, one, int(starts[at]), (int(ends[at]) + 1, v.layers), literals, exact=True)
    places = np.arange(rows.shape[1])
    holes = ~rows & (places > starts[:, None]) & (places < ends[:, None])
    if known is not None:
        holes[~(holes & known[starts]).any(axis=1)] = False
    edges = np.diff(np.pad(holes, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    for (at, first), (_, stop) in zip(
        np.argwhere(edges > 0).tolist(), np.argwhere(edges < 0).tolist(), strict=True
    ):
        yield from _forbid(v, one, int(starts[at]), (first, stop - 1), literals, exact=True)


def _forbid(
    v: Variables, one: Slot, start: int, stops: tuple[int, int], literals: Sequence[Literal], *, exact: bool
) -> Posted:
    """Forbid a slot of a kind that starts at (``exact``) or up to a place to stop from one place to another."""
    (slot, kind), (first, last) = one, stops
    clause = [~v.starts[slot][start], ~v.kind[slot][kind], v.starts_by(slot - 1, first - 1)]
    clause += [~literal for literal in literals]
    if last < v.layers:
        clause.append(~v.starts_by(slot - 1, last))
    if exact and start > 0:
        clause.append(v.starts[slot][start - 1])
    yield (slot, kind, start), v.model.add_bool_or(clause)


def _ends(stages: AtomStages, charges: Charges, v: Variables) -> dict[int, Times]:
    """Return where stages stop at the latest, by kind and place, of every slot that has a rule of its own."""
    kinds = range(len(v.tables.kinds))
    return {
        slot: np.stack([ends_of(within(v.threshold_ns, stages.least(slot, c), charges.least(c))) for c in kinds])
        for slot in in_time(sorted(set(stages.rules(v.slots))), v.tables.deadline)
    }
