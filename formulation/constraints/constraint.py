"""A constraint: what a user may ask of plans, with its rule on an instance and how it is loosened.

Limits one by one: what each says, with its numbers, and how it is left out or loosened by a number.

What always holds is no limit here: layers lie in stages in order, servers give the devices that they have, and a
layer takes a form that it has.

What a rule is, and what it says about a plan that breaks it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from pipecut.formulation.costs.amounts import counted as count
from pipecut.formulation.problem.constraints import Constraints, Demands, Requirement, kinds
from pipecut.formulation.problem.units import ceil_div

if TYPE_CHECKING:
    from pipecut.formulation.problem.groups import Group
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


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
    from pipecut.formulation.costs.prices import stage_costs

    over = [
        cost.memory_bytes - at.servers[server].device_class.memory_bytes
        for stage, cost in zip(plan.stages, stage_costs(at, plan), strict=True)
        for server, _ in stage.group.counts
        if counts(server)
    ]
    return max(0, *over) if over else 0


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


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: where, what was found, what is allowed, in which unit, in a sentence."""

    rule: str
    where: str
    found: int
    limit: int
    unit: str
    message: str

    @property
    def place(self) -> str:
        """Where without the layer: ``stage 0`` of ``stage 0: features.0``."""
        return self.where.partition(": ")[0]


NAMED = 3
"""How many violations of one rule in one stage are told one by one."""


def told(violations: Iterable[Violation]) -> list[tuple[str, str]]:
    """Return violations as pairs of rule and sentence, grouped by rule and stage in the order of their first ones.

    The first three of a group are told in full, of the rest how many they are.
    """
    groups: dict[tuple[str, str], list[Violation]] = {}
    for one in violations:
        groups.setdefault((one.rule, one.place), []).append(one)
    rows: list[tuple[str, str]] = []
    for (rule, place), found in groups.items():
        rows += [(rule, one.message) for one in found[:NAMED]]
        if len(found) > NAMED:
            rows.append((rule, f"{place}: and {len(found) - NAMED} more of the same rule"))
    return rows


@dataclass(frozen=True, slots=True)
class Rule:
    """A named, numbered check that yields the violations of a plan."""

    number: int
    name: str
    check: Callable[[Instance, Plan], Iterator[Violation]]


def layers_of(instance: Instance, layers: Sequence[int]) -> str:
    """Name layers: the first and, of several, the last."""
    first, last = instance.layers[layers[0]].name, instance.layers[layers[-1]].name
    return f"layer {first}" if len(layers) == 1 else f"{len(layers)} layers ({first} to {last})"


IN_A_ROW = 3
"""So many servers that follow one another are told by the first and the last."""


def devices_of(instance: Instance, counts: Iterable[tuple[int, int]]) -> str:
    """Name devices by their servers: ``2 x node0 + 1 x node1``, or ``8 x each of node0 to node3``."""
    told: list[str] = []
    for (_, many), row in itertools.groupby(enumerate(counts), lambda one: (one[1][0] - one[0], one[1][1])):
        names = [instance.servers[server].name for _, (server, _) in row]
        each = [f"{many} x {name}" for name in names]
        told += each if len(each) < IN_A_ROW else [f"{many} x each of {names[0]} to {names[-1]}"]
    return " + ".join(told) or "none"


class Constraint(Requirement):
    """A requirement that can be held against plans of an instance. Each is one file of a folder beside this."""

    __slots__ = ()

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """Yield what a plan breaks: the rule. ``self`` is resolved on the instance."""
        yield from ()

    def check_stage(self, instance: Instance, index: int, group: Group) -> Iterator[Violation]:
        """Yield what the devices of one stage break, as a part of rule 2 (``devices``)."""
        yield from ()

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield its limits one by one, with how each can be loosened."""
        yield from ()

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return the fields that change where limits, each (field, entry), are left out.

        By default a tuple keeps its other entries, and anything else asks for nothing.
        """
        new: dict[str, Any] = {}
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if isinstance(value, tuple):
                new[one.name] = tuple(entry for at, entry in enumerate(value) if (one.name, at) not in gone)
            elif (one.name, 0) in gone:
                new[one.name] = one.default
        return new


def of_plans(stated: Constraints | Demands) -> tuple[Constraint, ...]:
    """Return the value of every constraint there is."""
    return tuple(one for one in stated.values if isinstance(one, Constraint))


def every_constraint() -> tuple[type[Constraint], ...]:
    """Return every constraint there is, by number and rule."""
    return tuple(kind for kind in kinds() if issubclass(kind, Constraint))
