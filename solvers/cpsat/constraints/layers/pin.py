"""(9) ``pin``: which servers the slot of a layer touches, or which slot it is.

Slots are stages counted from the end, so "stage s from the front" counts the cut points before a layer, and a
stage from the end is a slot. ``slot k holds layer l`` is ``starts[k][l] and not starts[k-1][l]``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pipecut.solvers.cpsat.variables import Family, Posted, Variables

if TYPE_CHECKING:
    from pipecut.formulation.constraints.layers.pin import Pinned


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


FAMILY = Family(9, "pin", post_pin)
