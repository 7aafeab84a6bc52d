"""Devices of the library as device classes, for a cluster that might have them."""

from __future__ import annotations

from collections.abc import Sequence

from commands.terminal.failures import InputError
from formulation.problem.cluster import DeviceClass
from formulation.problem.constraints import Goal
from formulation.problem.instance import Instance
from ingest.mistakes import ScenarioError
from ingest.scenario.fields import NumberFormat
from ingest.scenario.library import Library, near_names
from ingest.scenario.load import Scenario
from ingest.text.overrides import apply_overrides
from ingest.text.yaml_source import Document


def other_devices(
    scenario: Scenario, overrides: Sequence[str], instance: Instance, names: Sequence[str] | None
) -> list[DeviceClass]:
    """Return the devices of the library that could replace those of an instance, the slowest first.

    ``names`` are those that are asked for; None: all that have a peak for the numbers of the training, one of
    those that are alike in what counts: peak, bandwidth, memory where it is limited, price where it is a goal.
    With a price as goal, only those that have one. Raises InputError for a name that the library does not have, or
    has no such peak of.
    """
    library = Library.read()
    for name in names or ():
        if name not in library.devices:
            hint = near_names(name, library.devices)
            raise InputError(f"no device '{name}' in the library{hint}")
    arithmetic = _arithmetic(scenario, overrides)
    size, found = instance.training.elements.activations, dict[tuple[int, ...], DeviceClass]()
    for name in names or library.devices:
        device = library.devices[name]
        try:
            peak = device.peak(name, size, arithmetic)
        except LookupError as error:
            if names is not None:
                raise InputError(str(error)) from error
            continue
        price = _price(library, name)
        if Goal.COST in instance.goals and not price:
            continue
        moved = device.memory_bandwidth.value // 8  # bits
        one = DeviceClass(name, device.usable, peak, price, memory_bytes_per_second=moved)
        memory = one.memory_bytes if instance.constraints.memory or Goal.MEMORY in instance.goals else 0
        found.setdefault((peak, moved, memory, price if Goal.COST in instance.goals else 0), one)
    return [found[key] for key in sorted(found)]


def _price(library: Library, name: str) -> int:
    """Return what a device costs for an hour, in millionths, in the cheapest machine that has a price; 0: none."""
    prices = [machine.device_price for machine in library.machines.values() if machine.device == name]
    return min((price for price in prices if price), default=0)


def _arithmetic(scenario: Scenario, overrides: Sequence[str]) -> NumberFormat | None:
    """Return the number format that a scenario file asks peaks for; None where it leaves that to the elements."""
    try:
        data = apply_overrides(Document.read(scenario.path), overrides).data
    except ScenarioError:
        return None
    cluster = data.get("cluster") if isinstance(data, dict) else None
    named = cluster.get("arithmetic") if isinstance(cluster, dict) else None
    return NumberFormat(named) if named in list(NumberFormat) else None
