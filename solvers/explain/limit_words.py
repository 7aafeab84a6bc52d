"""What a limit of the user says, in words with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from formulation.problem.amounts import goal_amount, price
from formulation.problem.instance import Instance
from formulation.problem.options import Combine, Goal, GoalLimit, Recompute, Reserve
from formulation.problem.units import ceil_div


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 layer``, ``3 layers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_text(size: int) -> str:
    """Write an amount of memory: rounded up to 1/1000 GiB for the eye, and exact in bytes."""
    exact = f"{size:,} bytes"
    return exact if size * 100 <= 1 << 30 else f"{_rounded(size, 1 << 30)} GiB ({exact})"


def _rounded(value: int, unit: int) -> str:
    """Write a value in a unit, rounded up to 1/1000 of it, without zeros at the end."""
    thousandths = ceil_div(value * 1000, unit)
    return f"{thousandths // 1000}.{thousandths % 1000:03d}".rstrip("0").rstrip(".")


def one_of(numbers: Iterable[int], noun: str) -> str:
    """Return numbers that are allowed, with their noun: ``1 device``, ``1 or 2 devices``."""
    *others, last = sorted(numbers)
    return " or ".join([*map(str, others), count(last, noun)])


def goal_limit(instance: Instance, limit: GoalLimit) -> str:
    """Say what a limit on a goal asks for."""
    most = goal_amount(limit.goal, limit.at_most)
    slowest = "the slowest stage or boundary takes"
    if instance.cost.combine is not Combine.MAX:
        slowest = "all stages and boundaries together take"
    return {
        Goal.BOTTLENECK: f"{slowest} at most {most} for one micro-batch",
        Goal.ITERATION_TIME: f"one optimiser step takes at most {most}",
        Goal.COST: f"all devices that stages take cost at most {most} ({_prices(instance)})",
        Goal.MEMORY: f"no device holds more than {most}",
        Goal.DEVICES: f"stages take at most {most} (the cluster has {instance.devices})",
        Goal.STAGES: f"at most {most}",
    }[limit.goal]


def _prices(instance: Instance) -> str:
    """Say what the cheapest device costs, and all devices together."""
    prices = [(server.device_class.price_per_hour, server.devices) for server in instance.servers]
    least, whole = min(prices)[0], sum(price * devices for price, devices in prices)
    return f"the cheapest device {price(least)}, all {instance.devices} together {price(whole)}"


def recompute(choice: Recompute) -> str:
    """Say what stages do with their activations."""
    never = choice is Recompute.NEVER
    return "stages keep all activations for the backward pass" if never else "stages recompute all activations"


def allow_recompute(choice: Recompute) -> str:
    """Say what changes where stages may choose."""
    gained = "drop activations and compute them again" if choice is Recompute.NEVER else "keep their activations"
    return f"set constraints.recompute to allowed: stages may then {gained}"


def more_degrees(allowed: Iterable[int], used: Iterable[int]) -> str:
    """Say which tensor-parallel degrees are missing."""
    missing = " and ".join(map(str, sorted(set(used) - set(allowed))))
    return f"add {missing} to constraints.tensor_parallel_degrees"


def reserve(row: Reserve) -> str:
    """Say how much a server's devices keep."""
    return f"each device of {row.server} keeps {size_text(row.memory_bytes)} for something else"


def _pin(instance: Instance, at: int) -> str:
    pin = instance.constraints.pins[at]
    layers = _layers(instance, [pin.layers], instance.demands.pins[at].layers)
    if pin.stage is not None:
        return f"{layers} in stage {pin.stage}" + (", counted from the end" if pin.stage < 0 else "")
    kept = f"of class {pin.device}" if pin.device is not None else f"of {' and '.join(pin.servers)}"
    return f"{layers} on devices {kept} only"


def _together(instance: Instance, at: int) -> str:
    return f"{_layers(instance, instance.constraints.together[at], instance.demands.together[at])} in one stage"


def _apart(instance: Instance, at: int) -> str:
    pairs = zip(instance.constraints.apart[at], instance.demands.apart[at], strict=True)
    return "never in one stage: " + " with ".join(_layers(instance, [glob], layers) for glob, layers in pairs)


def _no_cut(instance: Instance, at: int) -> str:
    return f"no stage starts at a layer that matches '{instance.constraints.no_cut[at]}'"


def _forms(instance: Instance, at: int) -> str:
    row, (layers, _) = instance.constraints.forms[at], instance.demands.forms[at]
    allowed = " or ".join(map(str, row.allowed))
    return f"{_layers(instance, [row.layers], layers)} in form {allowed}"


def _own(instance: Instance, at: int) -> str:
    return f"the user's own constraint {instance.constraints.own[at].name}"


LISTED: dict[str, Callable[[Instance, int], str]] = {
    "pins": _pin,
    "together": _together,
    "apart": _apart,
    "no_cut": _no_cut,
    "forms": _forms,
    "own": _own,
}
"""By field of Constraints: how its entry is said."""


def _layers(instance: Instance, globs: Sequence[str], layers: Sequence[int]) -> str:
    """Name layers as the user did, and say how many these are."""
    first, last = instance.layers[layers[0]].name, instance.layers[layers[-1]].name
    written = ", ".join(globs)
    if len(layers) == 1:
        return first if written == first else f"'{written}' ({first})"
    return f"'{written}' ({len(layers)} layers, {first} to {last})"
