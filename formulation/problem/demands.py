"""What a user asks of a plan, resolved: globs made into layer indices, names into server indices, once.

:class:`formulation.problem.constraints.Constraints` is what was written, :class:`Demands` what it means on one
instance; rules (``formulation.constraints.demand_rules``) and families (``solvers.cpsat.constraints.demands``)
read only the latter. Two demands need no rule of their own, as they narrow what the instance offers: ``forms`` the
forms that a layer may take (rule 4), ``reserve`` the memory of a server's devices (rule 7).

A glob is that of a shell (``fnmatch``): ``features.*``, ``*.attn``, ``fc?``; a layer's whole name matches too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from formulation.problem.cluster import Server
from formulation.problem.layers import FORMS, Layer, Split
from formulation.problem.options import Constraints, Pin

if TYPE_CHECKING:
    from formulation.problem.instance import Instance

__all__ = [
    "Demands",
    "Pinned",
    "lessened",
    "narrowed",
    "possible_cuts",
    "resolve",
    "with_constraints",
    "with_layers",
    "with_servers",
]


@dataclass(frozen=True, slots=True)
class Pinned:
    """Layers that run on devices of these ``servers`` only (None: any), or lie in this ``stage`` (None: any)."""

    layers: tuple[int, ...]
    servers: tuple[int, ...] | None
    stage: int | None


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands of a user by index: layers in pipeline order, servers in line order; each tuple is sorted.

    ``pins``, ``together`` and ``apart`` have one entry for each that was written, in that order. ``apart`` holds
    sets of layers of which no two may meet in a stage. ``no_cut`` are the layers at which no stage starts, whether
    the user closed them or the model has no place to cut there.
    ``forms`` are pairs (layers, allowed forms), ``reserve`` pairs (server, bytes).
    """

    stages_at_least: int = 0
    stages_at_most: int | None = None
    pins: tuple[Pinned, ...] = ()
    together: tuple[tuple[int, ...], ...] = ()
    apart: tuple[tuple[tuple[int, ...], ...], ...] = ()
    no_cut: tuple[int, ...] = ()
    devices_per_stage: tuple[int, ...] = ()
    forms: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    reserve: tuple[tuple[int, int], ...] = ()

    def named(self) -> tuple[str, ...]:
        """Return the names of the rules (8 to 13) that limit the plans of this instance."""
        limits = {
            "stages": self.stages_at_least > 1 or self.stages_at_most is not None,
            "pin": bool(self.pins),
            "together": bool(self.together),
            "apart": bool(self.apart),
            "no_cut": bool(self.no_cut),
            "devices_per_stage": bool(self.devices_per_stage),
        }
        return tuple(name for name, limited in limits.items() if limited)

    def closing(self, layers: Sequence[int]) -> Demands:
        """Return these demands with more layers at which no stage starts."""
        return replace(self, no_cut=tuple(sorted({*self.no_cut, *layers})))

    def tell_apart(self, one: int, other: int) -> bool:
        """Tell whether a pin takes one of two servers and not the other, so that they cannot be exchanged."""
        pinned = (pin.servers for pin in self.pins if pin.servers is not None)
        return any((one in servers) != (other in servers) for servers in pinned)


def possible_cuts(instance: Instance) -> tuple[int, ...]:
    """Return 0, every layer at which a stage may start, and N: what model, ``no_cut`` and ``together`` leave."""
    closed = set(instance.demands.no_cut)
    for layers in instance.demands.together:
        closed.update(range(layers[0] + 1, layers[-1] + 1))
    total = len(instance.layers)
    return (0, *(cut for cut in range(1, total) if cut not in closed), total)


def resolve(constraints: Constraints, layers: Sequence[Layer], servers: Sequence[Server]) -> Demands:
    """Look up every glob and name.

    Raises ValueError with every glob that matches no layer, unknown server or device class, layer that is to be
    apart from itself, layer left without a form, and reserve that leaves no memory. Cost: globs x layers.
    """
    look = _Lookup(layers, servers)
    demands = Demands(
        stages_at_least=constraints.stages_at_least or 0,
        stages_at_most=constraints.stages_at_most,
        pins=tuple(look.pin(f"pin[{at}]", pin) for at, pin in enumerate(constraints.pins)),
        together=tuple(look.layers(f"together[{at}]", *row) for at, row in enumerate(constraints.together)),
        apart=tuple(look.apart(f"apart[{at}]", row) for at, row in enumerate(constraints.apart)),
        no_cut=tuple(
            sorted({one for at, row in enumerate(constraints.no_cut) for one in look.layers(f"no_cut[{at}]", row)})
        ),
        devices_per_stage=tuple(sorted(set(constraints.devices_per_stage))),
        forms=tuple(
            (look.choosing(f"forms[{at}]", row.layers, row.allowed), row.allowed)
            for at, row in enumerate(constraints.forms)
        ),
        reserve=tuple(
            (look.reserved(f"reserve.{row.server}", row.server, row.memory_bytes), row.memory_bytes)
            for row in constraints.reserve
        ),
    )
    problems = [*look.problems, *_formless(demands, layers)]
    if problems:
        raise ValueError("; ".join(problems))
    return demands


