"""Modes: how the devices of a stage share its work.

A mode is one value: it is listed, copied, compared, written and read whole. To add a way of sharing work, give
:class:`Mode` a field with its default, :func:`every_mode` its values, :func:`modes` the ones an instance allows,
:func:`read_mode` a line and :func:`in_words` one; then what it costs in ``formulation.costs.times`` and
``formulation.costs.memory``, and the rule that judges it. Groups, kinds, plans, certificates and solvers carry it
along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any

from formulation.problem.instance import Instance
from formulation.problem.options import Recompute

__all__ = [
    "MODE_KEYS",
    "ONE_COPY",
    "SPLITS",
    "Mode",
    "every_mode",
    "in_words",
    "mode_fields",
    "modes",
    "read_mode",
]


@dataclass(frozen=True, slots=True)
class Mode:
    """How so many devices hold a stage.

    They hold ``replicas`` copies of the stage, which divide every micro-batch among them (data parallelism of a
    stage); each copy is split over an equal number of devices that follow one another in server order. With
    ``recompute`` they keep only what the stage received, and run its forward pass again before the backward.
    """

    replicas: int = 1
    recompute: bool = False

    def tensor_parallel_degree(self, devices: int) -> int:
        """Return how many of so many devices one replica is split over."""
        return devices // self.replicas


ONE_COPY = Mode()
"""One replica, split over all devices; all activations are kept."""
MODE_KEYS = tuple(field.name for field in fields(Mode))
"""How plan files, certificates and reports call the fields, in the order in which they are written."""
SPLITS: Mapping[int, str] = MappingProxyType({0: "samples", 1: "input features", 2: "output features"})
"""By which dimension the devices of a replica divide a layer, by its form."""


def every_mode(devices: int) -> Iterator[Mode]:
    """Yield every mode in which so many devices could hold a stage evenly, whatever an instance allows."""
    for replicas in range(1, devices + 1):
        if devices % replicas == 0:
            for recompute in (False, True):
                yield Mode(replicas, recompute)


def modes(instance: Instance, devices: int) -> tuple[Mode, ...]:
    """Return the modes in which an instance allows so many devices to hold a stage, in a fixed order.

    None where a stage may not have so many devices, or no allowed degree divides them.
    ``Recompute.ALLOWED`` offers both; where memory does not count recomputing only costs time.
    """
    constraints, sizes = instance.constraints, instance.demands.devices_per_stage
    # Sizes that no group can have leave all of them: that there is no plan is then for the solvers to prove.
    if devices not in sizes and any(size <= instance.devices for size in sizes):
        return ()
    degrees = constraints.tensor_parallel_degrees or (devices,)
    recompute = {Recompute.NEVER: (False,), Recompute.ALLOWED: (False, True), Recompute.ALWAYS: (True,)}
    return tuple(
        mode
        for mode in every_mode(devices)
        if mode.tensor_parallel_degree(devices) in degrees and mode.recompute in recompute[constraints.recompute]
    )


def mode_fields(mode: Mode) -> dict[str, Any]:
    """Return a mode as plain data, as plan files, certificates and reports write it."""
    return asdict(mode)


def read_mode(raw: Mapping[str, object], devices: int | None, wrong: Callable[[str, str], None]) -> Mode | None:
    """Read a mode for so many devices (None: unknown) out of plain data; what is left out has its default.

    ``wrong`` is told the key and what was expected of every mistake; then there is no mode.
    """
    replicas, recompute = raw.get("replicas", ONE_COPY.replicas), raw.get("recompute", ONE_COPY.recompute)
    if not isinstance(recompute, bool):
        wrong("recompute", "expected true or false")
        return None
    if devices is None:
        return None
    if type(replicas) is not int or not 1 <= replicas <= devices:
        wrong("replicas", f"expected 1 to {devices} replicas")
        return None
    return Mode(replicas, recompute)


def in_words(mode: Mode, devices: int) -> str:
    """Say how so many devices share the work of a stage; nothing where they hold one copy and keep everything."""
    words = []
    if mode.replicas > 1:
        degree = mode.tensor_parallel_degree(devices)
        words.append(f"{mode.replicas} replicas of {degree} {'device' if degree == 1 else 'devices'}")
    if mode.recompute:
        words.append("recomputes activations")
    return ", ".join(words)
