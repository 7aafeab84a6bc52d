"""The search for the step under ZB-H1, held against every plan priced, and its bounds against every plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.executed import PipelinePasses, one_f_one_b_ends, step_ns
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import exhaustive
from pipecut.solvers.auto.solve import plan as planned
from pipecut.solvers.choices.trainings import decide
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.step_time import asking, step_dp
from pipecut.solvers.step_time.bounds.pass_tables import stage_parts
from pipecut.solvers.step_time.bounds.rest import Rest, rest_of
from pipecut.solvers.step_time.bounds.spans import spans_of
from pipecut.solvers.step_time.bounds.ways import ways_of
from pipecut.solvers.step_time.responses import responses
from pipecut.solvers.step_time.step_dp import accepts, solve
from tests.examples import on_servers
from tests.formulation.page.evaluator import evaluate_page
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_further import looking_ahead
from tests.solvers.step_time.test_step_dp import judged_by_step, times, with_much_to_synchronise
from tests.solvers.step_time.test_tied import tied_steps

ONE = Limits(workers=1)


@st.composite
def in_halves(draw: st.DrawFn, instances: st.SearchStrategy[Instance], *, stages: bool = True) -> Instance:
    """The same instance under ZB-H1, of as many stages as are drawn."""
    made, most = draw(instances), 3
    training = replace(made.training, schedule=Schedule.ZERO_BUBBLE_H1, warm_up="classic")
    number = draw(st.integers(1, most)) if stages else None
    asked = replace(made.constraints, stages_at_least=number, stages_at_most=number)
    return replace(made, training=training, constraints=asked)


@st.composite
def pipelines(draw: st.DrawFn) -> PipelinePasses:
    """Passes of up to five stages, backward ones in two halves."""
    many = draw(st.integers(1, 5))
    rows = [tuple(draw(times) for _ in range(many)) for _ in range(6)]
    backward = tuple(map(sum, zip(rows[1], rows[5], strict=True)))
    return PipelinePasses(rows[0], backward, rows[2], rows[3][1:], rows[4][1:], weight_ns=rows[5])


@settings(max_examples=so_many(150), deadline=None)
@given(in_halves(judged_by_step()))
def test_it_finds_what_pricing_every_plan_finds(instance: Instance) -> None:
    assume(accepts(instance).proves and few_plans(instance))
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    assert found.plan is None or evaluate(instance, found.plan).objective == found.objective


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(in_halves(tied_steps()))
def test_it_does_so_with_weights_that_layers_share(instance: Instance) -> None:
    assume(accepts(instance).proves and few_plans(instance))
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    if found.plan is not None:
        assert evaluate_page(instance, found.plan).goals == (found.objective,)


@settings(max_examples=so_many(60), deadline=None)
@given(in_halves(judged_by_step()))
def test_however_narrow_the_search_for_a_first_plan_is(instance: Instance) -> None:
    assume(accepts(instance).proves and few_plans(instance))
    with pytest.MonkeyPatch.context() as patch:
        looking_ahead(patch, 2)
        patch.setattr(asking, "NARROW", (1, 1))
        patch.setattr(step_dp, "first_plan", lambda *_: None)
        found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)


@settings(max_examples=so_many(100), deadline=None)
@given(in_halves(with_much_to_synchronise()))
def test_a_synchronisation_is_not_taken_to_delay_the_drain(instance: Instance) -> None:
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)


@pytest.mark.slow
@settings(max_examples=so_many(80), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(in_halves(judged_by_step(max_layers=3)), st.integers(0, 400), st.integers(2, 6))
def test_each_stage_keeps_what_waits_at_its_place(instance: Instance, at: int, many: int) -> None:
    """In the memory of the fullest device of some plan: the last stage keeps most for its weights."""
    training = Training(many, many, schedule=Schedule.ZERO_BUBBLE_H1)
    constraints = replace(instance.constraints, memory=True)
    instance = replace(instance, training=training, constraints=constraints)
    assume(accepts(instance).proves and few_plans(instance))
    plans = [one for one in exhaustive.plans(instance) if len(one) == instance.demands.stages_at_most]
    assume(plans)
    room = max(1, *(stage.memory_bytes for stage in evaluate(instance, plans[at % len(plans)]).stages))
    servers = (replace(one, device_class=replace(one.device_class, memory_bytes=room)) for one in instance.servers)
    instance = on_servers(instance, tuple(servers))
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)


@settings(max_examples=so_many(40), deadline=None)
@given(in_halves(judged_by_step(max_layers=3), stages=False), st.sampled_from([Goal.STEP_TIME, Goal.BOTTLENECK]))
def test_all_numbers_of_stages_are_one_claim(instance: Instance, goal: Goal) -> None:
    instance = replace(instance, goals=(goal,))
    assume(few_plans(instance))
    about, found = decide(instance, lambda one, within: planned(one, within, cross_check=False), ONE)
    truth = exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    assert about.constraints == instance.constraints
    if found.plan is not None:
        assert evaluate(about, found.plan).objective == found.objective


@settings(max_examples=so_many(200), deadline=None)
@given(pipelines(), st.integers(1, 7))
def test_answers_composed_are_the_step_as_executed(passes: PipelinePasses, size: int) -> None:
    training = Training(size, size, schedule=Schedule.ZERO_BUBBLE_H1, warm_up="classic")
    answers = responses(training, passes.stages)
    columns = (passes.forward_ns, passes.backward_ns, passes.sync_ns, passes.weight_ns)
    own = np.array(columns).T[:, None, :]
    sent = np.array([passes.activation_ns, passes.gradient_ns]).T[:, None, :]
    rows = answers.last(own[-1])
    for slot in range(1, passes.stages):
        rows = answers.before(rows, slot, own[-1 - slot], sent[-slot])
    assert int(answers.ended(rows)[0]) == step_ns(Schedule.ZERO_BUBBLE_H1, passes, size)
    last_gradient = one_f_one_b_ends(passes, size, halves=True)[0] - passes.weight_ns[0]
    assert int(answers.leaving(rows)[0]) == last_gradient


def keeps_the_bounds(rest: Rest, instance: Instance, plan: Plan, space: CutSpace, kinds: list[GroupKind]) -> None:
    """Hold a plan within the limit against what is ahead of its stages, behind them, and useful."""
    passes, count = pipeline_passes(instance, plan), instance.training.micro_batches
    inputs = [f + b - w for f, b, w in zip(passes.forward_ns, passes.backward_ns, passes.weight_ns, strict=True)]
    crossed = [*map(sum, zip(passes.activation_ns, passes.gradient_ns, strict=True)), 0]
    ahead = list(accumulate(map(sum, zip(inputs, crossed, strict=True)), initial=0))
    for at, stage in enumerate(plan.stages):
        slot, kind = len(plan) - 1 - at, kinds.index(GroupKind.of(instance, stage.group))
        start, stop = space.places.index(stage.span.first), space.places.index(stage.span.stop)
        assert rest.useful[rest.spans.rules[slot]][kind, start, stop]
        assert rest.ahead[slot, :, start].min() <= ahead[at]
        assert rest.behind[slot, :, start].min() <= last_gradient_ns(passes, at, count)


def last_gradient_ns(passes: PipelinePasses, first: int, count: int) -> int:
    """When the suffix from a stage on has done its last input gradient, in the order of the whole pipeline.

    All that is before it takes no time.
    """
    nothing = (0,) * first
    alone = PipelinePasses(
        *(nothing + row[first:] for row in (passes.forward_ns, passes.backward_ns, passes.sync_ns)),
        *(nothing + row[first:] for row in (passes.activation_ns, passes.gradient_ns)),
        weight_ns=nothing + passes.weight_ns[first:],
    )
    return one_f_one_b_ends(alone, count, halves=True)[first] - min(first + 1, count) * passes.weight_ns[first]


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    in_halves(st.one_of(judged_by_step(max_layers=3), with_much_to_synchronise(), tied_steps(max_layers=3))),
    st.integers(0, 100),
)
def test_no_plan_within_a_limit_breaks_a_bound(instance: Instance, more: int) -> None:
    assume(accepts(instance).proves and few_plans(instance))
    tables, space = all_tables(instance), CutSpace.of(instance)
    parts = stage_parts(tables, space)
    spans, ways = spans_of(tables, parts.passes, space), ways_of(tables, state_space(tables))
    plans = [one for one in exhaustive.plans(instance) if len(one) == instance.demands.stages_at_most]
    values = [(evaluate(instance, plan), plan) for plan in plans]
    kept = [(one.objective, plan) for one, plan in values if one.feasible and one.objective is not None]
    assume(kept)
    limit = min(value for value, _ in kept) * (100 + more) // 100
    rest, coarse = rest_of(spans, ways, limit, NEVER), Rest(spans.blocks(spans.evenly(2)), ways, limit, NEVER)
    for value, plan in kept:
        if value <= limit:
            assert coarse.best <= rest.best <= value
            keeps_the_bounds(rest, instance, plan, space, list(tables.kinds))


@pytest.mark.slow
def test_stages_that_a_narrow_search_knows_have_forms() -> None:
    """Of Llama-7B in four stages some have many forms, of which a narrow search follows two."""
    halves = ("training.schedule=zero_bubble_h1", "objective=step_time", "constraints.memory=true")
    stages = ("constraints.stages.at_least=4", "constraints.stages.at_most=4")
    path = Path(__file__).parents[3] / "scenarios" / "llama" / "llama7b.yaml"
    found = solve(load_scenario(path, (*halves, *stages)).load(), Limits(time_limit_s=15))
    assert found.plan is not None and found.objective is not None and found.bound is not None
    assert 2_385_000_000 < found.bound <= found.objective < 2_600_000_000
