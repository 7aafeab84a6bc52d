"""The families of the model on atoms: those of plans, devices and links, and how far each stage may reach.

(104) ``stage_reach``: a slot of kind c that starts at place i ends at ``E(slot, c, i)`` at the latest
      (``solvers.atoms.stages``). It stands for the families of single layers (forms, stage times, memory): exactly
      by time, by a lower limit of memory, and exactly by both for stages that were proposed and refused. With
      memory it is logic-based Benders decomposition: the model proposes stages, chains of atoms decide them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from formulation.costs.tables import Tables
from solvers.atoms.stages import AtomStages
from solvers.cpsat.base.families import Family, Posted
from solvers.cpsat.base.variables import Variables
from solvers.cpsat.constraints.placing import area, post_alike
from solvers.cpsat.model import FAMILIES
from solvers.cpsat.valid import Floors

__all__: list[str] = []

WITHOUT_LAYERS = (
    *("cover", "devices", "line", "boundary_time", "stages"),
    *("devices_per_stage", "at_most", "stages_per_server"),
)
"""The families of the model that speak of slots, groups, links and cuts alone: of places they say the same."""


def families_of(stages: AtomStages, limits: Floors) -> tuple[Family, ...]:
    """Return the families; the rows of refused stages may grow between questions."""
    places = list(stages.space.places)
    return (
        *(family for family in FAMILIES if family.name in WITHOUT_LAYERS),
        Family(104, "stage_reach", _stage_reach(stages)),
        Family(102, "area", area(limits.area[places], limits.offer, limits.unit_ns)),
        Family(103, "alike", post_alike),
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


def _stage_reach(stages: AtomStages) -> Callable[[Variables], Posted]:
    """Return the family's generator: a clause for each step of the stairs, and one for each row below them."""

    def post(v: Variables) -> Posted:
        rule = stages.rules(v.slots)
        for c in range(len(v.tables.kinds)):
            known = {slot: stages.ends(slot, c, v.threshold_ns) for slot in set(rule)}
            for k in range(v.slots):
                ends = known[rule[k]]
                widest = np.maximum.accumulate(ends)
                for i in range(v.layers):
                    if widest[i] < min(int(widest[i + 1]), v.layers):
                        yield from _end(v, k, c, i, int(widest[i]), exact=False)
                    if ends[i] < widest[i]:
                        yield from _end(v, k, c, i, int(ends[i]), exact=True)

    return post


def _end(v: Variables, slot: int, kind: int, start: int, end: int, *, exact: bool) -> Posted:
    """Forbid a slot of this kind that starts at (``exact``) or up to a place to stop after ``end``."""
    clause = [~v.starts[slot][start], ~v.kind[slot][kind], v.starts_by(slot - 1, end)]
    if exact and start > 0:
        clause.append(v.starts[slot][start - 1])
    yield (slot, kind, start), v.model.add_bool_or(clause)
