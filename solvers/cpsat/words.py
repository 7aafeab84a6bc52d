"""What the declarative model is, in words and numbers: for whoever wants to see what is handed to CP-SAT.

Built as the search builds it (``solvers.cpsat.cpsat``), for plans that are better than the first one. Nothing is
solved.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ortools.sat.python import cp_model

from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.costs.bounds import ceiling
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.limits import in_time
from pipecut.formulation.outcome import Limits, begin
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.cpsat import variables
from pipecut.solvers.cpsat.accepts import accepts
from pipecut.solvers.cpsat.model import FAMILIES, build_model, floors, lower_bound, redundant_families
from pipecut.solvers.search.first_plan import first_plan
from pipecut.solvers.search.incumbent import Incumbent

NAME = "cpsat"
TERMS = (
    "every time, transfer and byte is that of the evaluator, layer by layer: nothing is a bound to be settled. The"
    " value is searched for: is there a plan of at most so much?"
)
REDUNDANT = {
    "staircase": "(101) kind[k][c] and starts[k][i] => starts[k-1][E(c, i)]: where by sums of the least times of"
    " layers a stage that starts at i or earlier ends at the latest",
    "area": "(102) layers before (after) a place of the line cost no more than the devices before (after) it"
    " offer, at the price of each device times the threshold",
    "alike": "(103) of servers that cannot be told apart the first is touched first",
    "reach_in_time": "(106) as staircase, by what lies on a path of a step through a slot",
}
"""What families say that the others imply: they make it visible early that there is no plan."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A part of what is said of a model: names and what is to be said of each, in an order to be read."""

    title: str
    rows: tuple[tuple[str, str], ...]


def model_words(instance: Instance, limits: Limits | None = None) -> list[ModelPart]:
    """Say what the declarative model is that is asked about the first goal of an instance.

    Raises ValueError where ``accepts`` has a reason, TooLargeError and StoppedError as the search does. Cost: the
    tables of all layers, a first plan, and the model.
    """
    limits = begin(limits)
    accepts(instance).refuse()
    tables, goal = all_tables(instance, limits.deadline), instance.goals[0]
    posted = (*FAMILIES, *redundant_families(tables))
    lower = lower_bound(tables, floors(tables))
    known = Incumbent(NAME, instance, limits, ceiling(tables, goal) + 1, lower)
    known.offer(first_plan(tables))
    v = build_model(tables, known.upper - 1, ())
    rows = dict[str, int]()
    for one in posted:
        before = len(v.model.proto.constraints)
        sum(1 for _ in in_time(one.post(v), tables.deadline))
        rows[one.name] = len(v.model.proto.constraints) - before
    said = {one.name: REDUNDANT.get(one.name) or " ".join((one.post.__doc__ or "").split()) for one in posted}
    question = (
        ("goal", f"{goal}: {tables.rows} layers, {len(tables.groups)} device groups of {len(tables.kinds)} kinds"),
        ("stages", f"up to {v.slots}, slots that are counted from the last one"),
        ("bounds", bounds_in_words(known)),
    )
    return [
        ModelPart("question", question),
        variable_section(v.model, VARIABLES),
        constraint_section(rows, said),
        ModelPart("terms", (("exact", TERMS),)),
    ]


def bounds_in_words(known: Incumbent) -> str:
    """Say between what values plans are asked for."""
    goal = known.instance.goals[0]
    least = f"no plan is below {goal_amount(goal, known.lower)}"
    if known.plan is None:
        return f"{least}; no plan is known yet"
    return f"{least}; a first plan has {goal_amount(goal, known.upper)}, and less than that is asked for"


def variable_section(model: cp_model.CpModel, words: Mapping[str, str]) -> ModelPart:
    """Count the variables of each family, which is what stands before the bracket of their names."""
    many = Counter(one.name.partition("[")[0] for one in model.proto.variables)
    rows = [(name, f"{many[name]:,}: {said}") for name, said in words.items() if many[name]]
    rest = [f"{name} {number:,}" for name, number in many.items() if name and name not in words]
    rows += [("others", f"what families add up or tell apart: {', '.join(rest)}")] if rest else []
    return ModelPart(f"{sum(many.values()):,} variables", tuple(rows))


def constraint_section(rows: Mapping[str, int], words: Mapping[str, str]) -> ModelPart:
    """Give each family of constraints that has rows, with its formula."""
    said = tuple((name, f"{many:,}: {words[name]}") for name, many in rows.items() if many)
    return ModelPart(f"{sum(rows.values()):,} constraints", said)


def _documented(text: str) -> dict[str, str]:
    """Return what a table of a docstring says of the variables of each family."""
    found = re.findall(r"^``(\w+)(\[.*?)``\s+(.+)$", text, re.MULTILINE)
    return {name: f"{index} {said}" for name, index, said in found}


VARIABLES = _documented(variables.__doc__ or "")
"""Of each family of variables what it says."""
