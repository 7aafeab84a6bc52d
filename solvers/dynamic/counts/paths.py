"""Plans out of counts: walk back through the slots, then give every stage its servers.

Of all whole plans the one with the fewest devices, then the fewest stages. On the line stages take the next
devices. Under free placement they are packed into the servers of their class, the largest first, and where that
fails by trying; stages that are only joined fast enough within one server are packed together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.units import Link
from pipecut.solvers.dynamic.counts.layouts import CountedPlace, common_lanes
from pipecut.solvers.dynamic.counts.packing import packed
from pipecut.solvers.dynamic.counts.reach import CountReach, CountSpace
from pipecut.solvers.dynamic.counts.unslotted import UnslottedReach

Chosen = tuple[CountedPlace, Span, Group]
"""A stage: its place up to alike servers, its layers, and a group of that place."""


def count_path(reach: CountReach | UnslottedReach) -> Plan | None:
    """Return a plan with form 0 everywhere; None if its stages could not be packed into servers.

    Raises LookupError where no suffix is a whole plan.
    """
    chosen = list(_unslotted(reach) if isinstance(reach, UnslottedReach) else _stages(reach))
    if isinstance(reach, UnslottedReach) or reach.space.layout.on_line:
        groups = _on_the_line(reach.space, chosen)
    else:
        groups = _packed(reach, chosen)
    if groups is None:
        return None
    rows = zip(chosen, groups, strict=True)
    return Plan(tuple(Stage(span, group, (0,) * (span.stop - span.first)) for (_, span, _), group in rows))


def _unslotted(reach: UnslottedReach) -> Iterator[Chosen]:
    for place, span, index in reach.stages():
        yield place, span, reach.space.tables.groups[index]


def _stages(reach: CountReach) -> Iterator[Chosen]:
    """Yield the stages of a plan with the fewest devices, from the first to the last."""
    found = reach.least()
    if not found:
        raise LookupError("no suffix is a whole plan")
    _, slot, key, others = min(found)
    layer = 0
    while slot >= 0:
        value = int(reach.found[slot][key][(layer, *others)])
        place, stop, before, key = _step_back(reach, slot, key, layer, others, value)
        yield place, Span(layer, stop), _group(reach, slot, place, Span(layer, stop))
        slot, layer, others = slot - 1, stop, before


def _step_back(
    reach: CountReach, slot: int, key: tuple[int, int], layer: int, others: tuple[int, ...], value: int
) -> tuple[CountedPlace, int, tuple[int, ...], tuple[int, int]]:
    """Return (place, layer after the stage, devices of other classes and (base, hand) behind it)."""
    layout, best = reach.space.layout, None
    ends = reach.stops(slot)
    for at, place in enumerate(layout.places):
        if (place.base_after, reach.hand[place.hand]) != key:
            continue
        before = tuple(one - taken for one, taken in zip(others, reach.taken(place), strict=True))
        left = value - (place.devices if place.server_class == layout.counted else 0)
        if left < 0 or any(one < 0 for one in before):
            continue
        for behind, open_, values in _behind(reach, slot, place):
            row = values[(slice(layer + 1, int(ends[at, layer]) + 1), *before)]
            cuts = np.flatnonzero((row == left) & open_[layer + 1 : layer + 1 + len(row)])
            if len(cuts) and (best is None or layer + 1 + int(cuts[-1]) > best[1]):
                best = place, layer + 1 + int(cuts[-1]), before, behind
    if best is None:
        raise LookupError(f"slot {slot}: no stage from layer {layer} makes up {value} devices")
    return best


def _behind(
    reach: CountReach, slot: int, place: CountedPlace
) -> Iterator[tuple[tuple[int, int], np.ndarray, np.ndarray]]:
    """Yield what may lie behind a place: (base, hand), where it can be crossed, and the devices that it takes."""
    if slot == 0:
        table = reach.before_any(place.base)
        yield (place.base, 0), np.ones(len(table), dtype=np.bool_), table
        return
    for (base, hand), values in reach.found[slot - 1].items():
        if base == place.base:
            yield (base, hand), reach.crossable(base, place.hand, hand), values


def _group(reach: CountReach, slot: int, place: CountedPlace, span: Span) -> Group:
    """Return the first way in which the devices of a place hold a span of layers in a slot."""
    tables, ends = reach.space.tables, reach.ends(slot)
    for index in place.groups:
        if int(ends[tables.kind_of[index], span.first]) >= span.stop:
            return tables.groups[index]
    raise LookupError(f"slot {slot}: no way of a place of {place.devices} devices holds layers {span}")


def _on_the_line(space: CountSpace, chosen: list[Chosen]) -> list[Group]:
    groups: list[Group] = []
    first = 0
    for place, _, group in chosen:
        groups.append(Group.on_line(space.tables.instance, first, place.devices, group.mode))
        first += place.devices
    return groups


def _packed(reach: CountReach, chosen: list[Chosen]) -> list[Group] | None:
    """Give every stage a server of its class; None if no way is found, or boundaries are too slow in it."""
    tables, layout = reach.space.tables, reach.space.layout
    instance, threshold_ns = tables.instance, reach.threshold_ns
    joined = [
        not _fast(tables, _between_servers(reach, one[0], other[0]), other[1].first, threshold_ns)
        for one, other in itertools.pairwise(chosen)
    ]
    sizes = [instance.servers[row[0]].devices for row in layout.classes]
    numbers = [len(row) for row in layout.classes]
    bins = packed([(place.server_class, place.devices) for place, _, _ in chosen], joined, sizes, numbers)
    if bins is None:
        return None
    groups = [
        replace(group, counts=((layout.classes[place.server_class][at], place.devices),))
        for (place, _, group), at in zip(chosen, bins, strict=True)
    ]
    for (one, other), (_, span, _) in zip(itertools.pairwise(groups), chosen[1:], strict=True):
        link = Group.link_between(instance, one, other)
        if link is not None and not _fast(tables, [link], span.first, threshold_ns):
            return None
    return groups


def _between_servers(reach: CountReach, one: CountedPlace, other: CountedPlace) -> list[Link]:
    """Return the link between two stages in two servers; nothing if there is only one server."""
    layout, instance = reach.space.layout, reach.space.tables.instance
    mine, theirs = layout.classes[one.server_class], layout.classes[other.server_class]
    if mine == theirs and len(mine) == 1:
        return []
    link = instance.links[mine[0]][mine[1] if mine == theirs else theirs[0]]
    return [] if link is None else [link.times(common_lanes(instance, layout.classes, one, other))]


def _fast(tables: Tables, links: list[Link], cut: int, threshold_ns: int) -> bool:
    """Tell whether a boundary can be crossed over one of these links within the threshold."""
    rows = (tables.links.index(link) for link in links)
    return any(int(tables.activation[at, cut] + tables.gradient[at, cut]) <= threshold_ns for at in rows)