class _Lookup:
    """Looks globs and names up, and collects what is wrong with them."""

    def __init__(self, layers: Sequence[Layer], servers: Sequence[Server]) -> None:
        self._layers, self._servers = layers, servers
        self.problems: list[str] = []

    def layers(self, where: str, *globs: str) -> tuple[int, ...]:
        """Return the layers that match one of the globs."""
        names = [layer.name for layer in self._layers]
        found: set[int] = set()
        for glob in globs:
            matching = {at for at, name in enumerate(names) if name == glob or fnmatchcase(name, glob)}
            if not matching:
                self._unknown(where, f"no layer matches '{glob}'", glob, names)
            found |= matching
        return tuple(sorted(found))

    def pin(self, where: str, pin: Pin) -> Pinned:
        """Return a pin with the servers that it leaves."""
        layers = self.layers(f"{where}.layers", pin.layers)
        if pin.device is not None:
            classes = [server.device_class.name for server in self._servers]
            if pin.device not in classes:
                self._unknown(f"{where}.device", f"no device class '{pin.device}'", pin.device, classes)
            return Pinned(layers, tuple(at for at, name in enumerate(classes) if name == pin.device), None)
        if pin.stage is not None:
            return Pinned(layers, None, pin.stage)
        return Pinned(layers, tuple(sorted(self._server(f"{where}.server", name) for name in pin.servers)), None)

    def apart(self, where: str, globs: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the layers of each glob, no layer in two of them."""
        sets = tuple(self.layers(where, glob) for glob in globs)
        seen: dict[int, str] = {}
        for glob, layers in zip(globs, sets, strict=True):
            both = [layer for layer in layers if layer in seen]
            if both:
                name = self._layers[both[0]].name
                self._wrong(
                    where, f"layer {name} matches '{seen[both[0]]}' and '{glob}', and cannot be apart from itself"
                )
            seen.update((layer, glob) for layer in layers)
        return sets

    def choosing(self, where: str, glob: str, allowed: Sequence[int]) -> tuple[int, ...]:
        """Return the matching layers that choose a form."""
        matching = self.layers(f"{where}.layers", glob)
        found = tuple(at for at in matching if self._layers[at].split is not Split.FOLLOW)
        if matching and not found:
            self._wrong(
                where, f"every layer that matches '{glob}' keeps the layout of its producer and has no form"
            )
        if not allowed or not set(allowed) <= set(FORMS):
            self._wrong(where, f"allowed forms {list(allowed)}, expected some of {list(FORMS)}")
        return found

    def reserved(self, where: str, name: str, size: int) -> int:
        """Return the server of a reserve that leaves some memory."""
        at = self._server(where, name)
        memory = self._servers[at].device_class.memory_bytes if at >= 0 else size + 1
        if not 0 <= size < memory:
            self._wrong(
                where, f"{size} bytes of devices that have {memory}; expected 0 or more, and less than they have"
            )
        return at

    def _server(self, where: str, name: str) -> int:
        names = [server.name for server in self._servers]
        if name in names:
            return names.index(name)
        self._unknown(where, f"no server '{name}'", name, names)
        return -1

    def _unknown(self, where: str, message: str, word: str, names: Sequence[str]) -> None:
        near = difflib.get_close_matches(word, names, n=1) or difflib.get_close_matches(
            word, names, n=1, cutoff=0.3
        )
        self._wrong(where, message + (f"; the closest is '{near[0]}'" if near else ""))

    def _wrong(self, where: str, message: str) -> None:
        self.problems.append(f"constraints.{where}: {message}")


def _formless(demands: Demands, layers: Sequence[Layer]) -> Iterator[str]:
    for at, left in _left(demands, layers).items():
        if not left:
            has = ", ".join(map(str, layers[at].allowed_forms))
            yield f"constraints.forms: they leave layer {layers[at].name} none of its forms ({has})"


def _left(demands: Demands, layers: Sequence[Layer]) -> dict[int, tuple[int, ...]]:
    """Return the forms that are left to each layer that the demands narrow."""
    left: dict[int, tuple[int, ...]] = {}
    for matching, allowed in demands.forms:
        for at in matching:
            left[at] = tuple(form for form in left.get(at, layers[at].allowed_forms) if form in allowed)
    return left


def narrowed(layers: Sequence[Layer], demands: Demands) -> tuple[Layer, ...]:
    """Return the layers with the forms that the demands leave them."""
    left = _left(demands, layers)
    return tuple(replace(row, allowed_forms=left[at]) if at in left else row for at, row in enumerate(layers))


def lessened(servers: Sequence[Server], reserve: Sequence[tuple[int, int]]) -> tuple[Server, ...]:
    """Return the servers with devices that have so much less memory (negative amounts: more).

    Devices with different amounts left are of different classes, with the same name.
    """
    less = dict.fromkeys(range(len(servers)), 0)
    for at, size in reserve:
        less[at] += size
    classes = [
        replace(row.device_class, memory_bytes=row.device_class.memory_bytes - less[at])
        for at, row in enumerate(servers)
    ]
    return tuple(replace(row, device_class=one) for row, one in zip(servers, classes, strict=True))


def with_constraints(instance: Instance, constraints: Constraints) -> Instance:
    """Return the instance under other constraints. Raises ValueError as :func:`resolve` does."""
    return replace(instance, constraints=constraints)


def with_servers(instance: Instance, servers: Sequence[Server]) -> Instance:
    """Return the instance with other amounts of memory on its servers, given as it has them: without its reserves.

    Raises ValueError where anything but memory differs.
    """
    for old, new in zip(instance.servers, servers, strict=True):
        size = old.device_class.memory_bytes
        if replace(new, device_class=replace(new.device_class, memory_bytes=size)) != old:
            raise ValueError(f"server {old.name}: more than its memory differs from {new}")
    whole = lessened(servers, [(at, -size) for at, size in instance.demands.reserve])
    return replace(instance, cluster=replace(instance.cluster, servers=whole))


def with_layers(instance: Instance, layers: Sequence[Layer]) -> Instance:
    """Return the instance with other rows for its layers: a planner that knows fewer forms leaves some out."""
    return replace(instance, model=replace(instance.model, layers=tuple(layers)))
