"""Goals in order: what is claimed of each where all are proved, and where a search ends before that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import FalseClaimError, GoalClaim, Limits, Outcome, Proof, Status, checked
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.crosscheck import claims_of
from pipecut.solvers.goals import Solve, solve_in_order
from pipecut.solvers.search.support import Support
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW

GOALS = (Goal.BOTTLENECK, Goal.DEVICES, Goal.MEMORY)


def three() -> Instance:
    """The last layer takes longest; the two before it may share a device, which plans tried first do not."""
    layers = chain([matrix("a", 10, 4), matrix("b", 10, 4), matrix("c", 100, 4)], [2, 2])
    instance = replace(instance_of(layers, mesh(2, 1)), constraints=Constraints(devices_per_stage=(1,)))
    return replace(instance, goals=GOALS)


def answering(*answers: Outcome | None) -> Solve:
    """Return a solver that gives these answers in turn, and where one is None searches all plans."""
    left = iter(answers)

    def solve(instance: Instance, limits: Limits) -> Outcome:
        given = next(left, None)
        return brute_force.solve(instance, limits) if given is None else given

    return solve


STOPPED = Outcome("stopped", Proof.UNKNOWN)


def statuses(outcome: Outcome) -> list[Status]:
    return [claim.status for claim in outcome.claims]


def test_all_goals_proved_is_optimal() -> None:
    outcome = checked(three(), solve_in_order(three(), brute_force.solve, Limits()))
    assert (outcome.proof, outcome.goals, outcome.gap) == (Proof.OPTIMAL, GOALS, 0)
    assert statuses(outcome) == [Status.PROVED] * 3


def test_a_later_search_without_a_plan_leaves_the_plan_before_and_an_honest_bound() -> None:
    instance = three()
    best = checked(instance, solve_in_order(instance, brute_force.solve, Limits()))
    outcome = checked(instance, solve_in_order(instance, answering(None, STOPPED), Limits()))
    assert outcome.proof is Proof.FEASIBLE
    assert outcome.objective == outcome.bound == best.objective
    assert statuses(outcome) == [Status.PROVED, Status.OPEN, Status.NOT_LOOKED_AT]
    assert outcome.plan is not None
    assert tuple(claim.value for claim in outcome.further) == evaluate(instance, outcome.plan).further
    opened = outcome.further[0]
    assert opened.bound is not None and 1 <= opened.bound <= best.further[0].value < opened.value
    assert outcome.gap == opened.gap != 0
    assert "devices: stopped without a plan" in outcome.notes
    assert [claim.goal for claim in claims_of(instance, outcome)] == [Goal.BOTTLENECK]


def test_a_later_plan_that_is_not_proved_is_open_with_its_bound() -> None:
    instance = three()
    best = solve_in_order(instance, brute_force.solve, Limits())

    def solve(asked: Instance, limits: Limits) -> Outcome:
        found = brute_force.solve(asked, limits)
        return replace(found, proof=Proof.FEASIBLE, bound=2) if asked.goals[0] is Goal.MEMORY else found

    outcome = checked(instance, solve_in_order(instance, solve, Limits()))
    assert (outcome.proof, outcome.further[0]) == (Proof.FEASIBLE, best.further[0])
    assert outcome.further[1] == GoalClaim(Goal.MEMORY, best.further[1].value, outcome.further[1].bound)
    assert 2 <= (outcome.further[1].bound or 0) < best.further[1].value


def test_where_the_first_goal_is_open_the_others_are_priced_and_not_looked_at() -> None:
    instance = three()
    first = brute_force.solve(instance)
    outcome = checked(
        instance, solve_in_order(instance, answering(replace(first, proof=Proof.FEASIBLE, bound=1)), Limits())
    )
    assert statuses(outcome) == [Status.OPEN, Status.NOT_LOOKED_AT, Status.NOT_LOOKED_AT]
    assert outcome.plan is not None
    assert tuple(claim.value for claim in outcome.further) == evaluate(instance, outcome.plan).further


def test_a_later_search_cannot_exclude_the_plan_that_is_there() -> None:
    with pytest.raises(FalseClaimError, match="devices: claims that no plan exists, but there is one already"):
        solve_in_order(three(), answering(None, Outcome("wrong", Proof.INFEASIBLE)), Limits())


def test_optimal_is_refused_unless_every_goal_is_proved() -> None:
    instance = three()
    found = solve_in_order(instance, brute_force.solve, Limits())
    devices, memory = found.further
    for further in (
        (),
        (devices,),
        (devices, replace(memory, bound=None)),
        (replace(devices, looked_at=False), memory),
        (memory, devices),
    ):
        with pytest.raises(FalseClaimError, match=r"not proved|claims about"):
            checked(instance, replace(found, further=further))


@settings(max_examples=so_many(25), deadline=None, suppress_health_check=SLOW)
@given(instances(layer_graphs(3), cluster_graphs(3)), st.permutations(list(Goal)[:1] + list(Goal)[2:]), st.data())
def test_whenever_it_is_stopped_no_claim_is_false(
    instance: Instance, goals: list[Goal], data: st.DataObject
) -> None:
    assume(brute_force.count_plans(instance) <= 1000)
    goals = [one for one in goals if one not in (Goal.STEP_TIME, Goal.PERIOD)]  # these stand alone
    instance = replace(instance, goals=tuple(goals[:3]))
    last = data.draw(st.integers(1, 3))
    outcome = checked(instance, solve_in_order(instance, answering(*[None] * last, STOPPED), Limits()))
    assert statuses(outcome)[:last] == [Status.PROVED] * last
    rows = [evaluate(instance, plan) for plan in brute_force.plans(instance)]
    best = min((row.objective or 0, *row.further) for row in rows if row.feasible)
    assert tuple(claim.value for claim in outcome.claims[:last]) == best[:last]
    if last < 3:
        assert (outcome.claims[last].bound or 0) <= best[last] <= outcome.claims[last].value
    assert (outcome.proof is Proof.OPTIMAL) == all(status is Status.PROVED for status in statuses(outcome))


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW)
@given(instances(layer_graphs(3), cluster_graphs(3)), st.data())
def test_an_executed_time_may_stand_before_other_goals(instance: Instance, data: st.DataObject) -> None:
    assume(brute_force.count_plans(instance) <= 500)
    executed = Goal.STEP_TIME if instance.training.schedule.flushes else Goal.PERIOD
    others = data.draw(st.permutations([Goal.DEVICES, Goal.MEMORY, Goal.BOTTLENECK]))
    goals = [*others[:1] * data.draw(st.integers(0, 1)), executed, *others[1:]]
    instance = replace(instance, goals=tuple(goals))
    outcome = checked(instance, solve_in_order(instance, brute_force.solve, Limits()))
    rows = [evaluate(instance, plan) for plan in brute_force.plans(instance)]
    best = min((row.objective or 0, *row.further) for row in rows if row.feasible)
    assert outcome.proof is Proof.OPTIMAL and tuple(claim.value for claim in outcome.claims) == best
    # No instance says what a plan may take as executed, so other routes are asked up to there.
    asked = [claim.goal for claim in claims_of(instance, outcome)]
    assert asked == goals[: goals.index(executed) + 1]


def test_where_plans_are_too_many_a_goal_behind_an_executed_time_is_said_to_be_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance = replace(three(), goals=(Goal.STEP_TIME, Goal.DEVICES))
    monkeypatch.setattr(brute_force, "accepts", lambda _: Support(reason="three: over 9 plans"))
    outcome = checked(instance, solve_in_order(instance, brute_force.solve, Limits()))
    assert outcome.proof is Proof.FEASIBLE and statuses(outcome) == [Status.PROVED, Status.NOT_LOOKED_AT]
    assert "devices: not looked at, as no search keeps to step_time, and there are over 9 plans" in outcome.notes
