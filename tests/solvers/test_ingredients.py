"""Independence is derived from what methods read; here their calls are traced, and the table is held to them."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import pkgutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
import yaml

from pipecut import solvers
from pipecut.formulation.certificates.check import verify
from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.instance import Instance, with_servers
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.certifying import certify
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.crosscheck import ROUTES, Claim, Verdict, claims_of, double_check
from pipecut.solvers.ingredients import METHODS, Ingredient, ground_of, shared
from tests.enumerator import every_plan, truth
from tests.examples import PLAIN, chain, instance_of, matrix, mesh

ONE = Limits(workers=1)
TESTS = Path(__file__).parents[1]
PLUMBING = (
    "pipecut.solvers.catalogue",
    "pipecut.solvers.crosscheck",
    "pipecut.solvers.goals",
    "pipecut.solvers.ingredients",
    "pipecut.solvers.search.support",
    "pipecut.solvers.search.incumbent",
    "pipecut.solvers.search.stoppable",
    "pipecut.solvers.cpsat.accepts",
    "pipecut.formulation.limits",
)
"""Modules of solvers that carry questions and answers about and decide nothing."""
VOCABULARY = tuple(
    f"pipecut.formulation.{name}"
    for name in (
        *("costs.amounts", "costs.goals", "costs.once", "limits", "outcome"),
        *(f"problem.{name}" for name in ("cluster", "constraints", "cuts", "demands", "groups", "instance")),
        *(f"problem.{name}" for name in ("layers", "modes", "options", "plan", "precision", "units")),
    )
)
"""Modules of the formulation that say what a problem is, and its rules; all read them, through the evaluator."""
_WRITTEN = yaml.safe_load(Path(__file__).with_name("ingredients.yaml").read_text(encoding="utf-8"))
CODE = {one: tuple(f"pipecut.{code}" for code in _WRITTEN[one.name]) for one in Ingredient}
"""The modules and functions that each is made of."""
MADE = ("<module>", "__create_fn__")
"""What Python makes of a module and of a dataclass."""
ROUTE_ONLY = ("certificate",)

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
OPEN = replace(
    with_memory(instance_of(LAYERS, mesh(1, 1, 1), PLAIN), Placement.LINE, 500),
    training=replace(BASE.training, schedule=Schedule.ONE_F_ONE_B, global_batch=4, micro_batches=4),
    goals=(Goal.STEP_TIME,),
)
"""What bounds of stages leave open, so that ways to run them are weighed."""
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
BLOCKS = tuple(
    replace(
        with_memory(BASE, Placement.LINE, size),
        constraints=Constraints(memory=True, recompute=Recompute.BLOCKS),
        goals=(Goal.ITERATION_TIME,),
    )
    for size in (420, 460, 500, 560, 640)
)
"""Where memory is short, and single blocks may be computed again."""
STEPS = tuple(replace(instance, goals=(Goal.ITERATION_TIME,)) for instance in (*CASES[:3], NO_FLUSH))


def traced(work: Callable[[], object]) -> set[tuple[str, str]]:
    """Return the functions of this house that are called, as (module, name in the module)."""
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith(("pipecut.solvers.", "pipecut.formulation.")):
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
    assert not strange, f"say in tests/solvers/ingredients.yaml what these are: {sorted(strange)}"
    return found


def belongs(called: tuple[str, str], ingredient: Ingredient) -> bool:
    module, name = called
    return any(
        code == module
        or (code.endswith(".") and module.startswith(code))
        or (code.startswith(f"{module}:") and name.startswith(code.split(":")[1]))
        for code in CODE[ingredient]
    )


def claimed(instance: Instance, more: int = 0) -> Claim:
    """Return the claim that no plan is better than the best one, or a bit worse."""
    best = truth(instance)
    assert best.plan is not None and best.values is not None
    value = best.values[0] + more
    (claim,) = claims_of(instance, Outcome("claimant", Proof.OPTIMAL, best.plan, value, value))
    return claim


def unpriced(claim: Claim) -> Claim:
    """Return a claim about an instance of which no price is kept: what another has asked for is read again."""
    return replace(claim, instance=replace(claim.instance))


@functools.cache
def reads(name: str) -> frozenset[tuple[str, str]]:
    """Trace a method on every case: a solver as it is asked for a plan, a route as it is asked about a claim."""
    called: set[tuple[str, str]] = set()
    more = {
        **{"cpsat": EXECUTED, "step_dp": (*EXECUTED, *HALVES), "cpsat_chunks": CHUNKED},
        "reduced_dp": (*STEPS, *EXECUTED, *BLOCKS, OPEN),
        "cpsat_types": (*STEPS, *CASES, *EXECUTED, *BLOCKS),
    }.get(name, ())
    for instance in (
        more if name in ("cpsat_chunks", "reduced_dp", "cpsat_types") else (*CASES, *STEPS, *PERIODS, *more)
    ):
        if name in ROUTE_ONLY:
            route = next(route for route in ROUTES if route.name == name)
            for more in (0, 1):  # the truth, and a claim that is to be refuted
                claim = unpriced(claimed(instance, more))
                called |= traced(lambda route=route, claim=claim: route.ask(claim, ONE))
        else:
            solve, fresh = find_any(name).load(), replace(instance)
            called |= traced(lambda solve=solve, fresh=fresh: solve(fresh, ONE))
    return frozenset(called)


def stated() -> set[tuple[str, str]]:
    """Trace the problem statement: instances are made, and plans of them judged."""
    called: set[tuple[str, str]] = set()
    demands = Constraints(
        memory=True, no_cut=("b",), devices_per_stage=(1, 2), forms=(FormLimit("a", (0,)),), apart=(("a", "c"),)
    )
    for instance in (*CASES, *STEPS, *PERIODS, *EXECUTED, *HALVES, *CHUNKED[:2]):
        called |= traced(lambda instance=instance: replace(instance, constraints=demands))
        called |= traced(lambda instance=instance: with_servers(instance, instance.servers))
        fresh = replace(instance)
        for plan in itertools.islice(every_plan(instance), 40):
            called |= traced(lambda fresh=fresh, plan=plan: evaluate(fresh, plan).feasible)
    return called


ATTACKED = {
    "pipecut.formulation.costs.bulk.": "formulation/costs/test_tables.py:test_cells",
    "pipecut.formulation.costs.bulk.divided:fill_pairs": "formulation/costs/test_tables.py:test_pairs_of_forms",
    "pipecut.formulation.costs.bulk.crossing": (
        "formulation/costs/test_tables.py:test_what_crosses_every_cut_is_counted_in_one_pass"
    ),
    "pipecut.formulation.costs.tables": "formulation/costs/test_tables.py:test_kinds_and_links_of_groups",
    "pipecut.formulation.costs.memory_tables": (
        "solvers/cpsat/test_cpsat_memory.py:test_memory_tables_are_the_specification_cell_by_cell"
    ),
    "pipecut.formulation.costs.bounds": "formulation/costs/test_lower_bound.py:test_no_plan_undercuts_it",
    "pipecut.formulation.problem.instance:longest_run_ns": (
        "formulation/problem/test_magnitude.py:test_no_plan_and_no_table_exceeds_what_is_counted_with"
    ),
    "pipecut.formulation.costs.megatron_forms": (
        "formulation/costs/test_megatron_forms.py:test_the_forms_of_a_transformer_block_are_those_of_megatron"
    ),
    "pipecut.formulation.costs.passes": (
        "solvers/cpsat/test_executed.py:test_it_finds_what_pricing_every_plan_finds"
    ),
    "pipecut.formulation.predictor.layer_times": (
        "formulation/costs/test_predictor.py:test_no_share_takes_less_than_its_part_nor_more_than_all"
    ),
    "pipecut.formulation.problem.cuts": (
        "formulation/problem/test_cuts.py:test_what_is_closed_or_kept_together_is_no_place"
    ),
    "pipecut.formulation.problem.groups": (
        "solvers/test_common_ground.py:test_the_possible_groups_are_those_of_the_plans_that_keep_the_rules"
    ),
    "pipecut.formulation.problem.groups:GroupKind.": (
        "solvers/test_common_ground.py:test_groups_that_are_told_apart_no_more_are_of_one_kind"
    ),
    "pipecut.formulation.problem.modes": (
        "formulation/problem/test_modes.py:test_the_modes_of_an_instance_are_those_that_its_rule_accepts"
    ),
    "pipecut.formulation.problem.shares": (
        "solvers/test_common_ground.py:"
        "test_servers_are_alike_exactly_if_every_plan_costs_the_same_when_they_change_places"
    ),
    "pipecut.formulation.schedules.keeps": (
        "solvers/cpsat/test_cpsat_memory.py:test_tables_know_copies_and_micro_batches_in_flight_of_every_slot"
    ),
    "pipecut.formulation.suffixes": (
        "solvers/test_common_ground.py:test_every_method_finds_what_pricing_every_plan_finds"
    ),
    "pipecut.formulation.suffixes:alike_servers": (
        "solvers/test_common_ground.py:"
        "test_whatever_groups_may_do_a_plan_stays_the_same_when_alike_servers_change_places"
    ),
}
"""What methods that confirm each other have in common beside the problem statement, and the test that attacks it.

