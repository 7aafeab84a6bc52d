"""Limits one by one: what each says, with its numbers, and how it is left out or loosened by a number.

What always holds is no limit here: layers lie in stages in order, servers give the devices that they have, and a
layer takes a form that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from formulation.problem.units import ceil_div

if TYPE_CHECKING:
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class Slack:
    """How a limit is loosened: ``by`` returns the instance with so much more room.

    ``used`` returns how much more room a plan needs; more never hurts. ``say`` puts an amount into words.
    """

    by: Callable[[Instance, int], Instance]
    used: Callable[[Instance, Plan], int]
    say: Callable[[int], str]
    unit: str


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: its path in a scenario file, and what it says, with its numbers.

    ``kind`` (a field of Constraints) and ``entry`` (an index, a goal, or a device class) say which it is.
    ``slack`` is None where no number can be changed. ``remedy`` says how to leave it out, given a plan that needs
    that, where another word in the scenario does it.
    """

    path: str
    words: str
    kind: str
    entry: int | str = 0
    slack: Slack | None = field(default=None, repr=False, compare=False)
    remedy: Callable[[Plan], str] | None = field(default=None, repr=False, compare=False)


def changed(instance: Instance, **fields: Any) -> Instance:  # noqa: ANN401 (fields of any constraint)
    """Return the instance with other values of some fields of its constraints."""
    return replace(instance, constraints=replace(instance.constraints, **fields))


def number_slack(name: str, words: str, noun: str, measure: Callable[[Plan], int], sign: int = 1) -> Slack:
    """Return how a number of the constraints is loosened: upwards (sign 1) or downwards (-1).

    ``measure`` returns the least number under which a plan is allowed (downwards: the largest).
    """

    def number(at: Instance) -> int:
        return getattr(at.constraints, name)

    return Slack(
        by=lambda at, more: changed(at, **{name: max(1, number(at) + sign * more)}),
        used=lambda at, plan: max(0, sign * (measure(plan) - number(at))),
        say=lambda more: words.format(count(more, noun)),
        unit=f"{noun}s",
    )


def overfull(at: Instance, plan: Plan, counts: Callable[[int], bool]) -> int:
    """Return by how many bytes the fullest device of the servers that count is over its memory, or 0."""
    from formulation.costs.prices import stage_costs

    over = [
        cost.memory_bytes - at.servers[server].device_class.memory_bytes
        for stage, cost in zip(plan.stages, stage_costs(at, plan), strict=True)
        for server, _ in stage.group.counts
        if counts(server)
    ]
    return max(0, *over) if over else 0


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 layer``, ``3 layers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def sizes(instance: Instance) -> str:
    """Say how large model and cluster are."""
    return f"the model has {count(len(instance.layers), 'layer')}, the cluster {count(instance.devices, 'device')}"


def one_of(numbers: Iterable[int], noun: str) -> str:
    """Return numbers that are allowed, with their noun: ``1 device``, ``1 or 2 devices``."""
    *others, last = sorted(numbers)
    return " or ".join([*map(str, others), count(last, noun)])


def size_text(size: int) -> str:
    """Write an amount of memory: rounded up to 1/1000 GiB or MiB for the eye, and exact in bytes."""
    exact = f"{size:,} bytes"
    if size * 100 > 1 << 30:
        return f"{_rounded(size, 1 << 30)} GiB ({exact})"
    return f"{_rounded(size, 1 << 20)} MiB ({exact})" if size >= 1 << 20 else exact


def _rounded(value: int, unit: int) -> str:
    """Write a value in a unit, rounded up to 1/1000 of it, without zeros at the end."""
    thousandths = ceil_div(value * 1000, unit)
    return f"{thousandths // 1000}.{thousandths % 1000:03d}".rstrip("0").rstrip(".")


def named(instance: Instance, globs: Sequence[str], layers: Sequence[int]) -> str:
    """Name layers as the user did, and say how many these are."""
    first, last = instance.layers[layers[0]].name, instance.layers[layers[-1]].name
    written = ", ".join(globs)
    if len(layers) == 1:
        return first if written == first else f"'{written}' ({first})"
    return f"'{written}' ({len(layers)} layers, {first} to {last})"
