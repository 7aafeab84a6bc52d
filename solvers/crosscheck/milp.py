"""A CP-SAT model as a mixed-integer linear programme: the same question in another solver's language.

Booleans stay whole numbers. Other variables of our models only carry sums of times or bytes and become continuous:
a relaxation, so "no solution" stays true of the model. Constraint by constraint:

======================  ==========================================================================================
``bool_or``             sum of literals >= 1
``bool_and``            each literal >= 1
``at_most_one``         sum of literals <= 1 (``exactly_one``: = 1)
``linear``              as it is
... enforced by e       clauses gain ``not e``; rows gain ``M * (number of false e)``, where M is how far the row
                        can be violated within the bounds of its variables: the least M that makes it vacuous
======================  ==========================================================================================

Times go to 10^9 ns and tolerances of MILP solvers are absolute, so variables and rows are scaled by powers of two,
which loses no bit: no continuous variable and no coefficient of a row is above ``LARGEST``. With a tolerance of
10^-9 a row is then off by at most 10^-12 of its largest coefficient: a thousandth of a ns for times of 1 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

__all__: list[str] = []

LARGEST = 1024.0
LEAST, MOST = -(2**63), 2**63 - 1
"""How CP-SAT writes that a row has no lower or no upper limit."""

Terms = dict[int, int]


class UntranslatableError(ValueError):
    """The model has a constraint or a domain that is not linear."""


@dataclass(frozen=True, slots=True)
class Row:
    """``lower <= sum of coefficient * variable <= upper``, in whole numbers; None: no limit."""

    lower: int | None
    upper: int | None
    terms: Terms


@dataclass(frozen=True, slots=True)
class Milp:
    """Variables with their limits, rows, and by variable the unit that it is counted in (1 for Booleans)."""

    lower: list[int]
    upper: list[int]
    unit: list[float]
    rows: list[Row]

    def scaled(self, row: Row) -> tuple[float, float, list[tuple[int, float]]]:
        """Return lower and upper limit and coefficients of a row in the units of the variables."""
        terms = [(at, factor * self.unit[at]) for at, factor in sorted(row.terms.items()) if factor]
        by = unit_of(max((abs(factor) for _, factor in terms), default=0.0))
        lower = -math.inf if row.lower is None else row.lower / by
        upper = math.inf if row.upper is None else row.upper / by
        return lower, upper, [(at, factor / by) for at, factor in terms]


def translate(model: cp_model.CpModel) -> Milp:
    """Return a model without an objective as a MILP. Raises UntranslatableError for what is not linear.

    Cost: linear in the size of the model.
    """
    proto: Any = model.proto
    limits = [_interval(variable.domain, f"variable {at}") for at, variable in enumerate(proto.variables)]
    lower, upper = [low for low, _ in limits], [high for _, high in limits]
    rows = [row for constraint in proto.constraints for row in _rows(constraint, lower, upper)]
    unit = [1.0 if high - low <= 1 else unit_of(max(abs(low), abs(high))) for low, high in limits]
    return Milp(lower, upper, unit, rows)


def unit_of(largest: float) -> float:
    """Return the least power of two, 1 or more, that brings a number down to LARGEST."""
    return 2.0 ** max(0, math.ceil(math.log2(largest / LARGEST))) if largest > LARGEST else 1.0


def _interval(domain: Sequence[int], where: str) -> tuple[int, int]:
    if len(domain) != 2:
        raise UntranslatableError(f"{where} has a domain with gaps")
    return domain[0], domain[1]


def _rows(constraint: Any, lower: list[int], upper: list[int]) -> Iterator[Row]:  # noqa: ANN401 (no public type)
    enforced = list(constraint.enforcement_literal)
    unless = [-literal - 1 for literal in enforced]
    if constraint.has_linear():
        yield from _linear(constraint.linear, enforced, lower, upper)
    elif constraint.has_bool_or():
        yield _sum([*constraint.bool_or.literals, *unless], 1, None)
    elif constraint.has_bool_and():
        for literal in constraint.bool_and.literals:
            yield _sum([literal, *unless], 1, None)
    elif constraint.has_at_most_one() and not enforced:
        yield _sum(constraint.at_most_one.literals, None, 1)
    elif constraint.has_exactly_one() and not enforced:
        yield _sum(constraint.exactly_one.literals, 1, 1)
    else:
        raise UntranslatableError(f"no linear form known of the constraint {str(constraint).strip()[:80]}")


def _sum(literals: Sequence[int], lower: int | None, upper: int | None) -> Row:
    """Return limits on a number of true literals; a literal ``-1 - x`` is the negation of variable x."""
    terms: Terms = {}
    constant = sum(_add(terms, literal, 1) for literal in literals)
    return Row(None if lower is None else lower - constant, None if upper is None else upper - constant, terms)


def _add(terms: Terms, literal: int, factor: int) -> int:
    """Add ``factor * literal`` to a sum; return the constant that comes with it."""
    at = literal if literal >= 0 else -literal - 1
    terms[at] = terms.get(at, 0) + (factor if literal >= 0 else -factor)
    return 0 if literal >= 0 else factor


def _linear(linear: Any, enforced: list[int], lower: list[int], upper: list[int]) -> Iterator[Row]:  # noqa: ANN401
    terms: Terms = {}
    for at, factor in zip(linear.vars, linear.coeffs, strict=True):
        terms[at] = terms.get(at, 0) + factor
    low, high = _interval(linear.domain, "a linear constraint")
    if not enforced:
        yield Row(None if low == LEAST else low, None if high == MOST else high, terms)
        return
    largest = sum(factor * (upper[at] if factor > 0 else lower[at]) for at, factor in terms.items())
    least = sum(factor * (lower[at] if factor > 0 else upper[at]) for at, factor in terms.items())
    if high != MOST and largest > high:
        yield _unless(terms, None, high, enforced, largest - high)
    if low != LEAST and least < low:
        yield _unless(terms, low, None, enforced, least - low)


def _unless(terms: Terms, low: int | None, high: int | None, enforced: list[int], slack: int) -> Row:
    """Return ``terms + slack * (true e) <= high + slack * (number of e)``, or the same with >= and ``low``."""
    terms = dict(terms)
    constant = sum(_add(terms, literal, slack) for literal in enforced)
    limit = (low if low is not None else high or 0) + slack * len(enforced) - constant
    return Row(None, limit, terms) if low is None else Row(limit, None, terms)
