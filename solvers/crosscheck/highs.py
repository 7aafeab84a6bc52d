"""Another solver on the same model: HiGHS, branch and cut on a linear relaxation, as it comes with OR-Tools.

HiGHS computes in floating point, so its answers are evidence and not proof. It has been seen to call a possible
question impossible when times were given in ns; hence the scaling of ``solvers.crosscheck.milp``, and the
control: with the claim's own plan fixed, HiGHS must not say no at the plan's price, or its no counts for nothing.
A plan that it finds counts against a claim only after the evaluator has priced it in whole numbers.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import cast

from ortools.linear_solver.python import model_builder
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt
from ortools.sat.python import cp_model

from formulation.costs.tables import Tables, all_tables
from formulation.evaluate import evaluate
from formulation.outcome import Limits
from formulation.problem.plan import Plan
from solvers.cpsat.base.reading import read_plan
from solvers.cpsat.model import FAMILIES, build_model
from solvers.cpsat.valid import redundant_families
from solvers.crosscheck.claim import Answer, Claim, Verdict, refuted_by, refutes
from solvers.crosscheck.milp import Milp, UntranslatableError, translate
from solvers.crosscheck.question import build, hold
from solvers.search.background import in_background

__all__: list[str] = []

TOLERANCE = 1e-9
"""By how much a scaled row may be off, and a Boolean differ from 0 or 1."""
HALF = 0.5

Result = mathopt.SolveResult


def ask(claim: Claim, limits: Limits) -> Answer:
    """Ask HiGHS for a plan that the claim excludes, and whether it lets the claim's plan be."""
    if not model_builder.Solver("HIGHS").solver_is_supported():
        return Answer(Verdict.NOT_APPLICABLE, "this OR-Tools comes without HiGHS")
    tables = all_tables(claim.instance, limits.deadline)
    v = build(claim, tables, (*FAMILIES, *redundant_families(tables)))
    try:
        result = solve(v.model, limits)
    except UntranslatableError as error:
        return Answer(Verdict.NOT_APPLICABLE, str(error))
    if result is not None and impossible(result):
        return _control(claim, tables, limits)
    if result is None or not result.has_primal_feasible_solution():
        return _no_answer(result)
    plan = read_plan(v, cast(cp_model.CpSolver, Values(result)))
    return refuted_by(claim, plan, "HiGHS") if refutes(claim, plan) else _beside(claim, plan)


def _control(claim: Claim, tables: Tables, limits: Limits) -> Answer:
    if claim.plan is None:
        return Answer(Verdict.AGREED)
    v = build_model(tables, claim.objective, FAMILIES)
    if hold(v, claim.plan) is not None:
        return Answer(Verdict.INCONCLUSIVE, "the model does not know the claim's plan")
    result = solve(v.model, limits)
    if result is not None and impossible(result):
        return Answer(Verdict.INCONCLUSIVE, "says no, but to the claim's own plan as well")
    if result is None or not result.has_primal_feasible_solution():
        return _no_answer(result)
    return Answer(Verdict.AGREED)


def _no_answer(result: Result | None) -> Answer:
    limits = (mathopt.TerminationReason.NO_SOLUTION_FOUND, mathopt.TerminationReason.FEASIBLE)
    if result is None or result.termination.reason in limits:
        return Answer(Verdict.OUT_OF_TIME, "no answer")
    return Answer(Verdict.INCONCLUSIVE, f"ended with {result.termination.reason.value}")


def _beside(claim: Claim, plan: Plan) -> Answer:
    """Return the answer where floating point let a plan through that is none in whole numbers."""
    evaluation = evaluate(claim.instance, plan)
    broken = "; ".join(violation.message for violation in evaluation.violations)
    price = "no price" if evaluation.objective is None else claim.words(evaluation.objective)
    reason = f"within its tolerances it accepts a plan that the evaluator gives {broken or price}"
    return Answer(Verdict.INCONCLUSIVE, reason)


def impossible(result: Result) -> bool:
    """Tell whether HiGHS claims that there is no solution. The models have no objective to be unbounded in."""
    return result.termination.reason in (
        mathopt.TerminationReason.INFEASIBLE,
        mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED,
    )


def solve(model: cp_model.CpModel, limits: Limits) -> Result | None:
    """Run HiGHS on a CP-SAT model until the deadline; None if it was left behind.

    Raises UntranslatableError.
    """

    def work() -> Result:
        translated = mathopt.Model.from_model_proto(_proto(translate(model)))
        return mathopt.solve(translated, mathopt.SolverType.HIGHS, params=_parameters(limits))

    return in_background(work, limits.deadline.over)


def _parameters(limits: Limits) -> mathopt.SolveParameters:
    # The threads of HiGHS are a global of the process and stay as they are.
    parameters = mathopt.SolveParameters(enable_output=False, random_seed=limits.seed)
    left = limits.deadline.left_s()
    if left is not None:
        parameters.time_limit = datetime.timedelta(seconds=max(0.01, left))
    for name in ("mip_feasibility_tolerance", "primal_feasibility_tolerance"):
        parameters.highs.double_options[name] = TOLERANCE
    return parameters


def _proto(milp: Milp) -> model_pb2.ModelProto:
    proto = model_pb2.ModelProto()
    wide = [high - low > 1 for low, high in zip(milp.lower, milp.upper, strict=True)]
    proto.variables.ids.extend(range(len(wide)))
    proto.variables.lower_bounds.extend(low / unit for low, unit in zip(milp.lower, milp.unit, strict=True))
    proto.variables.upper_bounds.extend(high / unit for high, unit in zip(milp.upper, milp.unit, strict=True))
    proto.variables.integers.extend(not one for one in wide)
    proto.linear_constraints.ids.extend(range(len(milp.rows)))
    matrix = proto.linear_constraint_matrix
    for at, row in enumerate(milp.rows):
        lower, upper, terms = milp.scaled(row)
        proto.linear_constraints.lower_bounds.append(lower)
        proto.linear_constraints.upper_bounds.append(upper)
        matrix.row_ids.extend([at] * len(terms))
        matrix.column_ids.extend(column for column, _ in terms)
        matrix.coefficients.extend(factor for _, factor in terms)
    return proto


class Values:
    """A solution of HiGHS, asked as a CP-SAT solver is."""

    def __init__(self, result: Result) -> None:
        self._values: Mapping[int, float] = {one.id: value for one, value in result.variable_values().items()}

    def boolean_value(self, literal: cp_model.IntVar) -> bool:
        """Return whether a Boolean is nearer to 1 than to 0."""
        return self._values[literal.index] > HALF
