"""Independence is derived from what methods read; here their calls are traced, and the table is held to them."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import pytest

import solvers
from formulation.certificates.check import verify
from formulation.outcome import Limits, Outcome, Proof
from formulation.problem.demands import with_servers
from formulation.problem.instance import Instance
from formulation.problem.options import Constraints, Goal, Placement, Schedule, Training
from formulation.problem.units import Link
from solvers.catalogue import find_solver
from solvers.certifying.certify import certify
from solvers.cpsat import solver as layered
from solvers.crosscheck.claim import Claim, Verdict, claims_of
from solvers.crosscheck.routes import ROUTES, double_check
from solvers.ingredients import METHODS, Ingredient, independent, shared
from tests.enumerator import truth
from tests.examples import PLAIN, chain, instance_of, matrix, mesh

ONE = Limits(workers=1)
PLUMBING = (
    *(
        "solvers.catalogue",
        "solvers.crosscheck.",
        "solvers.goals",
        "solvers.ingredients",
        "solvers.resting",
        "solvers.search.support",
        "solvers.search.incumbent",
        "solvers.search.threshold",
    ),
    "solvers.cpsat.support",
    *(
        "solvers.search.background",
        "solvers.search.stoppable",
        "solvers.search.distinct",
        "formulation.limits.size",
    ),
)
"""Modules of solvers that carry questions and answers about and decide nothing."""
VOCABULARY = tuple(
    f"formulation.{name}"
    for name in (
        *("costs.amounts", "costs.goals", "limits.deadline", "outcome", "problem.model.across"),
        *(f"problem.{name}" for name in ("cluster", "constraints", "cuts", "demands", "groups", "instance")),
        *(
            f"problem.{name}"
            for name in (
                "layers",
                "magnitude",
                "model.across",
                "model.ties",
                "modes",
                "options",
                "plan",
                "precision",
                "units",
            )
        ),
    )
)
"""Modules of the formulation that say what a problem is, and its rules; all read them, through the evaluator."""
MADE = ("<module>", "__create_fn__")
"""What Python makes of a module and of a dataclass."""
ROUTE_ONLY = ("case_split", "presolve", "highs", "certificate")

LAYERS = chain(
    [matrix(name, 50, weights, taken=90, made=90) for name, weights in zip("abc", (90, 10, 40), strict=True)],
    [40, 70],
)
BASE = instance_of(LAYERS, mesh(2, 1), PLAIN)
TRADED = chain(
    [
        matrix("a", 50, 90, taken=5, made=20),
        matrix("b", 90, 90, taken=20, made=20),
        matrix("c", 50, 90, taken=90, made=5),
    ],
    [37, 13],
)
"""The forms with which stages pass fastest are not those with which they synchronise fastest."""
LAYERS_OF_CHUNKS = chain(
    [
        matrix(name, 50, macs, taken=90, made=90)
        for name, macs in zip("abcdef", (90, 10, 40, 7, 31, 55), strict=True)
    ],
    [40, 70, 3, 9, 20],
)


def with_memory(instance: Instance, placement: Placement, memory_bytes: int = 700) -> Instance:
    """Memory that a stage of all layers does not fit into."""
    constraints = Constraints(memory=True, placement=placement, tensor_parallel_degrees=(1, 2))
    servers = [
        replace(server, device_class=replace(server.device_class, memory_bytes=memory_bytes))
        for server in instance.servers
    ]
    return with_servers(replace(instance, constraints=constraints), servers)


CASES = (
    BASE,
    with_memory(BASE, Placement.LINE),
    with_memory(BASE, Placement.FREE),
    replace(BASE, constraints=Constraints(no_cut=("b",), placement=Placement.FREE)),
    instance_of(LAYERS, mesh(1, 1), PLAIN),
)
NO_FLUSH = replace(CASES[4], training=replace(BASE.training, schedule=Schedule.ASYNC_ONE_F_ONE_B))
PERIODS = tuple(
    replace(one, training=NO_FLUSH.training, goals=(Goal.PERIOD,))
    for one in (
        *CASES[2:],
        replace(BASE, constraints=Constraints(tensor_parallel_degrees=(1,), memory=True)),
        instance_of(TRADED, mesh(2, 1), PLAIN),
    )
)
PERIODS += (replace(PERIODS[0], training=replace(NO_FLUSH.training, global_batch=2, micro_batches=2)),)
EXECUTED = tuple(
    replace(one, training=replace(one.training, schedule=Schedule.ONE_F_ONE_B), goals=(Goal.STEP_TIME,))
    for one in CASES
)
HALVES = tuple(
    replace(
        one,
        training=replace(one.training, schedule=Schedule.ZERO_BUBBLE_H1),
        constraints=replace(one.constraints, stages_at_least=2, stages_at_most=2),
    )
    for one in EXECUTED
)
_CHUNKED = replace(
    instance_of(LAYERS_OF_CHUNKS, mesh(1, 1), PLAIN, Training(2, 2, chunks=2)),
    constraints=Constraints(memory=True, tensor_parallel_degrees=(1,), placement=Placement.FREE),
)
CHUNKED = tuple(
    replace(_CHUNKED, goals=(goal,), constraints=replace(_CHUNKED.constraints, placement=placement))
    for goal in (Goal.BOTTLENECK, Goal.STEP_TIME)
    for placement in Placement
)
_SEVERAL_LINKS = instance_of(LAYERS_OF_CHUNKS, mesh(2, 1, between=Link(10**9)), PLAIN, Training(2, 2, chunks=2))
CHUNKED += tuple(
    replace(_SEVERAL_LINKS, goals=(goal,), constraints=replace(CHUNKED[0].constraints, placement=Placement.FREE))
    for goal in (Goal.BOTTLENECK, Goal.STEP_TIME)
)
"""Groups that may be joined by several links are a question to CP-SAT."""
STEPS = tuple(replace(instance, goals=(Goal.ITERATION_TIME,)) for instance in (*CASES[:3], NO_FLUSH))


def traced(work: Callable[[], object]) -> set[tuple[str, str]]:
    """Return the functions of this house that are called, as (module, name in the module)."""
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith(("solvers.", "formulation.")):
            called.add((module, frame.f_code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    except ValueError:  # the method cannot take the instance
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return {(module, name) for module, name in called if not name.startswith(MADE)}


def ingredients(called: set[tuple[str, str]]) -> set[Ingredient]:
    """Return the ingredients that these functions belong to."""
    found = {ingredient for ingredient in Ingredient for one in called if belongs(one, ingredient)}
    strange = {
        module
        for module, name in called
        if not module.startswith(PLUMBING)
        and module not in VOCABULARY
        and not any(belongs((module, name), ingredient) for ingredient in Ingredient)
    }
    assert not strange, f"say in solvers/ingredients.py what these are: {sorted(strange)}"
    return found


def belongs(called: tuple[str, str], ingredient: Ingredient) -> bool:
    module, name = called
    return any(
        code == module
        or (code.endswith(".") and module.startswith(code))
        or (code.startswith(f"{module}:") and name.startswith(code.split(":")[1]))
        for code in ingredient.code
    )


def claimed(instance: Instance, more: int = 0) -> Claim:
    """Return the claim that no plan is better than the best one, or a bit worse."""
    best = truth(instance)
    assert best.plan is not None and best.values is not None
    value = best.values[0] + more
    (claim,) = claims_of(instance, Outcome("claimant", Proof.OPTIMAL, best.plan, value, value))
    return claim


def reads(name: str) -> set[tuple[str, str]]:
    """Trace a method on every case: a solver as it is asked for a plan, a route as it is asked about a claim."""
    called: set[tuple[str, str]] = set()
    more = {"cpsat": EXECUTED, "step_dp": EXECUTED, "halves_dp": HALVES, "cpsat_chunks": CHUNKED}.get(name, ())
    for instance in more if name == "cpsat_chunks" else (*CASES, *STEPS, *PERIODS, *more):
        if name in ROUTE_ONLY:
            route = next(route for route in ROUTES if route.name == name)
            for more in (0, 1):  # the truth, and a claim that is to be refuted
                claim = claimed(instance, more)
                called |= traced(lambda route=route, claim=claim: route.ask(claim, ONE))
        else:
            solve = find_solver(name).load()
            called |= traced(lambda solve=solve, instance=instance: solve(instance, ONE))
    return called


@pytest.mark.parametrize("name", METHODS)
def test_a_method_reads_what_the_table_says(name: str) -> None:
    for module in pkgutil.walk_packages(solvers.__path__, "solvers."):
        importlib.import_module(module.name)
    called = reads(name)
    if name == "paced_dp":  # and where no plan fits
        hopeless = replace(with_memory(BASE, Placement.LINE, 300), goals=(Goal.ITERATION_TIME,))
        called |= traced(lambda: find_solver(name).load()(hopeless, ONE))
    assert ingredients(called) == METHODS[name].rests_on | METHODS[name].proposed_by


def test_what_a_certificate_proves_rests_on_the_checker_alone() -> None:
    called: set[tuple[str, str]] = set()
    for instance in CASES:
        best = truth(instance)
        assert best.plan is not None and best.values is not None
        certificate = certify(instance, best.plan, best.values[0])
        called |= traced(lambda instance=instance, certificate=certificate: verify(instance, certificate))
    assert ingredients(called) == METHODS["certificate"].rests_on
    assert not any(module.startswith("solvers.") for module, _ in called)


@pytest.mark.parametrize(
    ("name", "patched"),
    [
        ("cpsat", "solvers.cpsat.solver.first_plan"),
        ("cpsat_atoms", "solvers.cpsat.on_atoms.solver.first_plan"),
        ("state_dp", "solvers.dynamic.states.solver.first_plan"),
        ("paced_dp", "solvers.dynamic.step_time.solver.first_plan"),
        ("period_dp", "solvers.dynamic.period.solver.first_plan"),
        ("step_dp", "solvers.executed.solver.first_plan"),
        ("halves_dp", "solvers.halves.solver.first_plan"),
    ],
)
def test_what_only_proposes_can_be_left_out(name: str, patched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first plan changes no answer: without it the same value is proved."""
    solve = find_solver(name).load()
    monkeypatch.setattr(patched, lambda *_: None)
    given = {"paced_dp": STEPS, "period_dp": PERIODS, "step_dp": EXECUTED, "halves_dp": HALVES}
    for instance in given.get(name, CASES):
        try:
            found = solve(instance, ONE)
        except ValueError:
            continue
        best = truth(instance)
        assert best.values is not None
        assert found.proof is Proof.OPTIMAL and found.objective == best.values[0]


