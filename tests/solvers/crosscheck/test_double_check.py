"""Lies told on purpose: which route notices which, and that nobody disagrees with the truth."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from ortools.sat.python import cp_model

from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import crosscheck as exact
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.cpsat.model import FAMILIES, redundant_families
from pipecut.solvers.cpsat.on_types import cpsat_types as on_types
from pipecut.solvers.cpsat.variables import Family, Posted, Variables
from pipecut.solvers.crosscheck import ROUTES, Route, Verdict, double_check
from pipecut.solvers.goals import solve_in_order
from pipecut.solvers.reference import line_dp
from pipecut.solvers.search.stoppable import in_background
from tests import generators
from tests.laws import so_many

LIMITS = Limits(time_limit_s=120)
RUNS = (on_types.run,)
"""Whoever takes ``engine.run`` by name does so here: while it is patched it would be a lie for good."""
SLACK = settings(max_examples=so_many(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def instance_with(
    memory_bytes: int = 10**9,
    *,
    limited: bool = False,
    slow_flops: int = 1_000_000_000,
    between_bits: int = 400_000_000,
    copies: int = 1,
) -> Instance:
    """Five layers on two servers of two devices each, unlike ones: small enough to price every plan."""
    layers = copies * [
        Layer("conv1", "conv2d", Split.MATRIX, 40_000, 90_000, 90_000, 40_000, 900_000),
        Layer("relu1", "relu", Split.FOLLOW, 0, 90_000, 90_000, 80_000, 0),
        Layer("conv2", "conv2d", Split.MATRIX, 60_000, 90_000, 50_000, 80_000, 1_700_000),
        Layer("relu2", "relu", Split.FOLLOW, 0, 50_000, 50_000, 50_000, 0),
        Layer("fc", "linear", Split.MATRIX, 500_000, 50_000, 1_000, 50_000, 1_200_000),
    ]
    layers = [replace(layer, name=f"{layer.name}.{at}") for at, layer in enumerate(layers)]
    edges = [(one.name, other.name, one.output_bytes) for one, other in itertools.pairwise(layers)]
    inside, between = Link(1_000_000_000, 1_000), Link(between_bits, 5_000)
    servers = [
        Server("old", DeviceClass("slow", memory_bytes, slow_flops), 2, inside),
        Server("new", DeviceClass("fast", memory_bytes, 1_900_000_000), 2, inside),
    ]
    return build_instance(
        layer_graph("five", layers, edges),
        cluster_graph("two", servers, [("old", "new", between)]),
        Training(global_batch=4),
        CostModel(),
        Constraints(memory=limited),
    )


PLAIN = instance_with()
TIGHT = instance_with(2_000_000, limited=True)


def truth(instance: Instance) -> Outcome:
    """Price every plan."""
    outcome = brute_force.solve(instance)
    assert outcome.proof is Proof.OPTIMAL
    return replace(outcome, solver="claimant")


def verdicts(instance: Instance, outcome: Outcome, routes: tuple[Route, ...] = ROUTES) -> dict[str, Verdict]:
    """Return what every route says about the first goal."""
    return {check.route.name: check.answer.verdict for check in double_check(instance, outcome, LIMITS, routes)}


# The lies. Each returns the instance and what is claimed of it; some break the solver to get there.


def raised(_: pytest.MonkeyPatch) -> tuple[Instance, Outcome]:
    """The bound raised by one, and the price with it."""
    best = truth(PLAIN)
    value = (best.objective or 0) + 1
    return PLAIN, replace(best, objective=value, bound=value)


def worse(_: pytest.MonkeyPatch) -> tuple[Instance, Outcome]:
    """The next best plan, at its true price, claimed to be optimal."""
    best = truth(PLAIN).objective

    def not_best(plan: object) -> bool:
        return evaluate(PLAIN, plan).objective != best  # pyright: ignore[reportArgumentType]

    second = brute_force.solve(PLAIN, accept=not_best)
    return PLAIN, replace(second, solver="claimant")


def better(_: pytest.MonkeyPatch) -> tuple[Instance, Outcome]:
    """A faster plan that does not fit into memory."""
    plan = truth(replace(PLAIN, constraints=Constraints())).plan
    assert plan is not None
    value = evaluate(TIGHT, plan).objective
    return TIGHT, Outcome("claimant", Proof.OPTIMAL, plan, value, value)


def excluded(_: pytest.MonkeyPatch) -> tuple[Instance, Outcome]:
    """There is no plan, says the claim, and there are many."""
    return PLAIN, Outcome("claimant", Proof.INFEASIBLE)


def hasty(patch: pytest.MonkeyPatch) -> tuple[Instance, Outcome]:
    """A solver below ours that says no to everything, so that the first plan seems optimal."""
    patch.setattr("pipecut.solvers.cpsat.engine.run", lambda *_: cp_model.INFEASIBLE)
    return PLAIN, layered.solve(PLAIN, LIMITS)


def strict(patch: pytest.MonkeyPatch) -> tuple[Instance, Outcome]:
    """A redundant family that is none: it forbids cuts that plans may have."""

    def with_strict(tables: Tables) -> tuple[Family, ...]:
        return (*redundant_families(tables), Family(199, "strict", no_cuts))

    patch.setattr("pipecut.solvers.cpsat.cpsat.redundant_families", with_strict)
    return PLAIN, layered.solve(PLAIN, LIMITS)


def wrong(_: pytest.MonkeyPatch) -> tuple[Instance, Outcome]:
    """A defining family that asks too much."""
    return PLAIN, layered.solve(PLAIN, LIMITS, (*FAMILIES, Family(99, "wrong", no_cuts)))


def no_cuts(v: Variables) -> Posted:
    """Forbid every cut; the best plan has one."""
    for layer in range(1, v.layers):
        yield (layer,), v.model.add(v.cut[layer] == 0)


A, D, I, N = Verdict.AGREED, Verdict.DISAGREED, Verdict.INCONCLUSIVE, Verdict.NOT_APPLICABLE  # noqa: E741

TABLE: dict[Callable[[pytest.MonkeyPatch], tuple[Instance, Outcome]], tuple[object, ...]] = {
    # lie     caught   line_dp  state_dp  brute_force  cpsat  cpsat_types  certificate
    raised: (True, D, D, D, D, D, D),
    worse: (False, D, D, D, D, D, I),
    better: (True, A, D, D, D, D, D),
    excluded: (False, D, D, D, D, D, N),
    hasty: (False, D, D, D, N, D, I),
    strict: (False, D, D, D, N, D, I),
    wrong: (False, D, D, D, N, D, I),
}
"""For each lie whether ``checked`` catches it, and what each route says when it is asked all the same."""


@pytest.mark.few("hasty")
@pytest.mark.parametrize("lie", TABLE, ids=lambda lie: lie.__name__)
def test_who_notices_which_lie(
    lie: Callable[..., tuple[Instance, Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, claim = lie(monkeypatch)
    assert claim.proof is not Proof.UNKNOWN
    caught, *expected = TABLE[lie]
    try:
        checked(instance, claim)
        refuted = False
    except FalseClaimError:
        refuted = True
    assert refuted is caught
    assert verdicts(instance, claim) == dict(zip([route.name for route in ROUTES], expected, strict=True))


def test_every_lie_is_noticed_by_two() -> None:
    for caught, *answers in TABLE.values():
        assert [caught, *answers].count(True) + answers.count(D) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "instance", [PLAIN, TIGHT, instance_with(60_000, limited=True)], ids=["plain", "tight", "none"]
)
def test_nobody_disagrees_with_the_truth(instance: Instance) -> None:
    outcome = replace(brute_force.solve(instance), solver="claimant")
    answers = verdicts(instance, outcome)
    assert Verdict.DISAGREED not in answers.values() and Verdict.OUT_OF_TIME not in answers.values()
    for route in ("state_dp", "brute_force", "cpsat"):
        assert answers[route] is Verdict.AGREED


@pytest.mark.parametrize(
    ("name", "instance"),
    [
        ("devices", PLAIN),
        ("line", instance_with(slow_flops=100_000_000)),
        ("forms", PLAIN),
        ("stage_time", PLAIN),
        ("boundary_time", instance_with(between_bits=20_000_000)),
        ("memory", TIGHT),
    ],
)
def test_a_dropped_family_is_noticed_before_a_claim_is_made(name: str, instance: Instance) -> None:
    """Without it the model accepts what the evaluator does not: the search itself says so."""
    few = tuple(family for family in FAMILIES if family.name != name)
    with pytest.raises(FalseClaimError):
        checked(instance, layered.solve(instance, LIMITS, few))


@pytest.mark.slow
def test_a_disagreement_brings_the_plan_that_refutes() -> None:
    instance, claim = worse(pytest.MonkeyPatch())
    best = truth(instance).objective
    for check in double_check(instance, claim, LIMITS):
        plan = check.answer.counter_plan
        if check.answer.verdict is Verdict.DISAGREED:
            assert plan is not None and evaluate(instance, plan).feasible
            assert evaluate(instance, plan).objective == best and f"{best:,} ns" in check.answer.reason


@pytest.mark.slow
def test_a_route_that_says_no_to_everything_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model has to find the plan itself, so one without solutions does not pass for a proof."""
    monkeypatch.setattr("pipecut.solvers.cpsat.engine.run", lambda *_: cp_model.INFEASIBLE)
    assert verdicts(PLAIN, truth(PLAIN))["cpsat"] is D


