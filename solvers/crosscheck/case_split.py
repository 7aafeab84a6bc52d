"""The case-split test: a yes/no variable is either 0 or 1, so the two optima decide the whole one.

Below the claim's objective both cases must be impossible; at the objective the case that the claim's plan lies in
must be possible. A search that cut off too much on its way takes another way in each case. Model, families and
parameters are those of ``cpsat``, so what is wrong in them stays unseen.
"""

from __future__ import annotations

from ortools.sat.python import cp_model

from formulation.costs.tables import all_tables
from formulation.outcome import Limits
from solvers.cpsat.base.variables import Variables
from solvers.cpsat.model import FAMILIES
from solvers.cpsat.valid import redundant_families
from solvers.crosscheck.claim import Answer, Claim, Verdict
from solvers.crosscheck.question import ask_cpsat, build, control

__all__: list[str] = []


def ask(claim: Claim, limits: Limits) -> Answer:
    """Ask both cases, and for the plan itself. Cost: as the last question of the search, at most twice."""
    tables = all_tables(claim.instance, limits.deadline)
    families = (*FAMILIES, *redundant_families(tables))
    for case in (0, 1):
        v = build(claim, tables, families)
        name, literal = split_on(v)
        v.model.add(literal == case)
        answer = ask_cpsat(claim, v, limits, f"the case {name} = {case}")
        if answer.verdict is not Verdict.AGREED:
            return answer
    return control(claim, tables, limits)


def split_on(v: Variables) -> tuple[str, cp_model.IntVar]:
    """Return the variable to split on: the cut in the middle; with one layer, whether the first group is used."""
    middle = v.layers // 2
    return (f"cut[{middle}]", v.cut[middle]) if middle > 0 else ("runs[0,0]", v.runs[0][0])
