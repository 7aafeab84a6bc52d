"""What every exact method and every route of the double check reads: independence is derived from this table.

An *ingredient* is code that an answer can rest on. Two methods are independent if what they rest on has nothing in
common but *common ground*: the formulation itself, which says what a plan is and costs. That ground is held by
pricing every plan (docs/decisions/0006-independence.md). What only *proposes* plans or labels is listed apart:
the evaluator or a checker judges every proposal, so a mistake in it can cost time, never truth. A test traces the
calls of every method and compares them with this table; which modules an ingredient is made of is written beside
that test (``tests/solvers/ingredients.yaml``).

Who is independent of a claim that several methods made together, where a plan is one's and a bound another's.

Such a claim rests on all of them, and so another method is a second proof only if it is independent of each.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from pipecut.formulation.outcome import Outcome


class Ingredient(enum.Enum):
    """Code that an answer can rest on: in words, and whether it is common ground."""

    EVALUATOR = "the evaluator", True
    FORMULAS = "the formulas of shares, times and memory", True
    GROUPS = "possible groups", True
    ALIKE = "alike servers", True
    STATES = "states of devices", True
    SUMS = "sums over layers and devices", True
    COST_TABLES = "cost tables", True
    MEMORY_TABLES = "memory tables", True
    ENUMERATION = "the enumeration of all plans", False
    CHECKER = "the checker of certificates", False
    MOVES = "moves of single atoms", False
    FIRST_PLAN = "simple first plans", False
    STAGE_TIMES = "stage tables over forms", False
    STAGE_LIMITS = "how far stages reach", False
    STAGE_FORMS = "forms within memory", False
    ATOMS = "the best splits of atoms, and chains of them", False
    LINE_PROGRAMME = "the programme over the line", False
    STATE_REACH = "reachability of device states", False
    DEMANDED = "stages that demands leave", False
    RESPONSES = "answers of suffixes to arrivals", False
    BOXES = "bounds of plans in boxes", False
    REDUCED = "the reduction to atoms, and times of its stages", False
    SUFFIXES = "the searches over suffixes of reduced plans", False
    ON_TYPES = "the model on types of stages", False
    MODEL = "the declarative model", False
    CHUNKS = "the search over chunks", False
    CPSAT = "CP-SAT", False
    LABELS = "the maker of certificates", False

    def __init__(self, words: str, ground: bool) -> None:
        self.words, self.ground = words, ground


@dataclass(frozen=True, slots=True)
class Method:
    """What a method's answers rest on, and what only proposes: plans that are priced, labels that are checked."""

    rests_on: frozenset[Ingredient]
    proposed_by: frozenset[Ingredient] = frozenset()


def _method(*rests_on: Ingredient, proposed_by: tuple[Ingredient, ...] = ()) -> Method:
    return Method(frozenset({I.EVALUATOR, I.FORMULAS, *rests_on}), frozenset(proposed_by))


I = Ingredient  # noqa: E741 (the table is read by its columns)
_TABLES = (I.GROUPS, I.ALIKE, I.COST_TABLES)
_LIMITS = (I.MEMORY_TABLES, I.STAGE_TIMES, I.STAGE_LIMITS, I.STAGE_FORMS, I.ATOMS)
_STAGES = (I.STATES, *_LIMITS, I.STATE_REACH)
_MODEL = (*_TABLES, I.MEMORY_TABLES, I.SUMS, I.MODEL)
_REDUCED = (*_TABLES, I.MEMORY_TABLES, I.SUMS, I.ATOMS, I.REDUCED)

METHODS: dict[str, Method] = {
    "cpsat": _method(*_MODEL, I.CPSAT, proposed_by=(I.FIRST_PLAN,)),
    "line_dp": _method(*_TABLES, I.STAGE_TIMES, I.STAGE_FORMS, I.LINE_PROGRAMME),
    "state_dp": _method(*_TABLES, I.SUMS, *_STAGES, proposed_by=(I.FIRST_PLAN,)),
    "step_dp": _method(
        *(*_TABLES, *_STAGES, I.SUMS, I.DEMANDED, I.RESPONSES, I.BOXES),
        proposed_by=(I.FIRST_PLAN,),
    ),
    "reduced_dp": _method(*_REDUCED, I.SUFFIXES, I.BOXES, proposed_by=(I.FIRST_PLAN,)),
    "cpsat_types": _method(*_REDUCED, I.ON_TYPES, I.CPSAT, I.SUFFIXES, I.BOXES),
    "cpsat_chunks": _method(I.GROUPS, I.SUMS, I.CHUNKS, I.CPSAT, proposed_by=(I.FIRST_PLAN, I.MOVES, I.BOXES)),
    "brute_force": _method(I.ENUMERATION),
    "certificate": _method(
        *(I.GROUPS, I.ALIKE, I.STATES, I.CHECKER),
        proposed_by=(I.COST_TABLES, *_STAGES, I.LABELS),
    ),
}
"""Every exact method and every route of ``solvers.crosscheck``, by name."""


def shared(one: str, other: str, unused: tuple[str, ...] = ()) -> tuple[Ingredient, ...] | None:
    """Return what two methods both rest on beyond common ground; None where nobody said what one of them reads.

    ``unused`` are the names of ingredients that the claim of one of them does not rest on.
    """
    if one not in METHODS or other not in METHODS:
        return None
    common = METHODS[one].rests_on & METHODS[other].rests_on
    counted = (ingredient for ingredient in Ingredient if ingredient in common and not ingredient.ground)
    return tuple(ingredient for ingredient in counted if ingredient.name not in unused)


def ground_of(one: str, other: str) -> tuple[Ingredient, ...]:
    """Return the common ground of two methods beside the problem statement itself: a mistake there both make.

    The statement is what a plan is, costs and keeps: every plan that is found is priced by it anew.
    """
    both = METHODS[one].rests_on & METHODS[other].rests_on if {one, other} <= set(METHODS) else frozenset()
    statement = (Ingredient.EVALUATOR, Ingredient.FORMULAS)
    return tuple(found for found in Ingredient if found in both and found.ground and found not in statement)


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
