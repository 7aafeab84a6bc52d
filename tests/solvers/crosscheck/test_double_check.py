"""Lies told on purpose: which route notices which, and that nobody disagrees with the truth."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from formulation.costs.tables import Tables, build_tables
from formulation.evaluate import evaluate
from formulation.outcome import FalseClaimError, Limits, Outcome, Proof, checked
from formulation.problem.cluster import DeviceClass, Server, cluster_graph
from formulation.problem.groups import Group
from formulation.problem.instance import Instance, build_instance
from formulation.problem.layers import Layer, Split, layer_graph
from formulation.problem.options import Constraints, CostModel, Goal, Schedule, Training
from formulation.problem.units import Link
from solvers import exhaustive as brute_force
from solvers.cpsat import solver as layered
from solvers.cpsat.base.families import Family, Posted
from solvers.cpsat.base.variables import Variables
from solvers.cpsat.model import FAMILIES, build_model
from solvers.cpsat.valid import redundant_families
from solvers.crosscheck import case_split, highs, milp, presolve
from solvers.crosscheck.claim import Verdict, claims_of
from solvers.crosscheck.routes import ROUTES, Route, double_check
from solvers.dynamic.line import solver as line_dp
from solvers.goals import solve_in_order
from solvers.search.background import in_background
from tests import generators

LIMITS = Limits(time_limit_s=120)
SLACK = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def instance_with(
    memory_bytes: int = 10**9,
    *,
    limited: bool = False,
    slow_flops: int = 1_000_000_000,
    between_bits: int = 400_000_000,
    copies: int = 1,
) -> Instance:
    """Six layers on two servers of two devices each, unlike ones: small enough to price every plan."""
    layers = copies * [
        Layer("conv1", "conv2d", Split.MATRIX, 40_000, 90_000, 90_000, 40_000, 900_000),
        Layer("relu1", "relu", Split.FOLLOW, 0, 90_000, 90_000, 80_000, 0),
        Layer("conv2", "conv2d", Split.MATRIX, 60_000, 90_000, 50_000, 80_000, 1_700_000),
        Layer("relu2", "relu", Split.FOLLOW, 0, 50_000, 50_000, 50_000, 0),
        Layer("fc1", "linear", Split.MATRIX, 300_000, 50_000, 9_000, 50_000, 700_000),
        Layer("fc2", "linear", Split.MATRIX, 200_000, 9_000, 1_000, 9_000, 500_000),
    ]
    layers = [replace(layer, name=f"{layer.name}.{at}") for at, layer in enumerate(layers)]
    edges = [(one.name, other.name, one.output_bytes) for one, other in itertools.pairwise(layers)]
    inside, between = Link(1_000_000_000, 1_000), Link(between_bits, 5_000)
    servers = [
        Server("old", DeviceClass("slow", memory_bytes, slow_flops), 2, inside),
        Server("new", DeviceClass("fast", memory_bytes, 1_900_000_000), 2, inside),
    ]
    return build_instance(
        layer_graph("six", layers, edges),
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
    patch.setattr("solvers.cpsat.search.run", lambda *_: cp_model.INFEASIBLE)
    return PLAIN, layered.solve(PLAIN, LIMITS)


def strict(patch: pytest.MonkeyPatch) -> tuple[Instance, Outcome]:
    """A redundant family that is none: it forbids cuts that plans may have."""

    def with_strict(tables: Tables) -> tuple[Family, ...]:
        return (*redundant_families(tables), Family(199, "strict", no_cuts))

    for module in ("cpsat.solver", "crosscheck.presolve", "crosscheck.case_split", "crosscheck.highs"):
        patch.setattr(f"solvers.{module}.redundant_families", with_strict)
    return PLAIN, layered.solve(PLAIN, LIMITS)


def wrong(patch: pytest.MonkeyPatch) -> tuple[Instance, Outcome]:
    """A defining family that asks too much: all that stands on the model believes it."""
    families = (*FAMILIES, Family(99, "wrong", no_cuts))
    for module in ("presolve", "case_split", "highs", "question"):
        patch.setattr(f"solvers.crosscheck.{module}.FAMILIES", families)
    return PLAIN, layered.solve(PLAIN, LIMITS, families)


def no_cuts(v: Variables) -> Posted:
    """Forbid every cut; the best plan has one."""
    for layer in range(1, v.layers):
        yield (layer,), v.model.add(v.cut[layer] == 0)


A, D, I, N = Verdict.AGREED, Verdict.DISAGREED, Verdict.INCONCLUSIVE, Verdict.NOT_APPLICABLE  # noqa: E741

TABLE: dict[Callable[[pytest.MonkeyPatch], tuple[Instance, Outcome]], tuple[object, ...]] = {
    # lie     caught   line_dp  state_dp  brute_force  case_split  presolve  highs  certificate
    raised: (True, D, D, D, D, D, D, D),
    worse: (False, D, D, D, D, D, D, I),
    better: (True, A, D, D, D, D, I, D),
    excluded: (False, D, D, D, D, D, D, N),
    hasty: (False, D, D, D, D, D, D, I),
    strict: (False, D, D, D, A, D, A, I),
    wrong: (False, D, D, D, A, A, A, I),
}
"""For each lie whether ``checked`` catches it, and what each route says when it is asked all the same."""


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


@pytest.mark.parametrize(
    "instance", [PLAIN, TIGHT, instance_with(60_000, limited=True)], ids=["plain", "tight", "none"]
)
def test_nobody_disagrees_with_the_truth(instance: Instance) -> None:
    outcome = replace(brute_force.solve(instance), solver="claimant")
    answers = verdicts(instance, outcome)
    assert Verdict.DISAGREED not in answers.values() and Verdict.OUT_OF_TIME not in answers.values()
    for route in ("state_dp", "brute_force", "case_split", "presolve", "highs"):
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


@pytest.mark.parametrize("route", ["presolve", "highs"])
def test_a_family_dropped_from_a_route_is_not_held_against_the_claim_in_silence(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = tuple(family for family in FAMILIES if family.name != "stage_time")
    module = {"presolve": presolve, "highs": highs}[route]
    monkeypatch.setattr(module, "FAMILIES", few)
    monkeypatch.setattr(module, "redundant_families", lambda _: ())
    (claim,) = claims_of(PLAIN, truth(PLAIN))
    answer = module.ask(claim, LIMITS)
    expected = Verdict.DISAGREED if route == "presolve" else Verdict.INCONCLUSIVE
    assert answer.verdict is expected and "the evaluator gives" in answer.reason


def test_a_disagreement_brings_the_plan_that_refutes() -> None:
    instance, claim = worse(pytest.MonkeyPatch())
    best = truth(instance).objective
    for check in double_check(instance, claim, LIMITS):
        plan = check.answer.counter_plan
        if check.answer.verdict is Verdict.DISAGREED:
            assert plan is not None and evaluate(instance, plan).feasible
            assert evaluate(instance, plan).objective == best and f"{best:,} ns" in check.answer.reason


def test_a_route_that_says_no_to_everything_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a model without solutions must not pass for a proof."""

    def nothing(v: Variables) -> Posted:
        yield (), v.model.add_bool_or([])

    families = (*FAMILIES, Family(98, "nothing", nothing))
    for module in ("presolve", "case_split", "highs", "question"):
        monkeypatch.setattr(f"solvers.crosscheck.{module}.FAMILIES", families)
    found = verdicts(PLAIN, truth(PLAIN))
    assert (found["case_split"], found["presolve"], found["highs"]) == (D, D, I)


