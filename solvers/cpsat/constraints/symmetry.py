"""Redundant families about devices: how much they can do, and which of them cannot be told apart.

(102) ``area``: layers cost at least their *area* (price of the devices times time, the least over all kinds), and
      devices offer at most their price times T. On the line this holds before and after every device position;
      under free placement before and after every slot, with what the slots have taken.
(103) ``alike``: servers that cannot be told apart are touched first in their own order, from the front stage on,
      so that alike servers do not multiply the search.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.problem.constraints import Placement
from pipecut.formulation.problem.groups import Group, line_places
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.suffixes import alike_servers as interchangeable
from pipecut.solvers.cpsat.variables import Posted, Variables


def device_prices(tables: Tables) -> list[int]:
    """Return a price for each device class: small whole numbers in proportion to speed."""
    speeds = [one.flops_per_second for one in tables.instance.device_classes]
    return [max(1, 1000 * speed // max(speeds)) for speed in speeds]


def area(layers: Times, offer: Times, unit_ns: int) -> Callable[[Variables], Posted]:
    """(102) Return the family's generator for prefix sums of areas and of prices along the line.

    It bounds the slowest stage; sums of stages are not bounded by it. Areas are in units of ``unit_ns``, rounded
    down; the threshold is rounded up.
    """

    def post(v: Variables) -> Posted:
        if v.tables.instance.cost.combine is Combine.MAX:
            on_line = v.tables.instance.constraints.placement is Placement.LINE
            most = -(-v.threshold_ns // unit_ns)
            yield from _on_line(v, layers, offer, most) if on_line else _by_slot(v, layers, int(offer[-1]), most)

    return post


def _on_line(v: Variables, layers: Times, offer: Times, threshold: int) -> Posted:
    offered = offer * threshold
    rest = layers[-1] - layers
    for g, (first, _) in enumerate(line_places(v.tables.instance)):
        latest = int(np.searchsorted(layers, offered[first], side="right")) - 1
        enough = np.flatnonzero(rest <= offered[-1] - offered[first])
        earliest = int(enough[0])
        for k in range(v.slots):
            if latest < v.layers - 1:
                yield (k, g, 0), v.model.add_implication(v.runs[k][g], v.starts[k][latest])
            if earliest > 0:
                yield (k, g, 1), v.model.add_implication(v.runs[k][g], ~v.starts[k][earliest - 1])


def _by_slot(v: Variables, layers: Times, total: int, threshold: int) -> Posted:
    """Layer i lies in slot k or behind it exactly if ``starts[k][i]``, so both areas are linear."""
    prices = device_prices(v.tables)
    instance = v.tables.instance
    price = [
        sum(count * prices[instance.class_index(server)] for server, count in group.counts)
        for group in v.tables.groups
    ]
    own = np.diff(layers).tolist()
    taken = 0
    for k in range(v.slots):
        taken += sum(price[g] * literal for g, literal in enumerate(v.runs[k]))
        behind = sum(area * v.starts[k][i] for i, area in enumerate(own) if area)
        spent = v.model.new_int_var(0, total, f"spent[{k}]")
        yield (k, 0), v.model.add(spent == taken)
        yield (k, 1), v.model.add(behind <= threshold * spent)
        before = sum(area * (1 - v.starts[k][i]) for i, area in enumerate(own) if area)
        yield (k, 2), v.model.add(before <= threshold * (total - spent))


def alike_servers(instance: Instance) -> list[list[int]]:
    """Return the servers by classes of those that cannot be told apart: same devices, same links to all others.

    A constraint can tell servers apart that are alike otherwise, as a pin to one of them does.
    """
    return interchangeable(instance, Group.possible(instance), demanded=True)


def post_alike(v: Variables) -> Posted:
    """(103) ``touches[k][t] => touches[k'][s]`` for some slot k' >= k, where t follows s among alike servers."""
    if v.tables.instance.constraints.placement is Placement.LINE:
        return
    for alike in alike_servers(v.tables.instance):
        for before, server in itertools.pairwise(alike):
            for k in range(v.slots):
                earlier = [v.touches[front][before] for front in range(k, v.slots)]
                yield (k, server), v.model.add_bool_or([~v.touches[k][server], *earlier])
