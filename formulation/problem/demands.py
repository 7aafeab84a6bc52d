"""What a user asks of a plan, resolved: globs made into layer indices, names into server indices, once.

:class:`formulation.problem.constraints.Constraints` is what was written, ``Demands`` what it means on one
instance; rules and families read only the latter. Two narrow what the instance offers: ``forms`` the forms
that a layer may take (rule 4), ``reserve`` the memory of a server's devices (rule 7).

A glob is that of a shell (``fnmatch``): ``features.*``, ``*.attn``, ``fc?``; a layer's whole name matches too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import floor
from typing import Any

from pipecut.formulation.problem.cluster import Server
from pipecut.formulation.problem.constraints import Constraints, Demands, Lookup
from pipecut.formulation.problem.layers import FORMS_ALONG, Axis, Layer, LayerGraph, axes_of, with_pairs


def resolve(constraints: Constraints, model: LayerGraph, servers: Sequence[Server]) -> Demands:
    """Look up every glob and name.

    Raises ValueError with every glob that matches no layer, unknown server or device class, layer that is to be
    apart from itself, layer left without a form, and reserve that leaves no memory. Cost: globs x layers.
    """
    look = Lookup(offered(model, constraints), servers, model.closed())
    found: dict[str, Any] = {}
    for one in constraints.values:
        found |= one.resolve(look)
    if look.problems:
        raise ValueError("; ".join(look.problems))
    return Demands(constraints.values, **found)


def forms_left(
    layers: Sequence[Layer], limits: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> dict[int, tuple[int, ...]]:
    """Return the forms that are left to each layer that pairs (layers, allowed forms) narrow."""
    left: dict[int, tuple[int, ...]] = {}
    for matching, allowed in limits:
        for at in matching:
            left[at] = tuple(form for form in left.get(at, layers[at].allowed_forms) if form in allowed)
    return left


def offered(model: LayerGraph, asked: Constraints | Demands) -> tuple[Layer, ...]:
    """Return the layers with all forms that they may take: also those along axes that are asked for. Made once."""
    axes = tuple(asked.splits)
    if axes not in model.known:
        model.known[axes] = tuple(_offered(row, axes) for row in model.layers)
    return model.known[axes]


def _offered(row: Layer, axes: Sequence[Axis]) -> Layer:
    along = (FORMS_ALONG[axis] for axis in axes_of(row) if axis in axes)
    more = {form for forms in along for form, beside in forms.items() if beside in row.allowed_forms}
    if Axis.PAIRS in axes and row.split != "follow":
        more = {*more, *with_pairs({*row.allowed_forms, *more})}
    return replace(row, allowed_forms=tuple({*row.allowed_forms, *more})) if more else row


def narrowed(model: LayerGraph, demands: Demands, samples: int) -> tuple[Layer, ...]:
    """Return the layers with the forms that the demands leave them, for micro-batches of so many samples.

    Where rows may be parts of a sequence, attention needs a sample for each replica, and in form 0 equally many
    for all devices.
    """
    layers = offered(model, demands)
    if {Axis.SEQUENCE, Axis.CONTEXT}.intersection(demands.splits):
        layers = tuple(_in_whole_samples(row, samples) for row in layers)
    left = forms_left(layers, demands.forms)
    return tuple(replace(row, allowed_forms=left[at]) if at in left else row for at, row in enumerate(layers))


def _in_whole_samples(row: Layer, samples: int) -> Layer:
    if row.across is None or row.across.axis is not Axis.CONTEXT:
        return row
    return replace(row, across=replace(row.across, samples=samples))


def lessened(servers: Sequence[Server], demands: Demands) -> tuple[Server, ...]:
    """Return the servers with what devices have for a stage: less their reserves, and a margin of what is left.

    Devices with different amounts left are of different classes, with the same name.
    """
    less, whole = dict(demands.reserve), 1 + demands.memory_margin
    sizes = [row.device_class.memory_bytes - less.get(at, 0) for at, row in enumerate(servers)]
    return with_memory(servers, [floor(size / whole) for size in sizes])


def with_memory(servers: Sequence[Server], sizes: Iterable[int]) -> tuple[Server, ...]:
    """Return the servers with other amounts of memory on their devices."""
    rows = zip(servers, sizes, strict=True)
    return tuple(row if row.device_class.memory_bytes == size else _with_bytes(row, size) for row, size in rows)


def _with_bytes(server: Server, size: int) -> Server:
    return replace(server, device_class=replace(server.device_class, memory_bytes=size))
