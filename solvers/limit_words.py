"""What a limit of the user says, in words with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from formulation.instance import Instance
from formulation.options import Recompute, Reserve


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 layer``, ``3 layers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_text(size: int) -> str:
    """Write an amount of memory: rounded up to 1/1000 GiB for the eye, and exact in bytes."""
    thousandths = -(-size * 1000 // (1 << 30))
    exact = f"{size:,} bytes"
    return exact if thousandths < 10 else f"{thousandths // 1000}.{thousandths % 1000:03d} GiB ({exact})"


def recompute(choice: Recompute) -> str:
    """Say what stages do with their activations."""
    never = choice is Recompute.NEVER
    return "stages keep all activations for the backward pass" if never else "stages recompute all activations"


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
