"""What searches for executed times see of demands, and the instance without what they do not see.

They look stages up in tables (``solvers.dynamic.tables.demanded``), count them by slots, and know which devices
are taken. So they see pins to servers and to the ends of a plan, layers that are to be apart, numbers of stages,
limits on devices and on their price, and stages that are to be alike. What is left are demands on stages in the
middle, on servers that several stages share, on other goals, and what users state in Python.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import in_common
from pipecut.solvers.dynamic.states.state_dp import unseen_by_states
from pipecut.solvers.dynamic.states.states import StateSpace
from pipecut.solvers.dynamic.tables.demanded import is_seen
from pipecut.solvers.search.support import devices_of

SEEN = ("stages", "pin", "apart", "equal_stages", "at_most")
LIMITED = (Goal.DEVICES, Goal.COST, Goal.STAGES)
"""Goals whose limits say which devices, and how many stages, a whole plan may have."""


def unseen_by_executed(instance: Instance) -> str | None:
    """Return None if every demand of the instance is seen, else those that are not."""
    if unseen := unseen_names(instance):
        return f"searches for executed times do not see the constraints {', '.join(unseen)}"
    return unseen_by_states(instance, *SEEN)


def unseen_names(instance: Instance) -> tuple[str, ...]:
    """Return the demands that are not seen, as scenarios call them."""
    left, constraints, found = _left(instance), instance.constraints, list[str]()
    if "pins" in left:
        found.append("pin (to a stage that is neither the first nor the last)")
    found += [f"at_most.{one.goal}" for one in constraints.at_most if one.goal not in LIMITED]
    if "stages_per_server" in left:
        found.append("stages_per_server")
    return (*found, *(one.name for one in constraints.own))


def with_seen_demands(instance: Instance) -> Instance:
    """Return the instance without the demands that are not seen: every plan of the instance is one of it, too."""
    return replace(instance, constraints=replace(instance.constraints, **_left(instance)))


def demanded_spaces(space: StateSpace, tables: Tables) -> list[StateSpace]:
    """Return the states of plans that keep to limits on devices and prices, and whose stages are alike if asked.

    A plan is one of exactly one of them. Cost: linear in nodes and steps for each way to be alike.
    """
    space = _afforded(space, tables.instance)
    if not tables.instance.constraints.equal_stages:
        return [space]
    alike = [(kind.devices, in_common(tables.instance.constraints, kind.mode)) for kind in tables.kinds]
    every = dict.fromkeys(alike)
    return [_of_kinds(space, {at for at, one in enumerate(alike) if one == size}) for size in every]


def _left(instance: Instance) -> dict[str, Any]:
    """Return the values of constraints that differ without what is not seen."""
    constraints, found = instance.constraints, dict[str, Any]()
    pins = zip(constraints.pins, instance.demands.pins, strict=True)
    seen = {
        "pins": tuple(pin for pin, resolved in pins if is_seen(resolved)),
        "at_most": tuple(one for one in constraints.at_most if one.goal in LIMITED),
        "stages_per_server": None,
        "own": (),
    }
    for name, value in seen.items():
        if getattr(constraints, name) != value:
            found[name] = value
    return found


def _afforded(space: StateSpace, instance: Instance) -> StateSpace:
    """Return the states without whole plans that take too many devices, or too dear ones."""
    if instance.constraints.placement is Placement.LINE:
        # A whole plan takes the devices up to where its last stage stops.
        most = devices_of(instance)
        kept = [state for state in space.empty.tolist() if space.states[state][0] <= most]
        return replace(space, empty=np.array(kept, dtype=space.empty.dtype))
    limits = {one.goal: one.at_most for one in instance.constraints.at_most}
    taken = np.array(space.states, dtype=np.int64)
    weights = {Goal.DEVICES: 1, Goal.COST: [server.device_class.price_per_hour for server in instance.servers]}
    for goal, weight in weights.items():
        if goal in limits:
            whole = (taken * weight).sum(axis=1) <= limits[goal]
            space = replace(space, complete=space.complete & whole[space.node_state])
    return space


def _of_kinds(space: StateSpace, kinds: set[int]) -> StateSpace:
    steps = (replace(one, kinds=tuple(kind for kind in one.kinds if kind in kinds)) for one in space.steps)
    return replace(space, steps=tuple(one for one in steps if one.kinds))