@pytest.mark.slow
def test_a_proof_of_a_programme_is_asked_of_the_model_again() -> None:
    best = line_dp.solve(PLAIN)
    second = {check.route.name: check for check in double_check(PLAIN, best, LIMITS)}["cpsat"]
    assert second.confirms and second.answer.verdict is A
    _, lie = worse(pytest.MonkeyPatch())
    assert verdicts(PLAIN, replace(lie, solver="line_dp"))["cpsat"] is D


@pytest.mark.slow
def test_every_goal_is_asked_about() -> None:
    instance = replace(PLAIN, goals=(Goal.BOTTLENECK, Goal.DEVICES, Goal.MEMORY))
    found = solve_in_order(instance, layered.solve, LIMITS)
    outcome = replace(found, solver="claimant", further=tuple(replace(claim, by=()) for claim in found.further))
    checks = list(double_check(instance, outcome, LIMITS))
    assert len(checks) == 3 * len(ROUTES)
    assert {check.goal for check in checks} == set(instance.goals)
    agreed = {(check.goal, check.route.name) for check in checks if check.answer.verdict is A}
    assert not [check for check in checks if check.answer.verdict is D]
    assert set(itertools.product(instance.goals, ("brute_force", "cpsat"))) <= agreed
    further = tuple(replace(claim, value=claim.value + 1, bound=claim.value + 1) for claim in outcome.further)
    lied = {
        (check.goal, check.route.name)
        for check in double_check(instance, replace(outcome, further=further), LIMITS)
        if check.answer.verdict is D
    }
    assert {(Goal.DEVICES, "brute_force"), (Goal.DEVICES, "cpsat")} <= lied