def test_every_route_and_every_exact_solver_is_in_the_table() -> None:
    others = {"cpsat", "cpsat_atoms", "cpsat_chunks", "paced_dp", "period_dp", "step_dp", "halves_dp"}
    assert {route.name for route in ROUTES} | others == set(METHODS)


def test_common_ground_is_the_formulation() -> None:
    for ingredient in Ingredient:
        rooms = {code.split(".")[0] for code in ingredient.code}
        assert rooms == ({"formulation"} if ingredient.ground or ingredient is Ingredient.CHECKER else {"solvers"})


def test_who_is_independent_of_whom() -> None:
    """Written out, so that a change of the table shows here."""
    pairs = {frozenset(pair) for pair in itertools.combinations(METHODS, 2) if independent(*pair)}
    of = {name: {other for pair in pairs if name in pair for other in pair - {name}} for name in METHODS}
    programmes = {"line_dp", "state_dp", "paced_dp", "period_dp", "step_dp", "halves_dp"}
    on_model = {"cpsat", "case_split", "presolve", "highs"}
    assert of["cpsat"] == programmes | {"brute_force", "certificate"}
    # The search over chunks takes no instance that a programme takes, so its independence says nothing.
    for name in ("state_dp", "paced_dp", "step_dp", "halves_dp"):
        assert of[name] == on_model | {"brute_force", "certificate", "cpsat_chunks"}
    for name in ("line_dp", "period_dp"):
        assert of[name] == on_model | {"cpsat_atoms", "brute_force", "certificate", "cpsat_chunks"}
    assert of["cpsat_atoms"] == {"line_dp", "period_dp", "brute_force", "certificate"}
    assert of["brute_force"] == set(METHODS) - {"brute_force"}
    assert of["certificate"] == set(METHODS) - {"certificate"}


