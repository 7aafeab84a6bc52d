"""Who is asked, who checks, what is said where someone is stopped, and what to try where nothing is proved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings

from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Proof, checked
from pipecut.formulation.problem.constraints import Goal, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.scenario.shipped import SHIPPED, scenario_files
from pipecut.solvers import catalogue
from pipecut.solvers.auto import solve as auto
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import SOLVERS, find_any
from pipecut.solvers.crosscheck import SAME_OPTIMUM, better
from pipecut.solvers.goals import solve_in_order
from pipecut.solvers.ingredients import independent_of, methods_of
from tests.commands.fakes import instead_of, some_plan
from tests.enumerator import truth
from tests.laws import so_many
from tests.problems import problems
from tests.solvers.cpsat.test_freedoms import has_groups
from tests.solvers.search.test_fitting import blocks

RECEIVER = "cost.boundary_charge=receiver"
UNSEEN = [RECEIVER, "cost.stage_time=overlap"]
"""What the model on layers sees alone."""
"""What no programme over states sees."""


@pytest.fixture
def instance(scenario: Path) -> Instance:
    return load_scenario(scenario).load()


def silent(instance: Instance, _: Limits) -> Outcome:
    """Stop without a proof."""
    return replace(some_plan(instance, ""), bound=lower_bound(instance))


def test_a_small_model_is_asked_first_and_a_programme_checks_it(instance: Instance) -> None:
    found = plan(instance, Limits())
    assert found.solver == "cpsat" and found.proof is Proof.OPTIMAL
    assert found.checks[-1] == SAME_OPTIMUM.format(find_any("state_dp").summary)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("overrides", "goal", "name"),
    [
        (["constraints.memory=false"], Goal.BOTTLENECK, "line_dp"),
        ([], Goal.BOTTLENECK, "state_dp"),
        ([], Goal.ITERATION_TIME, "step_dp"),
        ([RECEIVER], Goal.BOTTLENECK, "step_dp"),
        (UNSEEN, Goal.BOTTLENECK, "cpsat"),
        ([], Goal.MEMORY, "cpsat"),
    ],
)
def test_elsewhere_the_fastest_that_sees_it_is_asked_and_the_model_checks(
    scenario: Path, overrides: list[str], goal: Goal, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "QUICK_BYTES", 0)
    instance = replace(load_scenario(scenario, overrides).load(), goals=(goal,))
    found = plan(instance, Limits())
    assert found.solver == name and found.proof is Proof.OPTIMAL
    checker = "brute_force" if name.startswith("cpsat") else "cpsat"
    assert found.checks[-1] == SAME_OPTIMUM.format(find_any(checker).summary)


@pytest.mark.slow
def test_a_small_model_cut_at_blocks_is_reduced_where_no_programme_sees_all_of_it() -> None:
    instance = replace(blocks(8, 60 * 2**20, recompute=Recompute.BLOCKS), goals=(Goal.STEP_TIME,))
    assert len(instance.layers) * instance.devices < catalogue.REDUCED_FROM
    found = plan(instance, Limits(), cross_check=False)
    assert found.solver == catalogue.REDUCED and found.proof is Proof.OPTIMAL
    assert found.objective == find_any("cpsat_types").load()(instance, Limits()).objective


@pytest.mark.slow
def test_goals_are_decided_each_by_who_sees_them(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "QUICK_BYTES", 0)
    instance = replace(instance, goals=(Goal.BOTTLENECK, Goal.DEVICES))
    by_model = checked(instance, solve_in_order(instance, find_any("cpsat").load(), Limits()))
    for method in (catalogue.AUTO, find_any("state_dp")):
        found = plan(instance, Limits(), method)
        assert found.solver == "state_dp" and found.proof is Proof.OPTIMAL
        assert [one.value for one in found.claims] == [one.value for one in by_model.claims]
    assert any(note.startswith("devices: state_dp: states ") for note in found.notes)
    assert "devices: cpsat_types was asked instead" in found.notes


def test_who_does_not_end_is_named_and_another_is_asked(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", silent))
    found = plan(instance, Limits(time_limit_s=60))
    assert found.solver == "state_dp" and found.proof is Proof.OPTIMAL
    assert (
        found.notes[0].startswith("cpsat has not proved it after ") and "state_dp was asked instead" in found.notes
    )
    monkeypatch.setattr(auto, "QUICK_BYTES", 0)
    monkeypatch.setattr(catalogue, "SOLVERS", SOLVERS)
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("state_dp", silent))
    found = plan(instance, Limits(time_limit_s=60))
    assert found.solver == "step_dp" and found.notes[0].startswith("state_dp has not proved it after ")


def test_a_plan_of_one_and_the_bound_of_another_are_a_proof(instance: Instance) -> None:
    best = find_any("state_dp").load()(instance, Limits())
    assert best.objective is not None
    found = replace(best, proof=Proof.FEASIBLE, bound=1)
    bounded = replace(silent(instance, Limits()), solver="cpsat", bound=best.objective)
    for pair in ((found, bounded), (bounded, found)):
        both = checked(instance, better(*pair))
        assert (both.proof, both.objective, both.bound) == (Proof.OPTIMAL, best.objective, best.objective)
        assert both.notes[-1] == "bound: cpsat" and methods_of(both) == ("state_dp", "cpsat")
        assert not independent_of(both, "cpsat") and not independent_of(both, "state_dp")
        assert independent_of(both, "brute_force")
    with pytest.raises(FalseClaimError, match="claims that no plan is below"):
        better(found, replace(bounded, bound=best.objective + 1))


def test_what_is_not_proved_says_what_to_try(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", silent))
    monkeypatch.setattr("pipecut.solvers.exhaustive.MAX_PLANS", 0)
    monkeypatch.setattr("pipecut.solvers.auto.solve.MANY_CUTS", 3)
    instance = load_scenario(scenario, UNSEEN).load()
    tries = [note for note in plan(instance, Limits()).notes if note.startswith("to try: ")]
    assert [one.startswith("to try: fewer than 4 places to cut") for one in tries] == [True]
    one = plan(load_scenario(scenario).load(), Limits(time_limit_s=1e-9), find_any("cpsat")).notes
    assert "to try: more time than 1e-09 s (--time-limit)" in one


STEP_ON_SERVERS = ["objective=step_time", "constraints.stages_per_server=2"]


def test_for_an_executed_time_that_no_search_sees_the_formula_proposes(
    scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipecut.solvers.exhaustive.MAX_PLANS", 0)
    monkeypatch.setattr("pipecut.solvers.crosscheck.LARGEST_EXECUTED_BYTES", 0)
    instance = load_scenario(scenario, STEP_ON_SERVERS[:1]).load()
    demanding = replace(instance.constraints, pins=(Pin("conv2", stage=1),))
    instance = replace(instance, constraints=demanding)
    found = plan(instance, Limits())
    assert found.proof is Proof.FEASIBLE and found.solver == "by_formula"
    assert (
        "pin (to a stage that is neither the first nor the last)" in find_any("step_dp").accepts(instance).reason
    )
    assert plan(replace(instance, goals=(Goal.BOTTLENECK,)), Limits()).proof is Proof.OPTIMAL


@pytest.mark.slow
def test_the_model_proves_an_executed_time_that_no_programme_sees(scenario: Path) -> None:
    instance = load_scenario(scenario, STEP_ON_SERVERS[:1]).load()
    pinned = replace(instance.constraints, pins=(Pin("conv2", stage=1),))
    found = plan(replace(instance, constraints=pinned), Limits())
    assert (found.solver, found.proof, found.bound_by) == ("cpsat", Proof.OPTIMAL, ())
    assert found.checks[-1] == SAME_OPTIMUM.format(find_any("brute_force").summary)


def test_the_model_checks_the_plan_of_a_programme_that_keeps_to_what_this_does_not_see(scenario: Path) -> None:
    found = plan(load_scenario(scenario, STEP_ON_SERVERS).load(), Limits())
    assert (found.solver, found.proof) == ("step_dp", Proof.OPTIMAL)
    (bound,), (second,) = found.notes, found.checks
    assert bound == "the bound is that of step_dp, of plans that need not keep to stages_per_server"
    assert second == SAME_OPTIMUM.format(find_any("cpsat").summary)


def test_the_model_checks_what_a_programme_proves_of_an_executed_time(scenario: Path) -> None:
    found = plan(load_scenario(scenario, STEP_ON_SERVERS[:1]).load(), Limits())
    assert (found.solver, found.proof) == ("step_dp", Proof.OPTIMAL)
    assert found.checks[-1] == SAME_OPTIMUM.format(find_any("cpsat").summary)


def test_a_proof_needs_no_advice(instance: Instance) -> None:
    assert not any(note.startswith("to try") for note in plan(instance, Limits()).notes)


@settings(
    max_examples=so_many(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
@given(problems())
def test_whoever_is_asked_the_optimum_is_that_of_all_plans(instance: Instance) -> None:
    assume(has_groups(instance))
    found = checked(instance, plan(instance, Limits(workers=1)))
    best = truth(instance)
    values = None if best.values is None else tuple(best.values)
    assert found.proof is (Proof.INFEASIBLE if values is None else Proof.OPTIMAL)
    assert values is None or tuple(one.value for one in found.claims) == values


@pytest.mark.parametrize("entry", SOLVERS, ids=lambda entry: entry.name)
@settings(
    max_examples=so_many(30),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
@given(instance=problems())
def test_what_a_method_accepts_is_what_it_does(entry: catalogue.SolverEntry, instance: Instance) -> None:
    """Who says that it proves ends with a proof, and who gives a reason raises it."""
    assume(has_groups(instance))
    instance = replace(instance, goals=instance.goals[:1])
    support = entry.accepts(instance)
    assert support == entry.accepts(instance) and support.takes is not bool(support.reason)
    if not support.takes:
        with pytest.raises(ValueError, match=r".") as raised:
            entry.load()(instance, Limits(workers=1))
        assert str(raised.value) == support.reason
        return
    found = checked(instance, entry.load()(instance, Limits(workers=1)))
    # Where even fewer rules leave no plan, there is nothing that it would have had to see.
    assert found.blind_to == (() if found.plan is None and found.proof is not Proof.FEASIBLE else support.unseen)
    if support.proves:
        assert found.proof in (Proof.OPTIMAL, Proof.INFEASIBLE)


def test_no_shipped_scenario_names_a_solver() -> None:
    paths = scenario_files(SHIPPED)
    assert len(paths) >= 10
    assert {load_scenario(path).solver.name for path in paths} == {"auto"}
