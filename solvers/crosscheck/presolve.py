"""CP-SAT with its presolve on: other code inside the same solver.

Claims of ``cpsat`` come from searches without presolve (docs/decisions/0003). Two questions, both must say no:

1. the whole model, presolve and probing on;
2. only the families that define a plan (no redundant one), with the suspected step of presolve off
   (``presolve_inclusion_work_limit = 0``), another seed and another number of workers.

The second notices a redundant family that cuts off plans. Neither notices a mistake in a defining family that
excludes plans, except that of the claim: the model must admit it at its price.
"""

from __future__ import annotations

from dataclasses import replace

from formulation.costs.tables import all_tables
from formulation.outcome import Limits
from solvers.cpsat.model import FAMILIES
from solvers.cpsat.valid import redundant_families
from solvers.crosscheck.claim import Answer, Claim, Verdict
from solvers.crosscheck.question import Settings, ask_cpsat, build, control

__all__: list[str] = []

ON: Settings = {"cp_model_presolve": True, "cp_model_probing_level": 2}
CAREFUL: Settings = {**ON, "presolve_inclusion_work_limit": 0}
SEED_STEP = 7919
"""Added to the seed for the second question, so that it takes another path."""


def ask(claim: Claim, limits: Limits) -> Answer:
    """Ask both questions, and for the plan itself. Cost: as the last question of the search, twice."""
    tables = all_tables(claim.instance, limits.deadline)
    other = replace(limits, seed=(limits.seed + SEED_STEP) % 2**31, workers=1 if limits.workers > 1 else 2)
    questions = (
        ("presolve on", (*FAMILIES, *redundant_families(tables)), ON, limits),
        ("presolve on without its inclusion step, defining families only", FAMILIES, CAREFUL, other),
    )
    for who, families, settings, within in questions:
        answer = ask_cpsat(claim, build(claim, tables, families), within, who, settings)
        if answer.verdict is not Verdict.AGREED:
            return answer
    return control(claim, tables, limits, ON)
