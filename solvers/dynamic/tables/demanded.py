"""Which stages demands leave: layers that are pinned to devices or to an end of the plan, or are to be apart.

A stage is a kind of device groups and a span between two places to cut. Whether it keeps to such a demand depends
on nothing else, once groups on servers that a pin tells apart are of different kinds (:func:`told_apart`). So
searches that look stages up in a table leave out what the table forbids (:func:`admitted`), and see the demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.constraints.layers.pin import Pinned
from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance

Bits = NDArray[np.bool_]
FIRST, LAST = 0, -1
"""Stages whose number says nothing of how many others there are."""


def is_seen(pin: Pinned) -> bool:
    """Tell whether a table of stages says who keeps to a pin: to servers, or to an end of the plan."""
    return pin.stage in (None, FIRST, LAST)


def stage_counts(instance: Instance) -> range:
    """Return the numbers of stages that a plan may have; empty where none is allowed."""
    demands, limits = instance.demands, {one.goal: one.at_most for one in instance.constraints.at_most}
    possible = min(CutSpace.of(instance).stops, instance.devices, limits.get(Goal.STAGES, instance.devices))
    most = possible if demands.stages_at_most is None else min(possible, demands.stages_at_most)
    return range(demands.stages_at_least or 1, most + 1)


def told_apart(tables: Tables) -> Tables:
    """Return tables in which groups that a pin tells apart are of different kinds, at the same prices.

    Cost: groups times pins to servers.
    """
    pins = list(_to_servers(tables.instance))
    keys = [(kind, _kept(group, pins)) for kind, group in zip(tables.kind_of, tables.groups, strict=True)]
    index = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    if len(index) == len(tables.kinds):
        return tables
    rows = [kind for kind, _ in index]
    return replace(
        tables,
        kinds=tuple(tables.kinds[row] for row in rows),
        kind_of=tuple(index[key] for key in keys),
        compute=tables.compute[rows],
        inside=tables.inside[rows],
        between=tables.between[rows],
        copies={ends: copy[rows] for ends, copy in tables.copies.items()},
    )


def admitted(tables: Tables, space: CutSpace) -> Bits | None:
    """Return which stages keep to all demands that are seen, ``[kind, start, stop]`` in places; None if all do.

    The tables tell kinds apart. Cost: for each pin and set of layers that is to be apart, kinds x places**2 bits.
    """
    instance, shape = tables.instance, (len(tables.kinds), space.stops, space.stops + 1)
    found = np.ones(shape, dtype=np.bool_)
    for sets in instance.demands.apart:
        inside = sum(_holding(space, layers).astype(np.int64) for layers in sets)
        found &= np.asarray(inside < 2)
    for pin in instance.demands.pins:
        held = _holding(space, pin.layers)
        if pin.servers is not None:
            found[~_on(tables, frozenset(pin.servers))] &= ~held
        elif pin.stage == FIRST:
            held[0] = False
            found &= ~held
        elif pin.stage == LAST:
            held[:, -1] = False
            found &= ~held
    return None if found.all() else found


def _to_servers(instance: Instance) -> Iterator[frozenset[int]]:
    for pin in instance.demands.pins:
        if pin.servers is not None:
            yield frozenset(pin.servers)


def _kept(group: Group, pins: list[frozenset[int]]) -> tuple[bool, ...]:
    return tuple(all(server in pin for server, _ in group.counts) for pin in pins)


def _on(tables: Tables, servers: frozenset[int]) -> Bits:
    """Return which kinds are of groups on these servers alone."""
    found = np.zeros(len(tables.kinds), dtype=np.bool_)
    for kind, group in zip(tables.kind_of, tables.groups, strict=True):
        found[kind] = _kept(group, [servers])[0]
    return found


def _holding(space: CutSpace, layers: tuple[int, ...]) -> Bits:
    """Return which spans, ``[start, stop]`` in places, hold one of these layers."""
    places = np.array(space.places)
    before = np.searchsorted(np.array(layers, dtype=np.int64), places)  # so many of them lie before a place
    return np.asarray(before[None, :] > before[:-1, None])