@pytest.mark.slow
def test_every_goal_is_asked_about() -> None:
    instance = replace(PLAIN, goals=(Goal.BOTTLENECK, Goal.DEVICES, Goal.MEMORY))
    outcome = solve_in_order(instance, layered.solve, LIMITS)
    checks = list(double_check(instance, outcome, LIMITS))
    assert len(checks) == 3 * len(ROUTES)
    assert {check.goal for check in checks} == set(instance.goals)
    agreed = {(check.goal, check.route.name) for check in checks if check.answer.verdict is A}
    assert not [check for check in checks if check.answer.verdict is D]
    for goal, route in itertools.product(instance.goals, ("case_split", "presolve", "highs", "brute_force")):
        assert (goal, route) in agreed
    further = tuple(replace(claim, value=claim.value + 1, bound=claim.value + 1) for claim in outcome.further)
    lied = {
        (check.goal, check.route.name)
        for check in double_check(instance, replace(outcome, further=further), LIMITS)
        if check.answer.verdict is D
    }
    assert {(Goal.DEVICES, "presolve"), (Goal.DEVICES, "brute_force"), (Goal.DEVICES, "highs")} <= lied


@pytest.mark.parametrize(
    ("goal", "schedule"),
    [(Goal.STEP_TIME, Schedule.ONE_F_ONE_B), (Goal.PERIOD, Schedule.ASYNC_ONE_F_ONE_B)],
)
def test_the_model_knows_executed_times(goal: Goal, schedule: Schedule) -> None:
    instance = replace(PLAIN, goals=(goal,), training=replace(PLAIN.training, micro_batches=2, schedule=schedule))
    best = truth(instance)
    found = verdicts(instance, best)
    assert {found[name] for name in ("brute_force", "case_split", "presolve", "highs", "certificate")} == {A}
    assert best.objective is not None
    lied = replace(best, objective=best.objective + 1, bound=best.objective + 1)
    assert {verdicts(instance, lied)[name] for name in ("brute_force", "case_split", "presolve", "highs")} == {D}
    none = verdicts(instance, Outcome("claimant", Proof.INFEASIBLE))
    assert {none[name] for name in ("case_split", "presolve", "highs", "brute_force")} == {D}


