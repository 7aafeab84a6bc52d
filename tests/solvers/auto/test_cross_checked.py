from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import catalogue
from pipecut.solvers import crosscheck as checked_solve
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import SOLVERS, SolverEntry, find_any
from pipecut.solvers.crosscheck import (
    SAME_INFEASIBLE,
    SAME_OPTIMUM,
    TIGHT,
    contradiction,
    cross_check,
)
from tests.commands.fakes import instead_of, picky, some_plan, wrong_excluded
from tests.one_stage import one_stage

SLOW_NETWORK = ("cluster.between_servers.bandwidth=1 Gbit/s",)


@pytest.fixture
def instance(scenario: Path) -> Instance:
    """On the line and without a limit on memory: what the dynamic programme over the line sees."""
    return load_scenario(scenario, ["constraints.memory=false"]).load()


def ms(time_ns: int) -> str:
    return goal_amount(Goal.BOTTLENECK, time_ns)


def test_contradictions(instance: Instance) -> None:
    plan = some_plan(instance, "a")
    price = plan.objective or 0
    assert contradiction(plan, replace(plan, bound=price)) is None
    assert contradiction(plan, replace(plan, objective=price + 5, bound=price)) is None
    assert contradiction(plan, Outcome("b", Proof.UNKNOWN, bound=price)) is None
    assert contradiction(Outcome("a", Proof.INFEASIBLE), Outcome("b", Proof.INFEASIBLE)) is None
    higher = Outcome("b", Proof.UNKNOWN, bound=price + 1)
    for pair in ((plan, higher), (higher, plan)):
        assert (
            contradiction(*pair)
            == f"b claims that no plan is below {ms(price + 1)}, but a has a plan of {ms(price)}"
        )
    none = Outcome("b", Proof.INFEASIBLE)
    for pair in ((plan, none), (none, plan)):
        assert contradiction(*pair) == f"b claims that no plan exists, but a has a plan of {ms(price)}"


def test_only_proofs_are_cross_checked(instance: Instance) -> None:
    assert plan(instance, Limits(), SolverEntry("one_stage", "", lambda: one_stage)).checks == ()
    assert plan(instance, Limits(), find_any("line_dp"), cross_check=False).checks == ()


@pytest.mark.parametrize("name", ["line_dp", "state_dp", "brute_force"])
def test_a_proof_of_a_programme_is_compared_with_the_model(instance: Instance, name: str) -> None:
    found = plan(instance, Limits(), find_any(name))
    assert found.solver == name and found.proof is Proof.OPTIMAL
    assert found.checks[-1] == SAME_OPTIMUM.format(find_any("cpsat").summary)


def on_layers() -> tuple[SolverEntry, ...]:
    """The catalogue without the model on types, which is small where the one on layers is large."""
    return tuple(one for one in SOLVERS if one.name != "cpsat_types")


def test_where_the_model_is_too_large_a_certificate_is_the_second_proof(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_solve, "LARGEST_BYTES", 0)
    monkeypatch.setattr("pipecut.solvers.exhaustive.MAX_PLANS", 0)
    monkeypatch.setattr(catalogue, "SOLVERS", on_layers())
    notes = plan(instance, Limits(), find_any("line_dp")).checks
    assert notes[-1] == SAME_OPTIMUM.format("a certificate, checked without a solver,")
    step = replace(instance, goals=(Goal.ITERATION_TIME,))
    notes = plan(step, Limits(), find_any("step_dp")).checks
    assert notes[-1] == "not cross-checked: the model of cpsat is too large to prove it again"