@pytest.mark.slow
@pytest.mark.parametrize(
    ("goal", "schedule"),
    [(Goal.STEP_TIME, Schedule.ONE_F_ONE_B), (Goal.PERIOD, Schedule.ASYNC_ONE_F_ONE_B)],
)
def test_the_model_knows_executed_times(goal: Goal, schedule: Schedule) -> None:
    instance = replace(PLAIN, goals=(goal,), training=replace(PLAIN.training, micro_batches=2, schedule=schedule))
    best = truth(instance)
    found = verdicts(instance, best)
    assert {found[name] for name in ("brute_force", "cpsat", "certificate")} == {A}
    assert best.objective is not None
    lied = replace(best, objective=best.objective + 1, bound=best.objective + 1)
    assert {verdicts(instance, lied)[name] for name in ("brute_force", "cpsat")} == {D}
    none = verdicts(instance, Outcome("claimant", Proof.INFEASIBLE))
    assert {none[name] for name in ("brute_force", "cpsat")} == {D}


@pytest.mark.slow
def test_nothing_is_asked_where_nothing_is_proved() -> None:
    assert not verdicts(PLAIN, replace(truth(PLAIN), proof=Proof.FEASIBLE, bound=1))
    assert not verdicts(PLAIN, Outcome("claimant", Proof.UNKNOWN))


@pytest.mark.slow
def test_a_method_does_not_confirm_itself() -> None:
    assert verdicts(PLAIN, replace(truth(PLAIN), solver="line_dp"))["line_dp"] is Verdict.NOT_APPLICABLE


@pytest.mark.slow
def test_routes_without_time_say_so() -> None:
    stopped = replace(LIMITS, stopped=lambda: True)
    answers = {check.answer.verdict for check in double_check(PLAIN, truth(PLAIN), stopped)}
    assert answers == {Verdict.OUT_OF_TIME}
    long = instance_with(copies=20)
    claimed = replace(line_dp.solve(long), solver="claimant")
    for polls in (1, 3, 100):
        left = iter(range(polls))
        stopped = replace(LIMITS, stopped=lambda left=left: next(left, None) is None)
        asked = [Route("one", "one", exact.by_solver("cpsat"))]
        (check,) = double_check(long, claimed, stopped, asked)
        assert check.answer.verdict is Verdict.OUT_OF_TIME, polls


def test_work_that_cannot_be_stopped_is_left_behind() -> None:
    asked = iter([False, True])
    release = threading.Event()
    assert in_background(lambda: release.wait(10), lambda: next(asked)) is None
    release.set()
    assert in_background(lambda: 7, lambda: False) == 7
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0, lambda: False)


@given(generators.instances())
@SLACK
def test_no_route_disagrees_on_random_instances(instance: Instance) -> None:
    outcome = layered.solve(instance, LIMITS)
    for check in double_check(instance, outcome, LIMITS):
        assert check.answer.verdict is not Verdict.DISAGREED, check.answer.reason