By module, or the beginning of names in it; each test has a reading of its own of what it attacks.
"""
WORDS = (
    "pipecut.formulation.limits",
    "pipecut.formulation.costs.amounts",
    "pipecut.formulation.outcome",
    "pipecut.formulation.constraints.",
    "pipecut.formulation.problem.constraints",
    "pipecut.formulation.problem.demands",
    "pipecut.formulation.problem.instance",
    "pipecut.formulation.problem.precision",
    "pipecut.formulation.problem.cluster",
    "pipecut.formulation.problem.training",
)
"""What counts time and writes amounts, and what makes an instance of what a user says: read, never searched."""


def of_code(module: str, name: str, code: str) -> bool:
    at, _, begins = code.partition(":")
    return (module == at or (at.endswith(".") and module.startswith(at))) and name.startswith(begins)


@pytest.mark.slow
def test_what_several_methods_rest_on_is_attacked_by_a_test_that_does_not() -> None:
    """Traced, not listed: whatever becomes common ground needs a test, and no test stands for what is gone."""
    own, statement = {name: reads(name) for name in METHODS}, stated()
    pairs = [pair for pair in itertools.combinations(METHODS, 2) if shared(*pair) == ()]
    ground = {one for pair in pairs for one in own[pair[0]] & own[pair[1]] - statement}
    attacked = {one for one in ground if any(of_code(*one, code) for code in ATTACKED)}
    ground = attacked | {one for one in ground if not any(of_code(*one, code) for code in WORDS)}
    ground = {one for one in ground if one[0].startswith("pipecut.formulation.")}
    alone = {one for one in ground if not any(of_code(*one, code) for code in ATTACKED)}
    assert not alone, f"common ground that no test attacks: {sorted(alone)}"
    assert not [code for code in ATTACKED if not any(of_code(*one, code) for one in ground)]
    for where in ATTACKED.values():
        file, _, name = where.partition(":")
        parsed = ast.parse((TESTS / file).read_text())
        tests = {node.name for node in parsed.body if isinstance(node, ast.FunctionDef)}
        assert name in tests, where


def test_every_name_in_the_table_is_there() -> None:
    for code in (code for codes in CODE.values() for code in codes):
        module, _, name = code.partition(":")
        found: object = importlib.import_module(module.rstrip("."))
        for part in name.split(".") if name else ():
            found = getattr(found, part)


def test_routes_say_which_common_ground_they_read() -> None:
    both = ground_of("cpsat", "state_dp")
    assert {Ingredient.ALIKE, Ingredient.GROUPS, Ingredient.COST_TABLES} <= set(both)
    assert ground_of("cpsat", "brute_force") == () == ground_of("claimant", "cpsat")
    checks = {check.route.name: check for check in double_check(BASE, layered.solve(BASE, ONE), ONE)}
    assert checks["state_dp"].confirms and Ingredient.ALIKE in checks["state_dp"].ground
    assert checks["brute_force"].ground == ()


@pytest.mark.slow
@pytest.mark.few("line_dp", "state_dp", "cpsat_types")
@pytest.mark.parametrize("name", METHODS)
def test_a_method_reads_what_the_table_says(name: str) -> None:
    for module in pkgutil.walk_packages(solvers.__path__, "pipecut.solvers."):
        importlib.import_module(module.name)
    called = set(reads(name))
    assert ingredients(called) == METHODS[name].rests_on | METHODS[name].proposed_by


def test_what_a_certificate_proves_rests_on_the_checker_alone() -> None:
    called: set[tuple[str, str]] = set()
    for instance in CASES:
        best = truth(instance)
        assert best.plan is not None and best.values is not None
        certificate = certify(instance, best.plan, best.values[0])
        called |= traced(lambda instance=instance, certificate=certificate: verify(instance, certificate))
    assert ingredients(called) == METHODS["certificate"].rests_on
    assert not any(module.startswith("pipecut.solvers.") for module, _ in called)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "patched"),
    [
        ("cpsat", "pipecut.solvers.cpsat.cpsat.first_plan"),
        ("cpsat_types", "pipecut.solvers.cpsat.on_types.cpsat_types.proposed"),
        ("state_dp", "pipecut.solvers.dynamic.states.state_dp.first_plan"),
        ("step_dp", "pipecut.solvers.step_time.step_dp.first_plan"),
    ],
)
def test_what_only_proposes_can_be_left_out(name: str, patched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first plan changes no answer: without it the same value is proved."""
    solve = find_any(name).load()
    monkeypatch.setattr(patched, lambda *_: None)
    given = {"step_dp": (*CASES, *STEPS, *PERIODS, *EXECUTED, *HALVES)}
    for instance in given.get(name, CASES):
        try:
            found = solve(instance, ONE)
        except ValueError:
            continue
        best = truth(instance)
        assert best.values is not None
        assert found.proof is Proof.OPTIMAL and found.objective == best.values[0]


