"""What a rule is, and what it says about a plan that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from formulation.instance import Instance
from formulation.plan import Plan


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: where, what was found, what is allowed, in which unit, in a sentence."""

    rule: str
    where: str
    found: int
    limit: int
    unit: str
    message: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A named, numbered check that yields the violations of a plan."""

    number: int
    name: str
    check: Callable[[Instance, Plan], Iterator[Violation]]
