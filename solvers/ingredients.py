"""What every exact method and every route of the double check reads: independence is derived from this table.

An *ingredient* is code that an answer can rest on, named by its modules (``module`` or ``module:function``). Two
methods are independent if what they rest on has nothing in common but *common ground*: the formulation itself,
which says what a plan is and costs. That ground is held by pricing every plan
(docs/decisions/0006-independence.md). What only *proposes* plans or labels is listed apart: the evaluator or a
checker judges every proposal, so a mistake in it can cost time, never truth. A test traces the calls of every
method and compares them with this table.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

C, S, P, D = "solvers.cpsat", "solvers.states", "solvers.paced", "solvers.double_check"


class Ingredient(enum.Enum):
    """Code that an answer can rest on: in words, its modules, and whether it is common ground."""

    EVALUATOR = ("the evaluator", ("formulation.evaluate", "formulation.prices", "formulation.rules"), True)
    FORMULAS = (
        "the formulas of shares, times and memory",
        ("formulation.shares", "formulation.times", "formulation.forms", "formulation.memory"),
        True,
    )
    GROUPS = ("possible groups", ("formulation.groups:possible_groups", "formulation.modes:modes"), True)
    ALIKE = (
        "alike servers",
        tuple(f"formulation.certificate_states:{name}" for name in ("alike_servers", "_same", "_kinds_stay")),
        True,
    )
    STATES = (
        "states of devices",
        tuple(
            f"formulation.certificate_states:{name}"
            for name in ("suffixes", "LineSuffixes", "FreeSuffixes", "Place", "Step", "_stands_for")
        ),
        True,
    )
    SUMS = ("sums over layers and devices", ("formulation.lower_bound", "formulation.ceiling"), True)
    COST_TABLES = ("cost tables", ("formulation.tables",), True)
    MEMORY_TABLES = ("memory tables", ("formulation.memory_tables",), True)
    ENUMERATION = ("the enumeration of all plans", ("solvers.brute_force",))
    CHECKER = (
        "the checker of certificates",
        (
            "formulation.certificate",
            "formulation.certificate_labels",
            "formulation.certificate_stages",
            "formulation.certificate_forms",
            "formulation.least",
        ),
    )
    FIRST_PLAN = ("simple first plans", (f"{C}.start",))
    STAGE_TIMES = ("stage tables over forms", ("solvers.hybrid", "solvers.viterbi"))
    STAGE_LIMITS = ("how far stages reach", (f"{C}.stage_limits",))
    STAGE_FORMS = ("forms within memory", ("solvers.thrifty", f"{S}.stage_table"))
    RUNS = ("runs of layers", ("solvers.coarse", f"{S}.coarse_table"))
    LINE_PROGRAMME = ("the programme over the line", ("solvers.line_dp", "solvers.blind"))
    LINE_REACH = ("reachability on the line", ("solvers.line_threshold",))
    STATE_REACH = (
        "reachability of device states",
        (f"{S}.reach", f"{S}.states", f"{S}.paths", f"{S}.solver", f"{S}.starts"),
    )
    INTERVALS = (
        "the search over bottlenecks",
        tuple(
            f"{P}.{name}"
            for name in (
                *("blocks", "intervals", "latency", "network", "plans", "proposals", "refining", "sequence"),
                *("solver", "stages", "steps", "windows"),
            )
        ),
    )
    MODEL = (
        "the declarative model",
        tuple(
            f"{C}.{name}"
            for name in (
                *("bounds", "clocks", "communication", "conditional", "demands", "families", "iteration"),
                *("judged", "layered", "memory", "model", "placing", "reading", "valid", "variables"),
            )
        ),
    )
    WHOLE_STAGES = ("the model of whole stages", (f"{C}.stages", f"{C}.stage_plans", f"{C}.staged"))
    WARM_START = ("first plans of dynamic programmes", (f"{C}.warm_start",))
    CPSAT = ("CP-SAT", (f"{C}.engine", f"{C}.search"))
    HIGHS = ("HiGHS", (f"{D}.highs", f"{D}.milp"))
    LABELS = ("the maker of labels", ("solvers.labels",))

    def __init__(self, words: str, code: tuple[str, ...], ground: bool = False) -> None:
        self.words, self.code, self.ground = words, code, ground


@dataclass(frozen=True, slots=True)
class Method:
    """What a method's answers rest on, and what only proposes: plans that are priced, labels that are checked."""

    rests_on: frozenset[Ingredient]
    proposed_by: frozenset[Ingredient] = frozenset()


def _method(*rests_on: Ingredient, proposed_by: tuple[Ingredient, ...] = ()) -> Method:
    return Method(frozenset({I.EVALUATOR, I.FORMULAS, *rests_on}), frozenset(proposed_by))


I = Ingredient  # noqa: E741 (the table is read by its columns)
_TABLES = (I.GROUPS, I.COST_TABLES)
_STAGES = (I.STATES, I.ALIKE, I.MEMORY_TABLES, I.STAGE_TIMES, I.STAGE_LIMITS, I.STAGE_FORMS, I.STATE_REACH)
_MODEL = (*_TABLES, I.MEMORY_TABLES, I.ALIKE, I.SUMS, I.MODEL)

METHODS: dict[str, Method] = {
    "cpsat": _method(*_MODEL, I.CPSAT, proposed_by=(I.FIRST_PLAN,)),
    "cpsat_stages": _method(
        *(*_MODEL, I.CPSAT, *_STAGES, I.LINE_REACH, I.WHOLE_STAGES),
        proposed_by=(I.FIRST_PLAN, I.WARM_START, I.LINE_PROGRAMME),
    ),
    "line_dp": _method(*_TABLES, I.STAGE_TIMES, I.LINE_PROGRAMME),
    "state_dp": _method(*_TABLES, I.SUMS, *_STAGES, I.RUNS, proposed_by=(I.FIRST_PLAN,)),
    "paced_dp": _method(*_TABLES, I.SUMS, *_STAGES, I.INTERVALS, proposed_by=(I.FIRST_PLAN,)),
    "brute_force": _method(I.ENUMERATION),
    "case_split": _method(*_MODEL, I.CPSAT),
    "presolve": _method(*_MODEL, I.CPSAT),
    "highs": _method(*_MODEL, I.HIGHS),
    "certificate": _method(
        *(I.GROUPS, I.ALIKE, I.STATES, I.CHECKER), proposed_by=(I.COST_TABLES, *_STAGES, I.LABELS)
    ),
}
"""Every exact method and every route of ``solvers.double_check.routes``, by name."""


def shared(one: str, other: str) -> tuple[Ingredient, ...] | None:
    """Return what two methods both rest on beyond common ground; None where nobody said what one of them reads."""
    if one not in METHODS or other not in METHODS:
        return None
    common = METHODS[one].rests_on & METHODS[other].rests_on
    return tuple(ingredient for ingredient in Ingredient if ingredient in common and not ingredient.ground)


def independent(one: str, other: str) -> bool:
    """Tell whether the agreement of two methods is that of two: they share nothing but common ground."""
    return shared(one, other) == ()
