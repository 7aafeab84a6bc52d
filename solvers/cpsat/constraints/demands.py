"""A user's demands, posted to the layered model (``formulation.problem.demands`` says what they mean).

Slots are stages counted from the end, so "stage s from the front" counts the cut points before a layer, and a
stage from the end is a slot. ``slot k holds layer l`` is ``starts[k][l] and not starts[k-1][l]``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ortools.sat.python import cp_model

from formulation.problem.demands import Pinned
from solvers.cpsat.base.families import Family, Posted
from solvers.cpsat.base.variables import Variables


def post_stages(v: Variables) -> Posted:
    """(8) ``at_least - 1 <= sum_l cut[l] <= at_most - 1``."""
    demands = v.tables.instance.demands
    if demands.stages_at_least > 1:
        yield (0,), v.model.add(sum(v.cut) >= demands.stages_at_least - 1)
    if demands.stages_at_most is not None:
        yield (1,), v.model.add(sum(v.cut) <= demands.stages_at_most - 1)


def post_pin(v: Variables) -> Posted:
    """(9) A slot that holds a pinned layer touches no server but the pin's; or the stage of the layers is s."""
    for at, pin in enumerate(v.tables.instance.demands.pins):
        if pin.servers is not None:
            others = [server for server in range(len(v.tables.instance.servers)) if server not in pin.servers]
            for layer, k, server in itertools.product(pin.layers, range(v.slots), others):
                outside = [~v.starts[k][layer], v.starts_by(k - 1, layer), ~v.touches[k][server]]
                yield (at, layer, k, server), v.model.add_bool_or(outside)
        elif pin.stage is not None:
            yield from _post_stage(v, at, pin, pin.stage)


def _post_stage(v: Variables, at: int, pin: Pinned, stage: int) -> Posted:
    """Put the first and the last of the layers into the stage; stages are runs, so all between follow."""
    first, last = pin.layers[0], pin.layers[-1]
    if stage >= 0:
        for layer in (first, last):
            yield (at, layer), v.model.add(sum(v.cut[: layer + 1]) == stage)
    elif -stage > v.slots:
        yield (at,), v.model.add_bool_or([])
    else:
        yield (at, first), v.model.add_bool_or([v.starts[-stage - 1][first]])
        yield (at, last), v.model.add_bool_or([~v.starts_by(-stage - 2, last)])


def post_together(v: Variables) -> Posted:
    """(10) No cut after the first of the layers up to the last."""
    for at, layers in enumerate(v.tables.instance.demands.together):
        for i in range(layers[0] + 1, layers[-1] + 1):
            yield (at, i), v.model.add_bool_or([~v.cut[i]])


def post_apart(v: Variables) -> Posted:
    """(11) A cut between every two layers of different sets that have no third one between them."""
    for at, sets in enumerate(v.tables.instance.demands.apart):
        owners = sorted((layer, owner) for owner, layers in enumerate(sets) for layer in layers)
        for (one, owner), (other, next_owner) in itertools.pairwise(owners):
            if owner != next_owner:
                yield (at, one), v.model.add_bool_or(v.cut[one + 1 : other + 1])


def post_no_cut(v: Variables) -> Posted:
    """(12) ``not cut[l]``."""
    for layer in v.tables.instance.demands.no_cut:
        yield (layer,), v.model.add_bool_or([~v.cut[layer]])


def post_devices_per_stage(v: Variables) -> Posted:
    """(13) No slot runs on a group with another number of devices."""
    allowed = v.tables.instance.demands.devices_per_stage
    if allowed:
        for g in _other(v, allowed):
            for k in range(v.slots):
                yield (k, g), v.model.add_bool_or([~v.runs[k][g]])


def _other(v: Variables, allowed: Sequence[int]) -> list[int]:
    return [g for g, group in enumerate(v.tables.groups) if group.devices not in allowed]


def post_own(v: Variables) -> Posted:
    """(14) What the user's own families post."""
    for at, own in enumerate(v.tables.instance.constraints.own):
        for index, constraint in own.post(v):
            yield (at, *index), _constraint(own.name, constraint)


def _constraint(name: str, posted: object) -> cp_model.Constraint:
    """Hold a user's generator to what a family yields. Raises TypeError for anything else."""
    if not isinstance(posted, cp_model.Constraint):
        raise TypeError(f"own constraint {name}: yielded {posted!r}, expected what v.model.add returns")
    return posted


DEMAND_FAMILIES: tuple[Family, ...] = (
    Family(8, "stages", post_stages),
    Family(9, "pin", post_pin),
    Family(10, "together", post_together),
    Family(11, "apart", post_apart),
    Family(12, "no_cut", post_no_cut),
    Family(13, "devices_per_stage", post_devices_per_stage),
    Family(14, "own", post_own),
)
