"""The whole model for one threshold: variables, then every family there is."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence

import solvers.cpsat.constraints as room
from formulation.costs.tables import Tables
from formulation.limits.deadline import in_time
from solvers.cpsat.base.families import PLAN_FAMILIES, Family
from solvers.cpsat.base.variables import Variables, make_variables
from solvers.cpsat.bounds import stage_threshold_ns, thresholds_of
from solvers.cpsat.constraints.clocks import TIME_FAMILIES
from solvers.cpsat.constraints.executed import EXECUTED


def _posted_families() -> Iterator[Family]:
    """Yield the family of every constraint: whatever lies in the folders below the room of constraints."""
    for folder in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        if folder.ispkg:
            for one in pkgutil.iter_modules(importlib.import_module(folder.name).__path__, f"{folder.name}."):
                yield importlib.import_module(one.name).FAMILY


FAMILIES: tuple[Family, ...] = tuple(
    sorted((*PLAN_FAMILIES, *TIME_FAMILIES, EXECUTED, *_posted_families()), key=lambda family: family.number)
)
"""The families that define a plan and its objective; redundant ones are in ``solvers.cpsat.valid``."""


def build_model(
    tables: Tables,
    threshold: int | None,
    families: Sequence[Family],
    *,
    names: bool = False,
) -> Variables:
    """Post the families to a new model that asks for a plan whose first goal is at most ``threshold`` (None: any).

    With ``names`` every constraint is called ``family[index]``, for reading an exported model; naming takes
    longer than building. Raises StoppedError after the deadline of the tables.
    Cost: O(slots x layers x kinds) clauses.
    """
    instance = tables.instance
    slots = min(len(instance.layers), instance.devices)
    limits = thresholds_of(tables, threshold)
    v = make_variables(tables, limits, stage_threshold_ns(tables, limits), slots)
    for family in families:
        for index, constraint in in_time(family.post(v), tables.deadline):
            if names:
                constraint.with_name(f"{family.name}[{','.join(map(str, index))}]")
    return v