def test_nothing_is_asked_where_nothing_is_proved() -> None:
    assert not verdicts(PLAIN, replace(truth(PLAIN), proof=Proof.FEASIBLE, bound=1))
    assert not verdicts(PLAIN, Outcome("claimant", Proof.UNKNOWN))


def test_a_method_does_not_confirm_itself() -> None:
    assert verdicts(PLAIN, replace(truth(PLAIN), solver="line_dp"))["line_dp"] is Verdict.NOT_APPLICABLE


def test_routes_without_time_say_so() -> None:
    stopped = replace(LIMITS, stopped=lambda: True)
    answers = {check.answer.verdict for check in double_check(PLAIN, truth(PLAIN), stopped)}
    assert answers == {Verdict.OUT_OF_TIME}
    long = instance_with(copies=20)
    claimed = replace(line_dp.solve(long), solver="claimant")
    for polls in (1, 3, 100):
        for route in (case_split.ask, presolve.ask, highs.ask):
            left = iter(range(polls))
            stopped = replace(LIMITS, stopped=lambda left=left: next(left, None) is None)
            (check,) = double_check(long, claimed, stopped, [Route("one", "one", route)])
            assert check.answer.verdict is Verdict.OUT_OF_TIME, polls


def test_work_that_cannot_be_stopped_is_left_behind() -> None:
    asked = iter([False, True])
    release = threading.Event()
    assert in_background(lambda: release.wait(10), lambda: next(asked)) is None
    release.set()
    assert in_background(lambda: 7, lambda: False) == 7
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0, lambda: False)


# The translation to a MILP.


@st.composite
def models(draw: st.DrawFn) -> tuple[cp_model.CpModel, int]:
    """Draw a model of Booleans and one wide variable, with every constraint that is translated."""
    model = cp_model.CpModel()
    number = draw(st.integers(2, 5))
    literals = [model.new_bool_var(f"b{at}") for at in range(number)]
    either = [*literals, *(~one for one in literals)]
    some = st.lists(st.sampled_from(range(2 * number)), min_size=1, max_size=3, unique=True)
    for _ in range(draw(st.integers(1, 6))):
        chosen = [either[at] for at in draw(some)]
        kind = draw(st.sampled_from(["or", "and", "most", "exactly", "linear"]))
        if kind == "most":
            model.add_at_most_one(chosen)
        elif kind == "exactly":
            model.add_exactly_one(chosen)
        else:
            weights = draw(st.lists(st.integers(-5, 5), min_size=len(chosen), max_size=len(chosen)))
            low = draw(st.integers(-6, 6))
            constraint = {
                "or": lambda chosen=chosen: model.add_bool_or(chosen),
                "and": lambda chosen=chosen: model.add_bool_and(chosen),
                "linear": lambda chosen=chosen, weights=weights, low=low: model.add_linear_constraint(
                    sum(weight * one for weight, one in zip(weights, chosen, strict=True)), low, low + 3
                ),
            }[kind]()
            if draw(st.booleans()):
                constraint.only_enforce_if([either[at] for at in draw(some)])
    return model, number


