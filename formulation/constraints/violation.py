"""What a rule is, and what it says about a plan that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Plan


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


def devices_of(instance: Instance, counts: Iterable[tuple[int, int]]) -> str:
    """Name devices by their servers: ``2 x node0 + 1 x node1``."""
    return " + ".join(f"{count} x {instance.servers[server].name}" for server, count in counts) or "none"
