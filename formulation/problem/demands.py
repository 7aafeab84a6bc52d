"""What a user asks of a plan, resolved: globs made into layer indices, names into server indices, once.

:class:`formulation.problem.constraints.Constraints` is what was written, ``Demands`` what it means on one
instance; rules and families read only the latter. Two narrow what the instance offers: ``forms`` the forms
that a layer may take (rule 4), ``reserve`` the memory of a server's devices (rule 7).

A glob is that of a shell (``fnmatch``): ``features.*``, ``*.attn``, ``fc?``; a layer's whole name matches too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import floor
from typing import TYPE_CHECKING, Any

from formulation.problem.cluster import Server
from formulation.problem.constraints import Constraints, Demands
from formulation.problem.layers import Layer, LayerGraph
from formulation.problem.model.across import FORMS_ALONG, Axis, axes_of, with_pairs
from formulation.problem.units import ceil_fraction

if TYPE_CHECKING:
    from formulation.problem.instance import Instance


def resolve(constraints: Constraints, model: LayerGraph, servers: Sequence[Server]) -> Demands:
    """Look up every glob and name.

    Raises ValueError with every glob that matches no layer, unknown server or device class, layer that is to be
    apart from itself, layer left without a form, and reserve that leaves no memory. Cost: globs x layers.
    """
    look = Lookup(offered(model.layers, constraints), servers, model.closed())
    found: dict[str, Any] = {}
    for one in constraints.values:
        found |= one.resolve(look)
    if look.problems:
        raise ValueError("; ".join(look.problems))
    return Demands(constraints.values, **found)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Looks globs and names up on an instance, and collects what is wrong with them.

    ``closed`` are the layers at which the model itself has no place to cut. ``where`` is always the path below
    ``constraints`` of what is looked up.
    """

    all_layers: Sequence[Layer]
    all_servers: Sequence[Server]
    closed: Sequence[int] = ()
    problems: list[str] = field(default_factory=list)

    def layers(self, where: str, *globs: str) -> tuple[int, ...]:
        """Return the layers that match one of the globs."""
        names = [layer.name for layer in self.all_layers]
        found: set[int] = set()
        for glob in globs:
            matching = {at for at, name in enumerate(names) if name == glob or fnmatchcase(name, glob)}
            if not matching:
                self._unknown(where, f"no layer matches '{glob}'", glob, names)
            found |= matching
        return tuple(sorted(found))

    def server(self, where: str, name: str) -> int:
        """Return a server by its name, -1 if there is none."""
        names = [server.name for server in self.all_servers]
        if name in names:
            return names.index(name)
        self._unknown(where, f"no server '{name}'", name, names)
        return -1

    def of_class(self, where: str, name: str) -> tuple[int, ...]:
        """Return the servers with devices of a class."""
        classes = [server.device_class.name for server in self.all_servers]
        if name not in classes:
            self._unknown(where, f"no device class '{name}'", name, classes)
        return tuple(at for at, one in enumerate(classes) if one == name)

    def _unknown(self, where: str, message: str, word: str, names: Sequence[str]) -> None:
        near = difflib.get_close_matches(word, names, n=1) or difflib.get_close_matches(
            word, names, n=1, cutoff=0.3
        )
        self.wrong(where, message + (f"; the closest is '{near[0]}'" if near else ""))

    def wrong(self, where: str, message: str) -> None:
        """Note a mistake."""
        self.problems.append(f"constraints.{where}: {message}")


def forms_left(
    layers: Sequence[Layer], limits: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> dict[int, tuple[int, ...]]:
    """Return the forms that are left to each layer that pairs (layers, allowed forms) narrow."""
    left: dict[int, tuple[int, ...]] = {}
    for matching, allowed in limits:
        for at in matching:
            left[at] = tuple(form for form in left.get(at, layers[at].allowed_forms) if form in allowed)
    return left


def offered(layers: Sequence[Layer], asked: Constraints | Demands) -> tuple[Layer, ...]:
    """Return the layers with all forms that they may take: also those along axes that are asked for."""
    return tuple(_offered(row, asked.splits) for row in layers)


def _offered(row: Layer, axes: Sequence[Axis]) -> Layer:
    along = (FORMS_ALONG[axis] for axis in axes_of(row) if axis in axes)
    more = {form for forms in along for form, beside in forms.items() if beside in row.allowed_forms}
    if Axis.PAIRS in axes and row.split != "follow":
        more = {*more, *with_pairs({*row.allowed_forms, *more})}
    return replace(row, allowed_forms=tuple({*row.allowed_forms, *more})) if more else row


def narrowed(layers: Sequence[Layer], demands: Demands, samples: int) -> tuple[Layer, ...]:
    """Return the layers with the forms that the demands leave them, for micro-batches of so many samples.

    Where rows may be parts of a sequence, attention needs a sample for each replica, and in form 0 equally many
    for all devices.
    """
    layers = offered(layers, demands)
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
    return _with_memory(servers, [floor(size / whole) for size in sizes])


def _with_memory(servers: Sequence[Server], sizes: Iterable[int]) -> tuple[Server, ...]:
    classes = [replace(row.device_class, memory_bytes=size) for row, size in zip(servers, sizes, strict=True)]
    return tuple(replace(row, device_class=one) for row, one in zip(servers, classes, strict=True))


def with_servers(instance: Instance, servers: Sequence[Server]) -> Instance:
    """Return the instance with other amounts of memory on its servers, given as it has them: without its reserves.

    Without its margin, too: of all amounts that leave so much the least. Raises ValueError where anything but
    memory differs.
    """
    for old, new in zip(instance.servers, servers, strict=True):
        size = old.device_class.memory_bytes
        if replace(new, device_class=replace(new.device_class, memory_bytes=size)) != old:
            raise ValueError(f"server {old.name}: more than its memory differs from {new}")
    reserve, margin = dict(instance.demands.reserve), instance.demands.memory_margin
    sizes = [ceil_fraction(row.device_class.memory_bytes * (1 + margin)) for row in servers]
    whole = _with_memory(servers, (size + reserve.get(at, 0) for at, size in enumerate(sizes)))
    return replace(instance, cluster=replace(instance.cluster, servers=whole))


def with_layers(instance: Instance, layers: Sequence[Layer]) -> Instance:
    """Return the instance with other rows for its layers: a planner that knows fewer forms leaves some out.

    Without splits along further axes, which add forms to those of the rows.
    """
    alone = replace(instance.constraints, splits=())
    return replace(instance, model=replace(instance.model, layers=tuple(layers)), constraints=alone)
