"""Looking ahead within a stage loses no plan, and leaves little of many labels."""

from __future__ import annotations

from dataclasses import replace
from operator import mul
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge
from pipecut.formulation.problem.plan import Plan
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import exhaustive
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.step_time import growing, pass_fronts
from pipecut.solvers.step_time.bounds.mixtures import Mixture, mixtures_of
from pipecut.solvers.step_time.bounds.pass_sums import least_passes
from pipecut.solvers.step_time.bounds.pass_tables import StageParts, stage_parts
from pipecut.solvers.step_time.bounds.rest import rest_of
from pipecut.solvers.step_time.bounds.spans import spans_of
from pipecut.solvers.step_time.bounds.ways import ways_of
from pipecut.solvers.step_time.step_dp import accepts, solve
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_boxes import asked_about

SCENARIOS = Path(__file__).parents[3] / "scenarios"


def looking_ahead(patch: pytest.MonkeyPatch, stops: int = 4) -> None:
    """Look ahead in every stage, however near it ends and however few labels there are."""
    patch.setattr(pass_fronts, "FAR", 0)
    patch.setattr(pass_fronts, "MOST_STOPS", stops)
    patch.setattr(growing, "MANY", 0)


@pytest.mark.slow
@settings(max_examples=so_many(80), deadline=None)
@given(asked_about(), st.integers(1, 4))
def test_plans_are_found_that_pricing_all_of_them_finds(instance: Instance, stops: int):
    assume(accepts(instance).proves and few_plans(instance))
    with pytest.MonkeyPatch.context() as patch:
        looking_ahead(patch, stops)
        found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)


def _mixtures(parts: StageParts, limit: int) -> list[Mixture]:
    tables, training = parts.tables, parts.tables.instance.training
    rest = rest_of(spans_of(tables, parts.passes, parts.space), ways_of(tables, state_space(tables)), limit, NEVER)
    found = mixtures_of(rest, least_passes(parts.passes, parts.space), training, NEVER)
    assert found is not None
    return found


def _keeps_to_its_rooms(plan: Plan, parts: StageParts, mixture: Mixture, limit: int) -> None:
    """Hold every stage of a plan against what plans of so many stages leave for it."""
    instance, places = parts.tables.instance, parts.space.places
    passes = pipeline_passes(instance, plan)
    for at, stage in enumerate(plan.stages):
        kind = parts.tables.kinds.index(GroupKind.of(instance, stage.group))
        first, stop = places.index(stage.span.first), places.index(stage.span.stop)
        own = (passes.forward_ns[at], passes.backward_ns[at], passes.sync_ns[at])
        rooms = mixture.room(kind, first, stop, limit)
        assert any(sum(map(mul, often, own)) <= left for often, left in rooms.items())


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(asked_about(), st.integers(0, 30))
def test_every_stage_of_a_plan_within_the_limit_keeps_to_its_room(instance: Instance, more: int):
    assume(accepts(instance).proves and few_plans(instance))
    assume(instance.cost.boundary_charge is BoundaryCharge.LINK)  # else passes hold what is fetched, rooms do not
    found = [(evaluate(instance, plan), plan) for plan in exhaustive.plans(instance)]
    kept = [(one.objective, plan) for one, plan in found if one.feasible and one.objective]
    assume(kept)
    limit = min(value for value, _ in kept) * (100 + more) // 100
    parts = stage_parts(all_tables(instance), CutSpace.of(instance))
    mixtures = {one.stages: one for one in _mixtures(parts, limit)}
    for value, plan in kept:
        if value <= limit:
            _keeps_to_its_rooms(plan, parts, mixtures[len(plan)], limit)


@pytest.mark.slow
def test_llama_7b_is_proved_though_its_two_stages_have_many_forms():
    instance = replace(load_scenario(SCENARIOS / "llama/llama7b.yaml").load(), goals=(Goal.STEP_TIME,))
    found = solve(instance, Limits(time_limit_s=60))
    assert (found.proof, found.objective, found.bound) == (Proof.OPTIMAL, 2_472_619_086, 2_472_619_086)
