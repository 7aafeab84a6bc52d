"""The declarative model as a question about a claim, and the control that goes with it.

The question is whether there is a plan that the claim says does not exist. The control: a route that can only say
no agrees with everything, so its model must also admit the plan of the claim at its price.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from ortools.sat.python import cp_model

from formulation.costs.tables import Tables
from formulation.evaluate import evaluate
from formulation.outcome import Limits
from formulation.problem.groups import line_places
from formulation.problem.options import Placement
from formulation.problem.plan import Plan, Stage
from solvers.cpsat.base.engine import found, make_solver, run
from solvers.cpsat.base.families import Family
from solvers.cpsat.base.reading import read_plan
from solvers.cpsat.base.variables import Variables
from solvers.cpsat.model import FAMILIES, build_model
from solvers.cpsat.support import accepts
from solvers.crosscheck.claim import Answer, Ask, Claim, Verdict, refuted_by, refutes

__all__: list[str] = []

Settings = Mapping[str, object]
"""Parameters of CP-SAT beside those of ``solvers.cpsat.base.engine``."""


def of_model(ask: Ask) -> Ask:
    """Return a route that asks the model, for claims that the model can say.

    Not every executed time is in it. That there is no plan at all it can say whatever is minimised.
    """

    def asked(claim: Claim, limits: Limits) -> Answer:
        if claim.goal.executed and claim.threshold is not None and (reason := accepts(claim.instance).reason):
            return Answer(Verdict.NOT_APPLICABLE, reason)
        return ask(claim, limits)

    return asked


def ask_cpsat(claim: Claim, v: Variables, limits: Limits, who: str, settings: Settings | None = None) -> Answer:
    """Ask CP-SAT whether a model of the claim's threshold has a plan. It agrees where there is none."""
    solver = make_solver(limits)
    for name, value in (settings or {}).items():
        setattr(solver.parameters, name, value)
    status = run(solver, v.model, limits.deadline.over)
    if status == cp_model.INFEASIBLE:
        return Answer(Verdict.AGREED)
    if not found(status):
        return Answer(Verdict.OUT_OF_TIME, f"{who}: no answer")
    plan = read_plan(v, solver)
    return refuted_by(claim, plan, who) if refutes(claim, plan) else misread(claim, plan, who)


def misread(claim: Claim, plan: Plan, who: str) -> Answer:
    """Return the answer of an exact route whose model accepts a plan that the evaluator does not."""
    evaluation = evaluate(claim.instance, plan)
    broken = "; ".join(violation.message for violation in evaluation.violations)
    price = "no price" if evaluation.objective is None else claim.words(evaluation.objective)
    return Answer(
        Verdict.DISAGREED,
        f"{who}: the model accepts at {claim.threshold} a plan that the evaluator gives {broken or price}",
        plan,
    )


def control(claim: Claim, tables: Tables, limits: Limits, settings: Settings | None = None) -> Answer:
    """Ask CP-SAT whether the families that define a plan admit the claim's plan at its price; agree if they do."""
    if claim.plan is None:
        return Answer(Verdict.AGREED)
    v = build_model(tables, claim.objective, FAMILIES)
    reason = hold(v, claim.plan)
    if reason is not None:
        return Answer(Verdict.DISAGREED, f"the model does not know the plan: {reason}")
    solver = make_solver(limits)
    for name, value in (settings or {}).items():
        setattr(solver.parameters, name, value)
    status = run(solver, v.model, limits.deadline.over)
    if found(status):
        return Answer(Verdict.AGREED)
    if status == cp_model.INFEASIBLE:
        return Answer(Verdict.DISAGREED, f"the model does not admit the claim's plan at {claim.objective}")
    return Answer(Verdict.OUT_OF_TIME, "no answer about the claim's own plan")


def hold(v: Variables, plan: Plan) -> str | None:
    """Fix the model to a plan; return why it cannot even be said in the model's variables, or None."""
    if len(plan) > v.slots:
        return f"{len(plan)} stages, the model has room for {v.slots}"
    warm_ups = plan.warm_ups(v.tables.instance.training)
    for index, (stage, group) in enumerate(zip(plan.stages, _groups(v, plan), strict=True)):
        if group is None:
            return f"devices {stage.group.counts} of stage {index} are no group of the model"
        k = len(plan) - 1 - index
        literals = _literals(v, k, stage, group)
        if literals is None:
            return f"a form of stage {index} is none of the model's"
        v.model.add_bool_and(literals)
        for many, longer in v.longer[k].items() if v.longer else ():
            v.model.add(longer == (many <= warm_ups[index]))
    return None


def _groups(v: Variables, plan: Plan) -> list[int | None]:
    """Return by stage the index of its group. On the line equal groups at different places are different."""
    instance, known = v.tables.instance, v.tables.groups
    if instance.constraints.placement is not Placement.LINE:
        return [known.index(stage.group) if stage.group in known else None for stage in plan.stages]
    index = {
        (*place, group): at for at, (place, group) in enumerate(zip(line_places(instance), known, strict=True))
    }
    stops = list(itertools.accumulate(stage.group.devices for stage in plan.stages))
    return [
        index.get((stop - stage.group.devices, stop, stage.group))
        for stop, stage in zip(stops, plan.stages, strict=True)
    ]


def _literals(v: Variables, k: int, stage: Stage, group: int) -> Sequence[cp_model.LiteralT] | None:
    """Return the literals that say what a slot holds; None if a layer has no such state."""
    literals: list[cp_model.LiteralT] = [v.runs[k][group], v.starts[k][stage.span.first]]
    if stage.span.first > 0:
        literals.append(~v.starts[k][stage.span.first - 1])
    for layer in stage.span.layers:
        if v.state[layer]:
            literal = v.state[layer].get((v.tables.kind_of[group], stage.form(layer)))
            if literal is None:
                return None
            literals.append(literal)
    return literals


def build(claim: Claim, tables: Tables, families: Sequence[Family]) -> Variables:
    """Build the model that the claim says has no solution."""
    return build_model(tables, claim.threshold, families)