def test_what_a_claim_does_not_rest_on_is_not_shared() -> None:
    """Where chains of atoms refused nothing, the programme over states and the model on atoms share no ground."""
    assert shared("state_dp", "cpsat_atoms") == (Ingredient.ATOMS,)
    assert independent("state_dp", "cpsat_atoms", ("ATOMS",))
    roomy, tight = (find_solver("state_dp").load()(instance, ONE) for instance in (BASE, CASES[1]))
    assert roomy.unused == ("ATOMS",) and (tight.unused == ()) == ("stages fit in no way" in tight.notes[0])


def test_of_an_unknown_claimant_nobody_is_independent() -> None:
    assert shared("claimant", "brute_force") is None and not independent("claimant", "brute_force")
    best = truth(BASE)
    assert best.values is not None
    outcome = Outcome("claimant", Proof.OPTIMAL, best.plan, best.values[0], best.values[0])
    checks = list(double_check(BASE, outcome, ONE))
    assert any(check.answer.verdict is Verdict.AGREED for check in checks)
    assert not any(check.confirms for check in checks)


def test_what_shares_a_search_does_not_confirm() -> None:
    """The routes that ask the model again rest on it; a programme does not."""
    checks = {check.route.name: check for check in double_check(BASE, layered.solve(BASE, ONE), ONE)}
    common = checks["highs"].shared
    assert checks["highs"].answer.verdict is Verdict.AGREED and not checks["highs"].confirms
    assert common is not None and Ingredient.MODEL in common
    assert checks["state_dp"].confirms
