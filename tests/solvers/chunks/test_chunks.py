"""Groups that hold several stages: the search against every plan priced, and what it cannot search."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from ortools.sat.python import cp_model

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Synchronisation
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import SOLVERS, find_any
from pipecut.solvers.choices.trainings import decide
from pipecut.solvers.chunks.accepts_chunks import accepts
from pipecut.solvers.chunks.bulk import ManyPlans, improved
from pipecut.solvers.chunks.case import Dealt, case_of, layouts
from pipecut.solvers.chunks.chunk_model import Question
from pipecut.solvers.chunks.counting import counts_of
from pipecut.solvers.chunks.cpsat_chunks import solve
from pipecut.solvers.chunks.runs import KnownRuns, Runs
from pipecut.solvers.cpsat.engine import make_solver
from tests.enumerator import every_plan, truth
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.laws import so_many
from tests.problems import dealt_out

ONE = Limits(workers=1)
FEW = [HealthCheck.filter_too_much]
"""Most small models have too few layers for groups of several stages."""


@pytest.mark.slow
@settings(max_examples=so_many(40), deadline=None, suppress_health_check=FEW)
@given(dealt_out(most_plans=200))
def test_the_best_plan_is_that_of_all_plans(instance: Instance):
    assert accepts(instance).proves
    expected, found = truth(instance), checked(instance, solve(instance, ONE))
    if expected.values is None:
        assert found.proof is Proof.INFEASIBLE
    else:
        assert (found.proof, found.objective) == (Proof.OPTIMAL, expected.values[0])


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("sizes", [(4,), (1, 4)])
def test_a_size_of_more_devices_than_there_are_is_no_size(sizes: tuple[int, ...], placement: Placement):
    layers = chain([matrix(f"l{at}", 10, 4) for at in range(4)], [2] * 3)
    constraints = Constraints(tensor_parallel_degrees=(1,), placement=placement, devices_per_stage=sizes)
    instance = instance_of(layers, mesh(1, 2), PLAIN, Training(global_batch=4, micro_batches=2, chunks=2))
    instance = replace(instance, constraints=constraints, goals=(Goal.STEP_TIME,))
    found = checked(instance, solve(instance, ONE))
    assert found.proof is (Proof.OPTIMAL if 1 in sizes else Proof.INFEASIBLE)


@settings(max_examples=so_many(10), deadline=None, suppress_health_check=FEW)
@given(dealt_out(most_plans=200))
def test_the_enumeration_sees_chunks(instance: Instance):
    expected, found = truth(instance), find_any("brute_force").load()(instance, ONE)
    assert found.objective == (None if expected.values is None else expected.values[0])


@settings(max_examples=so_many(10), deadline=None, suppress_health_check=FEW)
@given(dealt_out(most_plans=200))
def test_no_plan_is_below_what_counting_says(instance: Instance):
    priced = [
        (found.objective, one) for one in every_plan(instance) if (found := evaluate(instance, one)).feasible
    ]
    if not priced:
        return
    best = min(value for value, _ in priced if value is not None)
    most = 2 * max(value for value, _ in priced if value is not None) + 1
    found = [case_of(KnownRuns.of(instance), layout, most, NEVER) for layout in layouts(instance, NEVER)]
    assert min(counts_of(case, most, NEVER).bound(most) for case in found) <= best


def alike(blocks: int = 7, goal: Goal = Goal.BOTTLENECK, **asked: Any) -> Instance:
    layers = chain([matrix(f"block{at}", 8, 100) for at in range(blocks)], [5] * (blocks - 1))
    instance = instance_of(layers, mesh(1, 1, between=Link(10**12)), PLAIN, Training(2, 2, chunks=2))
    return replace(instance, goals=(goal,), constraints=Constraints(tensor_parallel_degrees=(1,), **asked))


def test_counting_alone_proves_that_alike_blocks_cannot_be_shared_out_evenly():
    found = solve(alike(7), ONE)
    assert found.proof is Proof.OPTIMAL and found.notes == ("settled without a search",)
    assert found.objective == 4 * evaluate(alike(4), found_plan(alike(4))).stages[0].total_ns


def found_plan(instance: Instance) -> Plan:
    found = solve(instance, ONE).plan
    assert found is not None
    return found


def test_a_move_shifts_an_atom_over_several_stages():
    instance = alike(5)
    (layout,) = layouts(instance, NEVER)
    case = case_of(KnownRuns.of(instance), layout, 10**9, NEVER)
    start = Dealt((0, 2, 3, 4, 5), (0, 0))
    worse = Dealt((0, 1, 2, 3, 5), (0, 0))
    plans = ManyPlans(case, start.choice)
    one, other = plans.values(np.array([start.places, worse.places])).tolist()
    assert one == other == improved(plans, [start.places], NEVER)[1]


def test_every_other_solver_refuses_clearly():
    instance = alike()
    taking = {entry.name for entry in SOLVERS if entry.accepts(instance).takes}
    assert taking == {"cpsat_chunks", "brute_force"}
    for entry in SOLVERS:
        if entry.name not in taking and entry.name != "auto":
            with pytest.raises(ValueError, match=r"training\.chunks is 2"):
                entry.load()(instance, ONE)
    assert "training.chunks is 1" in accepts(replace(instance, training=Training(2, 2))).reason


@pytest.mark.parametrize(
    ("instance", "said"),
    [
        (replace(alike(), cost=replace(PLAIN, boundary_charge=BoundaryCharge.RECEIVER)), "receiver"),
        (alike(goal=Goal.MEMORY), "sees the goals bottleneck and step_time"),
        (replace(alike(), constraints=Constraints()), "may take several on 2 devices"),
        (alike(together=(("block0", "block1"),), stages_per_server=1), "stages_per_server"),
    ],
)
def test_what_runs_do_not_decide_is_said(instance: Instance, said: str):
    assert said in accepts(instance).reason


def test_auto_asks_the_search_and_the_enumeration_checks_it():
    _, found = decide(alike(), plan, ONE, cross_check=True)
    assert (found.solver, found.proof) == ("cpsat_chunks", Proof.OPTIMAL)
    assert any("enumeration of all plans" in said for said in found.checks), found.checks


def test_auto_asks_the_enumeration_for_what_the_search_does_not_see():
    found = plan(alike(5, Goal.MEMORY), ONE)
    assert (found.solver, found.proof) == ("brute_force", Proof.OPTIMAL)


def test_synchronisation_beside_other_work_makes_a_step_shorter():
    wide = replace(alike(6, Goal.STEP_TIME), cluster=alike().cluster)
    charged = solve(wide, ONE).objective
    beside = solve(replace(wide, cost=replace(PLAIN, synchronisation=Synchronisation.OVERLAPPED)), ONE).objective
    assert charged is not None and beside is not None and beside <= charged
    assert Fraction(beside) > 0


def test_a_run_that_is_too_long_on_one_kind_of_groups_still_counts_its_memory_on_another():
    """Pairs inside a server sum gradients fast, pairs across servers slowly: some of their runs are left out."""
    layers = chain([matrix(f"layer{at}", 8 + at, 1_000, taken=40, made=40) for at in range(6)], [5] * 5)
    instance = instance_of(layers, mesh(2, 2, between=Link(10**7)), PLAIN, Training(2, 2, chunks=2))
    asked = Constraints(
        memory=True, tensor_parallel_degrees=(1,), placement=Placement.FREE, devices_per_stage=(2,), max_servers=2
    )
    (layout,) = layouts(replace(instance, constraints=asked), NEVER)
    case = case_of(KnownRuns.of(replace(instance, constraints=asked)), layout, 10**12, NEVER)
    assert len(case.runs) == 2
    counts = counts_of(case, 10**12, NEVER)
    slow = max((0, 1), key=lambda kind: case.runs[kind][0, 1].total_ns)
    short = Runs(case.runs[slow].table, np.eye(*case.runs[slow].there.shape, k=1, dtype=np.bool_))
    case.runs = tuple(short if kind == slow else runs for kind, runs in enumerate(case.runs))
    # The first kind is the one that says what a rank holds where the order of kinds decides.
    case.kinds = tuple(tuple(sorted(row, key=lambda kind: kind != slow)) for row in case.kinds)
    choices = tuple(tuple(sorted(row, key=lambda one: len(one.counts) == 1)) for row in layout.choices)
    case.layout = replace(layout, choices=choices)
    question = Question(case=case, threshold_ns=10**11, counts=counts, deadline=NEVER)
    question.build()
    for run in question.run[0]:
        question.model.clear_assumptions()
        question.model.add_assumption(question.run[0][run])
        found = make_solver(ONE.begun()).solve(question.model)
        assert found in (cp_model.OPTIMAL, cp_model.FEASIBLE), run