def test_every_route_and_every_exact_solver_is_in_the_table() -> None:
    others = {"cpsat_chunks", "step_dp", "reduced_dp"}
    assert {route.name for route in ROUTES} | others == set(METHODS)


def test_common_ground_is_the_formulation() -> None:
    for ingredient in Ingredient:
        rooms = {code.split(".")[1] for code in CODE[ingredient]}
        assert rooms == ({"formulation"} if ingredient.ground or ingredient is Ingredient.CHECKER else {"solvers"})


def test_who_is_independent_of_whom() -> None:
    """Written out, so that a change of the table shows here."""
    pairs = {frozenset(pair) for pair in itertools.combinations(METHODS, 2) if shared(*pair) == ()}
    of = {name: {other for pair in pairs if name in pair for other in pair - {name}} for name in METHODS}
    programmes = {"line_dp", "state_dp", "step_dp", "reduced_dp"}
    assert of["cpsat"] == programmes | {"brute_force", "certificate"}
    # The search over chunks takes no instance that a programme takes, so its independence says nothing.
    for name in ("state_dp", "step_dp"):
        assert of[name] == {"cpsat", "brute_force", "certificate", "cpsat_chunks"}
    # The model on types reads the tables of the reduction, in another engine; executed steps are closed as there.
    both = {Ingredient.ATOMS, Ingredient.REDUCED, Ingredient.SUFFIXES, Ingredient.BOXES}
    assert set(shared("reduced_dp", "cpsat_types") or ()) == both
    assert of["cpsat_types"] == {"line_dp", "brute_force", "certificate"}
    assert of["reduced_dp"] == {"cpsat", "line_dp", "brute_force", "certificate", "cpsat_chunks"}
    others = {"cpsat_types", "reduced_dp", "brute_force", "certificate", "cpsat_chunks"}
    assert of["line_dp"] == {"cpsat", *others}
    assert of["brute_force"] == set(METHODS) - {"brute_force"}
    assert of["certificate"] == set(METHODS) - {"certificate"}


