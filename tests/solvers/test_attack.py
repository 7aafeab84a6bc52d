"""An attack finds what refutes a claim, nothing against a true one, and says what it looked at."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS
from pipecut.formulation.problem.options import BoundaryCharge, Combine
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.solvers import exhaustive
from pipecut.solvers.attack import Claim, attacked
from pipecut.solvers.choices.trainings import Decision, Ruled
from pipecut.solvers.crosscheck import NOT_CHECKED
from pipecut.solvers.reduce.reduced_dp import solve, stages_of
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import instances
from tests.laws import so_many

SOME = settings(max_examples=so_many(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def claim(instance: Instance, bound: int | None, plan: Plan | None = None, by: str = "claimant") -> Claim:
    return instance, Outcome(by, Proof.OPTIMAL if plan else Proof.INFEASIBLE, plan), bound


def some_blocks(number: int = 4, allowed: tuple[int, ...] = FORMS) -> Instance:
    """So many layers on two servers, stages of which may compute blocks again."""
    layers = [matrix(f"m{at}", 1000 * (at + 2), 10, taken=40, made=40, allowed=allowed) for at in range(number)]
    instance = instance_of(chain(layers, [40] * (number - 1)), mesh(2, 1), training=Training(4, 2))
    cost = replace(instance.cost, combine=Combine.MAX, boundary_charge=BoundaryCharge.LINK)
    constraints = Constraints(memory=True, recompute=Recompute.BLOCKS)
    return replace(instance, cost=cost, constraints=constraints, goals=(Goal.ITERATION_TIME,))


@SOME
@given(instances())
def test_what_brute_force_proves_survives_and_nothing_more_does(instance: Instance) -> None:
    found = exhaustive.solve(instance)
    if found.proof is Proof.INFEASIBLE:
        assert attacked([claim(instance, None)], Limits()) == ""
    elif found.objective is not None:
        attacked([claim(instance, found.objective, found.plan)], Limits())


@pytest.mark.slow
def test_a_plan_that_is_not_best_is_refuted_by_a_neighbour_or_a_draw() -> None:
    instance = some_blocks(3)
    best = exhaustive.solve(instance)
    assert best.objective is not None
    with pytest.raises(FalseClaimError, match="claims that no plan exists, but there is a plan of"):
        attacked([claim(instance, None)], Limits())
    worse = exhaustive.solve(instance, accept=lambda plan: evaluate(instance, plan).objective != best.objective)
    with pytest.raises(FalseClaimError, match=r"claims that no plan is below .*, but there is a plan of"):
        attacked([claim(instance, worse.objective, worse.plan)], Limits())


def test_tables_that_promise_too_much_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = some_blocks()
    found = solve(instance)
    assert found.proof is Proof.OPTIMAL and found.plan is not None
    said = attacked([claim(instance, found.objective, found.plan, "reduced_dp")], Limits())
    assert re.fullmatch(
        r"all \d+ neighbours and \d+ drawn plans that fit, priced by the evaluator: none better;"
        r" \d+ stages of theirs, none below the tables; not proved a second time",
        said,
    )
    tables = stages_of(instance, NEVER)
    assert all(tables.at_least(found.plan))
    honest = ReducedStages.at_least
    monkeypatch.setattr(ReducedStages, "at_least", lambda self, plan: [one + 1 for one in honest(self, plan)])
    with pytest.raises(FalseClaimError, match=r"claims that stage \d takes \d+ ns or more, the evaluator"):
        attacked([claim(instance, found.objective, found.plan, "reduced_dp")], Limits())


@pytest.mark.slow
def test_plans_that_break_a_rule_accuse_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour in another mode keeps forms that its layers do not have there: nothing was promised of it."""
    instance, broken = some_blocks(allowed=(1, 2)), list[Plan]()
    asked = replace(instance.constraints, tensor_parallel_degrees=(1, 2))
    instance = replace(instance, constraints=asked, goals=(Goal.STEP_TIME,))
    found, honest = solve(instance), ReducedStages.at_least
    two = exhaustive.solve(instance, accept=lambda plan: len(plan) == 2)

    def promised(self: ReducedStages, plan: Plan) -> list[int]:
        if evaluate(instance, plan).feasible:
            return honest(self, plan)
        broken.append(plan)
        return [10**12] * len(plan)

    monkeypatch.setattr(ReducedStages, "at_least", promised)
    attacked([claim(instance, found.objective, two.plan, "reduced_dp")], Limits())
    assert broken


def test_the_best_plan_may_stand_on_devices_that_other_micro_batches_do_not_fill() -> None:
    """Two replicas share no single sample; what is claimed of such micro-batches is attacked around that plan."""
    instance = some_blocks()
    asked = replace(
        instance.constraints,
        tensor_parallel_degrees=(1,),
        devices_per_stage=(1, 2),
        equal_stages=True,
        one_mode=True,
    )
    instance = replace(instance, constraints=asked)
    found = exhaustive.solve(instance, accept=lambda plan: len(plan) == 1)
    assert found.plan is not None and found.plan.stages[0].group.devices == 2
    single = replace(instance, training=Training(4, 4), goals=(Goal.STEP_TIME,))
    for by in ("claimant", "reduced_dp"):  # whose tables have no such devices
        assert "drawn" in attacked([claim(single, 1, found.plan, by)], Limits())


def test_plans_of_several_stages_a_group_are_no_neighbours_of_those_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where such a grid is the best plan, what is claimed of plans of one stage is attacked by draws alone."""
    instance = replace(some_blocks(8), goals=(Goal.STEP_TIME,))
    training = replace(instance.training, dealt=(2,))
    dealt = replace(instance, training=replace(training, chunks=2))
    groups = [Group.on_line(instance, at, 1) for at in (0, 1)]
    plan = Plan(tuple(Stage(Span(2 * at, 2 * at + 2), groups[at % 2], (0, 0)) for at in range(4)))
    assert evaluate(dealt, plan).feasible
    other = Ruled(instance, Outcome("reduced_dp", Proof.INFEASIBLE, goals=instance.goals), 1)
    found = Decision(dealt, Outcome("claimant", Proof.OPTIMAL, plan, goals=instance.goals), (other,))
    monkeypatch.setattr("pipecut.solvers.choices.trainings.cross_check", lambda *_: NOT_CHECKED)
    (said,) = found.checks(Limits(time_limit_s=1))
    assert "drawn plans" in said and "neighbour" not in said


def test_only_what_nobody_proved_again_is_attacked_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = some_blocks()
    found = Decision(instance, Outcome("claimant", Proof.INFEASIBLE))
    assert attacked([claim(instance, None)], Limits(stopped=lambda: True)) == ""
    assert list(found.checks(Limits(stopped=lambda: True))) == []  # nobody knows what a claimant rests on
    said = "another finds the same"
    monkeypatch.setattr("pipecut.solvers.choices.trainings.checked_by_others", lambda *_: [said])
    assert list(found.checks(Limits())) == ["another finds the same"]
    said = f"{NOT_CHECKED}: there is nobody"
    with pytest.raises(FalseClaimError, match="claims that no plan exists"):
        list(found.checks(Limits()))
