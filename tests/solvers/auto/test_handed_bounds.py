"""Bounds that one method proves and another begins at: true, kept to the end, and part of what claims rest on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.limits import ProvedBound
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import catalogue, exhaustive
from pipecut.solvers.auto import by_formula
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.cpsat import cpsat as declarative
from pipecut.solvers.crosscheck import NO_SECOND, SAME_OPTIMUM, claims_of, cross_check, double_check
from pipecut.solvers.goals import solve_in_order
from pipecut.solvers.ingredients import PROPOSES, Ingredient, independent_of, methods_of, shared_with
from pipecut.solvers.step_time.demands import unseen_by_executed
from tests.laws import so_many
from tests.solvers.auto.test_by_formula import asking_for_the_middle
from tests.solvers.cpsat.demanded import MADE, SLOW
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_period import judged_by_period
from tests.solvers.step_time.test_step_dp import judged_by_step
from tests.solvers.test_stopped_anywhere import Wish

WORDS = "the bound is that of step_dp"
ONE = Limits(workers=1)
KINDS = ("pins", "stages_per_server", "stages", "middle", "at_most")


@st.composite
def unseen(draw: st.DrawFn) -> Instance:
    """An executed time with a demand or two of kinds of which one at least no programme sees."""
    instance = draw(st.one_of(judged_by_step(max_layers=3), judged_by_period()))
    found: dict[str, object] = {}
    for kind in draw(st.sets(st.sampled_from(KINDS), min_size=1)):
        if kind == "middle":
            layer = draw(st.sampled_from(instance.layers)).name
            found["pins"] = (Pin(layer, stage=draw(st.sampled_from([1, -2]))),)
        elif kind == "at_most":
            goal = draw(st.sampled_from([Goal.BOTTLENECK, Goal.MEMORY, Goal.STAGES]))
            assume(few_plans(instance))
            least = exhaustive.solve(replace(instance, goals=(goal,))).objective or 1
            found["at_most"] = (GoalLimit(goal, least * draw(st.sampled_from([4, 5, 6, 12])) // 4),)
        else:
            found |= MADE[kind](draw, instance)
    asked = replace(instance, constraints=replace(instance.constraints, **found))
    assume(unseen_by_executed(asked) is not None and few_plans(asked))
    return asked


def holds(found: Outcome, truth: Outcome) -> None:
    """Hold a claim against the price of every plan."""
    if truth.objective is None:
        assert found.plan is None and found.proof in (Proof.INFEASIBLE, Proof.UNKNOWN)
        return
    assert found.proof is not Proof.INFEASIBLE
    assert found.bound is None or found.bound <= truth.objective
    assert found.objective is None or found.objective >= truth.objective


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(unseen())
def test_what_is_proved_without_a_demand_is_true_with_it(instance: Instance) -> None:
    truth = exhaustive.solve(instance)
    begun = checked(
        instance, by_formula.planned_by_formula(instance, ONE, lambda *one: plan(*one, cross_check=False))
    )
    holds(begun, truth)
    given = by_formula.bound_of(instance, begun)
    if given is None:
        return
    assert given.value <= (truth.objective or given.value)
    found = checked(instance, declarative.solve(instance, replace(ONE, known=given, start=begun.plan)))
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    assert methods_of(found) in (("cpsat",), ("cpsat", *given.by))


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(unseen(), st.integers(0, 400))
def test_auto_stopped_anywhere_says_no_less_than_was_proved_on_the_way(instance: Instance, polls: int) -> None:
    truth, told = exhaustive.solve(instance), list[Progress]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "SOLVERS", tuple(one for one in catalogue.SOLVERS if one.name != "brute_force"))
        found = plan(instance, Limits(workers=1, stopped=Wish(polls), progress=told.append))
    holds(found, truth)
    bounds = [one.bound for one in told if one.bound is not None]
    assert found.proof is Proof.INFEASIBLE or (found.bound or 0) >= max(bounds)


def of_demands(bound: int, by: tuple[str, ...] = ("step_dp",)) -> Limits:
    return replace(ONE, known=ProvedBound(bound, by, WORDS))


def test_the_model_ends_where_its_plan_meets_a_bound_and_rests_on_it() -> None:
    instance = asking_for_the_middle("c")
    own = declarative.solve(instance, ONE)
    assert own.objective is not None and own.bound_by == ()
    found = checked(instance, declarative.solve(instance, of_demands(own.objective)))
    assert (found.proof, found.objective) == (Proof.OPTIMAL, own.objective)
    assert found.bound_by == ("step_dp",) and found.notes[-1] == WORDS
    less = declarative.solve(instance, of_demands(own.objective - 1))
    assert less.proof is Proof.OPTIMAL and less.bound_by == () and WORDS not in less.notes
    nothing = declarative.solve(instance, of_demands(0))
    assert nothing.bound_by == () and nothing.notes == own.notes
    stopped = declarative.solve(instance, replace(of_demands(own.objective - 1), stopped=Wish(4)))
    assert stopped.proof in (Proof.FEASIBLE, Proof.UNKNOWN)


def test_a_bound_above_the_best_plan_is_refuted() -> None:
    """By the plan that a search begins with, or finds; never claimed."""
    instance = asking_for_the_middle("c")
    own = declarative.solve(instance, ONE)
    assert own.objective is not None
    with pytest.raises(FalseClaimError, match=r"bound .* above the objective"):
        checked(instance, declarative.solve(instance, replace(of_demands(own.objective + 1), start=own.plan)))


@pytest.mark.parametrize("wrong", [None, 1])
def test_a_false_bound_without_a_demand_is_refuted_by_a_plan(wrong: int | None) -> None:
    """By one that is there before, or by one that is found later; that there is no plan is such a bound, too."""
    instance = asking_for_the_middle("c")
    own = declarative.solve(instance, ONE)
    bound = None if wrong is None else (own.objective or 0) + wrong
    lies = Outcome("step_dp", Proof.INFEASIBLE if bound is None else Proof.UNKNOWN, bound=bound)
    with pytest.raises(FalseClaimError, match="step_dp claims that no plan"):
        by_formula.planned_by_formula(instance, replace(ONE, start=own.plan), lambda *_: lies)
    if bound is None:
        return

    def ask(about: Instance, _: Limits) -> Outcome:
        return lies if about.goals[0].executed else own

    with pytest.raises(FalseClaimError, match=r"bound .* above the objective"):
        checked(instance, by_formula.planned_by_formula(instance, ONE, ask))


def test_a_proof_that_rests_on_two_methods_is_checked_by_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of the programme, and a plan of the model that meets it."""
    instance = asking_for_the_middle("b")
    own = declarative.solve(instance, ONE)
    first = replace(own, proof=Proof.FEASIBLE, bound=1)
    claimed = replace(own, bound_by=("step_dp",))
    assert independent_of(first, "step_dp") and not independent_of(claimed, "step_dp")
    assert not independent_of(claimed, "cpsat") and independent_of(claimed, "brute_force")
    shares = shared_with(methods_of(claimed), "step_dp")
    assert shares is not None and Ingredient.RESPONSES in shares
    assert shared_with(("cpsat", "nobody"), "brute_force") is None

    monkeypatch.setattr(
        by_formula, "planned_by_formula", lambda *_, **__: replace(claimed, proof=Proof.FEASIBLE, bound=1)
    )
    monkeypatch.setattr(by_formula, "bound_of", lambda *_: ProvedBound(own.objective or 0, ("step_dp",), WORDS))
    found = plan(instance, ONE)
    assert (found.solver, found.bound_by, found.proof) == ("cpsat", ("step_dp",), Proof.OPTIMAL)
    assert (found.notes[-1], *found.checks) == (WORDS, SAME_OPTIMUM.format(find_any("brute_force").summary))
    monkeypatch.setattr("pipecut.solvers.exhaustive.MAX_PLANS", 0)
    monkeypatch.setattr("pipecut.solvers.crosscheck.certifiable", lambda _: "not today")
    assert cross_check(instance, plan(instance, ONE, cross_check=False), ONE) == f"not cross-checked: {NO_SECOND}"