def test_nobody_is_asked_in_vain_where_memory_decides_single_stages(
    scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = load_scenario(scenario, ["constraints.memory=true"]).load()
    found = find_any("state_dp").load()(limited, Limits())
    assert found.proof is Proof.OPTIMAL and found.unused == ("ATOMS",)
    refused = replace(found, unused=())
    small = cross_check(limited, refused, Limits())
    assert small == SAME_OPTIMUM.format(find_any("cpsat").summary)
    monkeypatch.setattr(checked_solve, "QUICK_BYTES", 0)
    monkeypatch.setattr("pipecut.solvers.exhaustive.MAX_PLANS", 0)
    monkeypatch.setattr(catalogue, "SOLVERS", on_layers())
    assert cross_check(limited, found, Limits()) == small
    monkeypatch.setattr(checked_solve, "ask_certificate", lambda *_: pytest.fail("a certificate was made"))
    assert cross_check(limited, refused, Limits()) == f"not cross-checked: {TIGHT}"


def test_two_methods_may_agree_that_there_is_no_plan(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [one for name in ("cpsat", "line_dp") for one in instead_of(name, wrong_excluded) if one.name == name]
    monkeypatch.setattr(catalogue, "SOLVERS", tuple(both))
    assert plan(instance, Limits(), find_any("cpsat")).checks == (
        SAME_INFEASIBLE.format(find_any("line_dp").summary),
    )


def test_a_second_method_that_says_nothing_is_said(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(instance, Limits(), find_any("cpsat"), cross_check=False)

    def note() -> str:
        return cross_check(instance, found, Limits(time_limit_s=60).begun())

    monkeypatch.setattr("pipecut.solvers.exhaustive.MAX_PLANS", 0)
    monkeypatch.setattr("pipecut.solvers.crosscheck.certifiable", lambda _: "not today")
    everyone = instead_of("line_dp", picky)
    monkeypatch.setattr(catalogue, "SOLVERS", everyone)
    assert note() == SAME_OPTIMUM.format(find_any("state_dp").summary)
    few = tuple(one for one in everyone if one.name in ("cpsat", "line_dp"))
    monkeypatch.setattr(catalogue, "SOLVERS", few)
    assert note() == "not cross-checked: line_dp cannot take this instance (more layers than this solver takes)"
    silent = instead_of("line_dp", lambda *_: Outcome("line_dp", Proof.UNKNOWN))
    monkeypatch.setattr(catalogue, "SOLVERS", silent)
    assert note() == "not cross-checked: line_dp proves nothing in 0.0 s"


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("overrides", "goals", "method"),
    [
        (["cluster.devices.card.memory=6 MB", *SLOW_NETWORK], (Goal.BOTTLENECK,), "state_dp"),
        (["constraints.placement=free"], (Goal.BOTTLENECK,), "state_dp"),
        ([], (Goal.ITERATION_TIME,), "step_dp"),
        ([], (Goal.ITERATION_TIME, Goal.DEVICES), "step_dp"),
        (["constraints.memory=false"], (Goal.BOTTLENECK,), "line_dp"),
    ],
)
def test_the_second_method_is_one_that_sees_the_instance(
    scenario: Path, overrides: list[str], goals: tuple[Goal, ...], method: str
) -> None:
    instance = replace(load_scenario(scenario, overrides).load(), goals=goals)
    outcome = plan(instance, Limits(), find_any("cpsat"))
    assert outcome.proof is Proof.OPTIMAL
    assert SAME_OPTIMUM.format(find_any(method).summary) in outcome.checks


def test_the_second_method_gets_what_is_left_of_the_time(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    spent = iter([9.0, 10.0])
    monkeypatch.setattr("pipecut.formulation.limits.time.monotonic", lambda: now[0])
    left: list[float | None] = []

    def first(instance: Instance, limits: Limits) -> Outcome:
        now[0] += next(spent)
        return Outcome("cpsat", Proof.INFEASIBLE)

    def second(instance: Instance, limits: Limits) -> Outcome:
        left.append(limits.deadline.left_s())
        return Outcome("line_dp", Proof.UNKNOWN)

    entries = [
        replace(entry, load=lambda fake={"cpsat": first, "line_dp": second}[entry.name]: fake)
        for entry in catalogue.SOLVERS
        if entry.name in ("cpsat", "line_dp")
    ]
    monkeypatch.setattr(catalogue, "SOLVERS", tuple(entries))
    plan(instance, Limits(time_limit_s=10), find_any("cpsat"))
    assert left == [1.0]
    assert "used up" in plan(instance, Limits(time_limit_s=10), find_any("cpsat")).checks[-1]


def test_a_better_plan_from_the_second_method_is_a_false_claim(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = some_plan(instance, "cpsat")
    wrong = replace(found, proof=Proof.OPTIMAL, bound=found.objective)
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", lambda *_: wrong))
    with pytest.raises(FalseClaimError, match=r"cpsat claims that no plan is below 5.436 ms .*, but line_dp"):
        plan(instance, Limits(), find_any("cpsat"))


def test_a_certificate_that_is_stopped_confirms_nothing(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise StoppedError

    monkeypatch.setattr(checked_solve, "LARGEST_BYTES", 0)
    monkeypatch.setattr("pipecut.solvers.exhaustive.MAX_PLANS", 0)
    monkeypatch.setattr("pipecut.solvers.crosscheck.confirmed_bounds", stopped)
    monkeypatch.setattr(catalogue, "SOLVERS", on_layers())
    found = plan(instance, Limits(), find_any("line_dp"), cross_check=False)
    why = "the model of cpsat is too large to prove it again; a certificate was not ready in 0.0 s"
    assert cross_check(instance, found, Limits(time_limit_s=60).begun()) == f"not cross-checked: {why}"
