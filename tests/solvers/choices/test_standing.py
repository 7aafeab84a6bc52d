"""What is said of a search that was left: never more than is known without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import FalseClaimError, Outcome, Progress, Proof, checked
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.choices.standing import LEFT, Standing
from pipecut.solvers.exhaustive import count_plans, plans
from tests.laws import so_many
from tests.problems import problems

SLOW = [HealthCheck.filter_too_much, HealthCheck.too_slow]


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(problems(), st.data())
def test_the_best_told_plan_stands_whatever_was_told_of_bounds(instance: Instance, data: st.DataObject) -> None:
    assume(count_plans(instance) <= 200)
    priced = [(evaluate(instance, plan), plan) for plan in plans(instance)]
    kept = [(found, plan) for found, plan in priced if found.feasible]
    told = data.draw(st.lists(st.sampled_from(kept), max_size=4)) if kept else []
    standing = Standing(instance)
    for found, plan in told:
        standing.hear(Progress(found.objective, found.objective, plan, instance))
        standing.hear(Progress(found.objective, None, plan))
    about, outcome = standing.outcome("anyone", 1.0)
    assert checked(about, outcome) == outcome and LEFT in outcome.notes
    values = [found.objective for found, _ in kept if found.objective is not None]
    assert outcome.bound is None or outcome.bound <= min(values, default=outcome.bound)
    if told:
        assert outcome.objective == min(found.objective or 0 for found, _ in told)
    # A proof is only what sums over layers and devices say; that there is no plan nobody says.
    assert outcome.proof is not Proof.INFEASIBLE
    assert outcome.proof is not Proof.OPTIMAL or outcome.objective == min(values)
    assert outcome.plan is not None or not told


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(problems(), st.data())
def test_what_a_search_came_to_is_no_worse_than_what_it_told(instance: Instance, data: st.DataObject) -> None:
    """Of what is told some may break rules; of a solver that is asked for by name its own plan stays."""
    assume(count_plans(instance) <= 200)
    every = list(plans(instance))
    told = data.draw(st.lists(st.sampled_from(every), max_size=4)) if every else []
    standing = Standing(replace(instance, goals=instance.goals[:1]))
    priced = [evaluate(standing.instance, plan) for plan in told]
    for plan, found in zip(told, priced, strict=True):
        if found.objective is not None:
            standing.hear(Progress(found.objective, None, plan, standing.instance))
    best = min((found.objective for found in priced if found.objective is not None), default=None)
    # Of plans that are equally good the first that was told stands.
    first = next((found for found in priced if found.objective == best and best is not None), None)
    nothing = Outcome("auto", Proof.UNKNOWN, bound=0, goals=standing.instance.goals)
    about, outcome = standing.no_worse("auto", standing.instance, nothing)
    if first is not None and first.feasible:
        assert outcome.objective == best and checked(about, outcome) == outcome
    else:
        assert outcome is nothing
    assert standing.no_worse("line_dp", standing.instance, nothing)[1] is nothing
    assert standing.no_worse("auto", about, outcome)[1] is outcome
    if outcome.plan is not None:
        with pytest.raises(FalseClaimError, match="a plan keeps every rule"):
            standing.no_worse("auto", about, Outcome("auto", Proof.INFEASIBLE, goals=about.goals))


@settings(max_examples=so_many(20), deadline=None, suppress_health_check=SLOW)
@given(problems())
def test_of_one_solver_nothing_stands_but_its_word(instance: Instance) -> None:
    _, outcome = Standing(instance, alone=True).outcome("anyone", 1.0)
    assert (outcome.proof, outcome.plan, outcome.bound) == (Proof.UNKNOWN, None, None)


@settings(max_examples=so_many(20), deadline=None, suppress_health_check=SLOW)
@given(problems(), st.data())
def test_a_plan_that_breaks_a_rule_does_not_stand(instance: Instance, data: st.DataObject) -> None:
    broken = replace(instance, constraints=replace(instance.constraints, memory=False, at_most=()))
    wrong = [plan for plan in plans(broken) if not evaluate(instance, plan).feasible]
    assume(wrong)
    plan = data.draw(st.sampled_from(wrong[:20]))
    standing = Standing(instance)
    standing.hear(Progress(1, 1, plan, instance))
    _, outcome = standing.outcome("anyone", 1.0)
    assert outcome.plan is None or evaluate(instance, outcome.plan).feasible


@settings(max_examples=so_many(20), deadline=None, suppress_health_check=SLOW)
@given(problems(), st.integers(1, 1000))
def test_a_bound_of_everything_that_was_asked_stands(instance: Instance, bound: int) -> None:
    standing = Standing(instance, alone=True)
    standing.hear(Progress(None, 2 * bound))
    assert standing.outcome("anyone", 1.0)[1].bound is None
    for one in (bound, bound - 1):
        standing.hear(Progress(None, one, whole=True))
    assert standing.outcome("anyone", 1.0)[1].bound == bound