@given(models())
@settings(max_examples=200, deadline=None)
def test_rows_and_constraints_have_the_same_solutions(drawn: tuple[cp_model.CpModel, int]) -> None:
    model, number = drawn
    rows = milp.translate(model).rows
    for values in itertools.product((0, 1), repeat=number):
        held = all(
            (row.lower is None or row.lower <= total) and (row.upper is None or total <= row.upper)
            for row in rows
            for total in [sum(factor * values[at] for at, factor in row.terms.items())]
        )
        fixed = model.clone()
        for at, value in enumerate(values):
            fixed.add(fixed.get_bool_var_from_proto_index(at) == value)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        assert held is (solver.solve(fixed) == cp_model.OPTIMAL)


def test_what_is_not_linear_is_refused() -> None:
    model = cp_model.CpModel()
    model.add_all_different([model.new_int_var(0, 5, "x"), model.new_int_var(0, 5, "y")])
    with pytest.raises(milp.UntranslatableError, match="no linear form"):
        milp.translate(model)
    gaps = cp_model.CpModel()
    gaps.new_int_var_from_domain(cp_model.Domain.from_values([1, 5]), "x")
    with pytest.raises(milp.UntranslatableError, match="gaps"):
        milp.translate(gaps)


def test_units_are_powers_of_two_and_bring_numbers_down() -> None:
    assert [milp.unit_of(value) for value in (0, 1, 1024, 1025, 4096)] == [1, 1, 1, 2, 4]
    big = milp.Milp([0], [10**12], [milp.unit_of(10**12)], [])
    lower, upper, terms = big.scaled(milp.Row(None, 10**12, {0: 3 * 10**9}))
    assert lower == -float("inf") and abs(terms[0][1]) <= milp.LARGEST
    assert upper / terms[0][1] * big.unit[0] == pytest.approx(10**12 / (3 * 10**9))


@given(generators.instances())
@SLACK
def test_highs_and_cp_sat_agree_on_random_instances(instance: Instance) -> None:
    outcome = layered.solve(instance, LIMITS)
    (claim,) = claims_of(instance, outcome)
    if claim.threshold is not None and claim.threshold >= 0:
        answer = highs.ask(claim, LIMITS)
        assert answer.verdict is Verdict.AGREED, answer.reason
        below = replace(claim, objective=(claim.objective or 0) + 1)
        assert highs.ask(below, LIMITS).verdict is Verdict.DISAGREED


@given(generators.instances())
@SLACK
def test_no_route_disagrees_on_random_instances(instance: Instance) -> None:
    outcome = layered.solve(instance, LIMITS)
    for check in double_check(instance, outcome, LIMITS):
        assert check.answer.verdict is not Verdict.DISAGREED, check.answer.reason


def test_numbers_given_to_highs_are_moderate_and_it_finds_the_optimum() -> None:
    """Given times in ns it was seen to call possible questions impossible."""
    v = build_model(build_tables(PLAIN, Group.possible(PLAIN)), truth(PLAIN).objective, FAMILIES)
    translated = milp.translate(v.model)
    assert max(translated.upper) > 10**6
    for row in translated.rows:
        assert all(abs(factor) <= milp.LARGEST for _, factor in translated.scaled(row)[2])
    limits = LIMITS.begun()
    result = highs.solve(v.model, limits)
    assert result is not None and not highs.impossible(result)
