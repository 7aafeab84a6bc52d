"""Every solver looks at the deadline, and what it says when it is stopped anywhere is honest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import Limits, Outcome, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers.catalogue import AUTO, all_names, find_any
from pipecut.solvers.certifying import certify
from pipecut.solvers.explain import explain
from tests.examples import chain, instance_of, matrix, mesh

AT_ONCE = ("naive_model_parallel", "data_parallel", "one_weird_trick")
"""Solvers that take no choice and end in a moment."""
BEST = (
    "auto",
    "cpsat",
    "cpsat_types",
    "state_dp",
    "step_dp",
    "reduced_dp",
)
MORE = ("step_dp in halves", "step_dp to a period")
"""What else a search answers, each in its own way."""
BEST += MORE


Solve = Callable[[Instance, Limits], Outcome]


def example(*goals: Goal) -> Instance:
    layers = [matrix(f"l{at}", 300 + 40 * at, 8 * at, taken=8, made=8) for at in range(7)]
    instance = instance_of(chain(layers, [8] * 6), mesh(2, 2), training=Training(global_batch=4, micro_batches=4))
    return replace(instance, goals=goals or (Goal.BOTTLENECK,))


class Wish:
    """Asks to stop after so many polls, and counts them."""

    def __init__(self, polls: int) -> None:
        self.left, self.asked = polls, 0

    def __call__(self) -> bool:
        self.asked += 1
        self.left -= 1
        return self.left < 0


def solver_named(name: str) -> Solve:
    return find_any(name.split()[0]).load()


def instance_named(name: str) -> Instance:
    if name == "step_dp to a period":
        training = Training(global_batch=4, schedule=Schedule.ASYNC_ONE_F_ONE_B)
        return replace(example(), training=training, goals=(Goal.PERIOD,))
    if name == "cpsat_chunks":
        training = Training(global_batch=4, micro_batches=4, chunks=2)
        return replace(example(), training=training, constraints=Constraints(tensor_parallel_degrees=(1,)))
    if name == "step_dp in halves":
        training = Training(global_batch=4, micro_batches=4, schedule=Schedule.ZERO_BUBBLE_H1)
        stages = Constraints(stages_at_least=3, stages_at_most=3)
        return replace(example(), training=training, goals=(Goal.STEP_TIME,), constraints=stages)
    goals = {"reduced_dp": Goal.ITERATION_TIME, "step_dp": Goal.STEP_TIME}
    return example(goals.get(name, Goal.BOTTLENECK))


@pytest.mark.few("0-", "3-")
@pytest.mark.parametrize("name", (AUTO.name, *all_names(), *MORE))
@pytest.mark.parametrize("polls", [0, 1, 2, 3, 5, 8, 20, 50, 200, 1000])
def test_a_solver_stopped_anywhere_makes_an_honest_claim(name: str, polls: int) -> None:
    instance, wish = instance_named(name), Wish(polls)
    found = checked(instance, solver_named(name)(instance, Limits(workers=1, stopped=wish)))
    if wish.left < 0 and name in BEST:
        assert found.plan is not None and found.bound is not None
    assert (found.plan is None) == (found.proof is Proof.UNKNOWN)


@pytest.mark.parametrize("name", (AUTO.name, *all_names(), *MORE))
def test_every_solver_looks_at_the_deadline(name: str) -> None:
    wish = Wish(0)
    solver_named(name)(instance_named(name), Limits(workers=1, stopped=wish))
    assert (wish.asked > 0) is (name not in AT_ONCE)


PROPOSING = (
    "pipecut.solvers.step_time.step_dp.first_plan",
    "pipecut.solvers.chunks.cpsat_chunks.first_plan",
)


def with_steps(name: str) -> Instance:
    """An instance whose bound is raised by a search, and not at once."""
    if name != "cpsat_chunks":
        return instance_named(name)
    return replace(instance_named(name), goals=(Goal.STEP_TIME,))


@pytest.mark.slow
@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("name", ["step_dp", *MORE, "cpsat_chunks"])
def test_who_is_stopped_without_a_plan_keeps_its_bound(
    name: str, below: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was told is what is said, and no more than is true; also where only better plans are of use."""
    for proposing in PROPOSING:
        monkeypatch.setattr(proposing, lambda *_: None)
    instance, solve = with_steps(name), solver_named(name)
    best, counted, raised = solve(instance, Limits(workers=1)).objective, Wish(10**9), 0
    limits = Limits(workers=1, below=best if below else None)
    solve(instance, replace(limits, stopped=counted))
    for polls in (*range(0, counted.asked, max(1, counted.asked // 12)), counted.asked - 1, counted.asked):
        told: list[int] = []
        within = replace(limits, stopped=Wish(polls), progress=lambda one, told=told: told.append(one.bound or 0))
        found = checked(instance, solve(instance, within))
        assert found.bound is not None and best is not None
        assert max(told, default=0) <= found.bound <= best
        raised += found.bound > lower_bound(instance)
    assert raised


@pytest.mark.parametrize("name", BEST)
def test_without_time_the_plan_is_a_simple_one_with_a_bound_of_work(name: str) -> None:
    instance = instance_named(name)
    found = checked(instance, solver_named(name)(instance, Limits(time_limit_s=0)))
    best = solver_named(name)(instance, Limits(workers=1)).objective
    assert found.proof is Proof.FEASIBLE and found.objective is not None and found.bound is not None
    assert best is not None and 0 < found.bound <= best <= found.objective


def test_a_certificate_is_not_made_after_the_deadline() -> None:
    instance = example()
    best = find_any("state_dp").load()(instance, Limits())
    assert best.plan is not None and best.objective is not None
    over = Limits(stopped=lambda: True).deadline
    with pytest.raises(StoppedError):
        certify(instance, best.plan, best.objective, over)


@pytest.mark.parametrize("polls", [0, 1, 2, 4, 8, 16, 64, 256])
def test_an_explanation_stopped_anywhere_says_so(polls: int) -> None:
    limits = Constraints(placement=Placement.LINE, stages_at_least=5)
    instance = replace(example(), constraints=limits)
    wish = Wish(polls)
    found = explain(instance, Limits(workers=1, stopped=wish))
    assert found.complete is (wish.left >= 0)
    if not found.complete:
        assert found.notes[0] == "stopped early: not every question was answered"
