"""Who is independent of a claim that several methods made together, where a plan is one's and a bound another's.

Such a claim rests on all of them, and so another method is a second proof only if it is independent of each.
"""

from __future__ import annotations

from collections.abc import Sequence

from formulation.outcome import Outcome
from solvers.ingredients import METHODS, Ingredient, shared

PROPOSES = "by_formula"
"""Who has plans and no proof of its own but sums that all read: a claim of it rests on whose bound it has."""


def methods_of(outcome: Outcome) -> tuple[str, ...]:
    """Return the methods that a claim rests on, its solver first unless that only proposes."""
    own = () if outcome.solver == PROPOSES and outcome.bound_by else (outcome.solver,)
    return tuple(dict.fromkeys((*own, *outcome.bound_by)))


def shared_with(methods: Sequence[str], other: str, unused: tuple[str, ...] = ()) -> tuple[Ingredient, ...] | None:
    """Return what a method rests on beyond common ground together with any of those of a claim.

    None where nobody said what one of them reads. ``unused`` are the names of ingredients that the claim does not
    rest on as far as the first of its methods made it.
    """
    found = dict[Ingredient, None]()
    for at, one in enumerate(methods):
        if one == PROPOSES and other in METHODS:
            continue
        common = shared(one, other, () if at else unused)
        if common is None:
            return None
        found |= dict.fromkeys(common)
    return tuple(one for one in Ingredient if one in found)


def independent_of(outcome: Outcome, other: str) -> bool:
    """Tell whether the agreement of a method with a claim is that of two: they share nothing but common ground."""
    return shared_with(methods_of(outcome), other, outcome.unused) == ()


def is_described(outcome: Outcome) -> bool:
    """Tell whether it is said of all methods of a claim what they rest on."""
    return all(one in METHODS or one == PROPOSES for one in methods_of(outcome))
