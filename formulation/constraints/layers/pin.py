"""(9) ``pin``: layers run on devices of some servers or of a class only, or lie in a stage with a number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, devices_of, layers_of, named
from pipecut.formulation.problem.constraints import Key, Keyed, Listed, Names, Written

if TYPE_CHECKING:
    from pipecut.formulation.problem.constraints import Lookup
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan

SECTION = Keyed(
    "PinSection",
    "Where layers must run: exactly one of server, device and stage.",
    (
        Key("layers", Written.GLOB, "layers by name, like 'features.*'", required=True),
        Key(
            "server",
            Written.NAME,
            "their stages have devices of this server only (of alike servers: any of them)",
        ),
        Key("device", Written.NAME, "their stages have devices of this class only"),
        Key("stage", Written.INDEX, "their stage: 0, 1, ... from the front, -1 is the last"),
    ),
)


@dataclass(frozen=True, slots=True)
class Pin:
    """Where layers must run: ``layers`` is a glob on layer names, and exactly one of the others says where.

    ``servers``: their stages run on devices of these servers only; ``device``: on devices of this class only;
    ``stage``: they lie in this stage, counted from the front (0, 1, ...) or from the end (-1, -2, ...).
    """

    layers: str
    servers: tuple[str, ...] = ()
    device: str | None = None
    stage: int | None = None

    def __post_init__(self) -> None:
        if (len(self.servers) > 0) + (self.device is not None) + (self.stage is not None) != 1:
            raise ValueError(f"pin of '{self.layers}': expected exactly one of servers, device and stage")


@dataclass(frozen=True, slots=True)
class Pinned:
    """Layers that run on devices of these ``servers`` only (None: any), or lie in this ``stage`` (None: any)."""

    layers: tuple[int, ...]
    servers: tuple[int, ...] | None
    stage: int | None


@dataclass(frozen=True, slots=True)
class Pins(Constraint):
    """All pins; each has to be kept."""

    number, rule, rank, of_servers = 9, "pin", 150, True
    key = Key("pin", Listed(SECTION), "layers that must run in a certain place or stage")

    pins: tuple[Pin, ...] = ()

    @classmethod
    def read(cls, found: Any, names: Names) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the pins; the common name of alike servers stands for each of them."""
        return {
            "pins": tuple(
                Pin(
                    row.layers,
                    names.standing_for(row.server) if row.server is not None else (),
                    row.device,
                    row.stage,
                )
                for row in found
            )
        }

    @classmethod
    def mistakes(cls, found: Any, names: Names) -> Iterator[tuple[tuple[str | int, ...], str]]:  # noqa: ANN401
        """Yield pins that name no place, several, or one that is not there."""
        for at, pin in enumerate(found):
            if pin is None:
                continue
            given = [key for key in ("server", "device", "stage") if getattr(pin, key) is not None]
            if len(given) != 1:
                got = " and ".join(given) or "none of them"
                yield (at,), f"expected one of 'server', 'device' and 'stage', got {got}"
            if pin.server is not None and names.servers is not None and pin.server not in names.servers:
                yield (at, "server"), f"no server '{pin.server}'{names.hint(pin.server, names.servers)}"
            if pin.device is not None and names.classes is not None:
                if pin.device not in names.classes:
                    hint = names.hint(pin.device, names.classes)
                    yield (at, "device"), f"no device class '{pin.device}' in cluster.devices{hint}"
                elif names.used is not None and pin.device not in names.used:
                    yield (at, "device"), f"no server has devices of class '{pin.device}'"

    def resolve(self, look: Lookup) -> Mapping[str, Any]:
        """Return each pin with its layers and the servers that it leaves."""
        return {"pins": tuple(_pinned(look, f"pin[{at}]", pin) for at, pin in enumerate(self.pins))}

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(9) Pinned layers lie in their stage, or in stages on devices of their servers only."""
        for at, pin in enumerate(instance.demands.pins):
            for index, stage in enumerate(plan.stages):
                inside = [layer for layer in pin.layers if layer in stage.span]
                if not inside:
                    continue
                where = f"stage {index}"
                what = f"constraints.pin[{at}]: stage {index} holds {layers_of(instance, inside)}"
                if pin.stage is not None and index != _from_front(pin.stage, len(plan)):
                    counted = f" of {len(plan)}" if pin.stage < 0 else ""
                    message = f"{what}, which belong in stage {pin.stage}{counted}"
                    yield Violation("pin", where, index, _from_front(pin.stage, len(plan)), "stage", message)
                if pin.servers is not None:
                    strays = [(one, count) for one, count in stage.group.counts if one not in pin.servers]
                    if strays:
                        kept = ", ".join(instance.servers[server].name for server in pin.servers)
                        taken = devices_of(instance, strays)
                        message = f"{what} and runs on {taken}, expected devices of {kept} only"
                        devices = sum(count for _, count in strays)
                        yield Violation("pin", where, devices, 0, "devices elsewhere", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield each pin."""
        for at, (pin, pinned) in enumerate(zip(self.pins, instance.demands.pins, strict=True)):
            layers = named(instance, [pin.layers], pinned.layers)
            if pin.stage is not None:
                words = f"{layers} in stage {pin.stage}" + (", counted from the end" if pin.stage < 0 else "")
            else:
                kept = f"of class {pin.device}" if pin.device is not None else f"of {' and '.join(pin.servers)}"
                words = f"{layers} on devices {kept} only"
            yield Limit(f"constraints.pin[{at}]", words, "pins", at)

    def tells_apart(self, one: int, other: int) -> bool:
        """Tell whether a pin takes one of two servers and not the other."""
        pinned: Any = self.pins  # resolved
        return any((one in pin.servers) != (other in pin.servers) for pin in pinned if pin.servers is not None)


def _pinned(look: Lookup, where: str, pin: Pin) -> Pinned:
    layers = look.layers(f"{where}.layers", pin.layers)
    if pin.device is not None:
        return Pinned(layers, look.of_class(f"{where}.device", pin.device), None)
    if pin.stage is not None:
        return Pinned(layers, None, pin.stage)
    return Pinned(layers, tuple(sorted(look.server(f"{where}.server", name) for name in pin.servers)), None)


def _from_front(stage: int, stages: int) -> int:
    """Return a stage's index from the front; one counted from the end of a plan with too few is negative."""
    return stage if stage >= 0 else stages + stage