def test_what_a_claim_does_not_rest_on_is_not_shared() -> None:
    """Where chains of atoms refused nothing, the programme over states and the reduction share no ground."""
    assert shared("state_dp", "reduced_dp") == (Ingredient.ATOMS,)
    assert shared("state_dp", "reduced_dp", ("ATOMS",)) == ()
    roomy, tight = (find_any("state_dp").load()(instance, ONE) for instance in (BASE, CASES[1]))
    assert roomy.unused == ("ATOMS",) and (tight.unused == ()) == ("stages fit in no way" in tight.notes[0])


def test_of_an_unknown_claimant_nobody_is_independent() -> None:
    assert shared("claimant", "brute_force") is None
    best = truth(BASE)
    assert best.values is not None
    outcome = Outcome("claimant", Proof.OPTIMAL, best.plan, best.values[0], best.values[0])
    checks = list(double_check(BASE, outcome, ONE))
    assert any(check.answer.verdict is Verdict.AGREED for check in checks)
    assert not any(check.confirms for check in checks)


def test_what_shares_a_search_does_not_confirm() -> None:
    """The search over suffixes reads the stage tables of the programme over states; the model reads none."""
    claim = find_any("step_dp").load()(BASE, ONE)
    checks = {check.route.name: check for check in double_check(BASE, claim, ONE)}
    common = checks["state_dp"].shared
    assert checks["state_dp"].answer.verdict is Verdict.AGREED and not checks["state_dp"].confirms
    assert common is not None and Ingredient.STAGE_TIMES in common
    assert checks["cpsat"].confirms