def test_a_double_check_counts_whose_bound_it_was() -> None:
    instance = replace(asking_for_the_middle("b"), goals=(Goal.BOTTLENECK,), constraints=Constraints())
    best = find_any("cpsat").load()(instance, ONE)
    for by, confirmed in (((), True), (("state_dp",), False)):
        checks = {one.route.name: one for one in double_check(instance, replace(best, bound_by=by), ONE)}
        assert checks["state_dp"].confirms is confirmed and checks["brute_force"].confirms


def test_later_goals_say_what_they_rest_on() -> None:
    instance = replace(asking_for_the_middle("b"), goals=(Goal.BOTTLENECK, Goal.STEP_TIME))

    def solve(asked: Instance, limits: Limits) -> Outcome:
        assert limits.known is None or asked.goals[0] is Goal.BOTTLENECK
        found = exhaustive.solve(asked, limits)
        return (
            found if asked.goals[0] is Goal.BOTTLENECK else replace(found, solver="cpsat", bound_by=("step_dp",))
        )

    outcome = checked(instance, solve_in_order(instance, solve, of_demands(0)))
    first, second = claims_of(instance, outcome)
    assert first.by == ("brute_force",) and second.by == ("cpsat", "step_dp")


def test_a_claim_of_who_only_proposes_rests_on_whose_bound_it_has() -> None:
    found = Outcome(PROPOSES, Proof.UNKNOWN, bound=3)
    assert methods_of(found) == (PROPOSES,) and independent_of(found, "step_dp")
    of_step = replace(found, bound_by=("step_dp",))
    assert methods_of(of_step) == ("step_dp",)
    assert not independent_of(of_step, "step_dp") and independent_of(of_step, "cpsat")


def test_a_bound_is_looked_for_beside_a_plan_that_is_given() -> None:
    """Where a plan is given, as for a later goal, the formula is not asked again, but the programme is."""
    instance = asking_for_the_middle("c")
    own = declarative.solve(instance, ONE)
    asked: list[Goal] = []

    def ask(about: Instance, limits: Limits) -> Outcome:
        asked.append(about.goals[0])
        return plan(about, limits)

    found = by_formula.planned_by_formula(instance, replace(ONE, start=own.plan), ask, propose=False)
    assert asked == [Goal.STEP_TIME] and found.plan == own.plan and found.bound_by == ("step_dp",)
    assert by_formula.planned_by_formula(replace(instance, constraints=Constraints()), ONE, ask).bound_by == ()
