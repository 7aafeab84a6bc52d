from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.prices import updates_ns
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.formulation.timeline.critical_path import OPTIMISER, SYNCHRONISATION
from pipecut.solvers import exhaustive
from pipecut.solvers.reasons import reasons as module
from pipecut.solvers.reasons.cuts import matched, moved_cut
from pipecut.solvers.reasons.differences import differences
from pipecut.solvers.reasons.plan_neighbours import neighbours
from pipecut.solvers.reasons.priced_plans import Pricing
from pipecut.solvers.reasons.reasons import Reasons, chain_parts, reasons
from pipecut.solvers.reasons.terms import plan_terms
from tests import generators
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.laws import so_many

GOALS = st.sampled_from([(Goal.BOTTLENECK,), (Goal.ITERATION_TIME, Goal.DEVICES), (Goal.MEMORY,), (Goal.COST,)])
CONSTRAINTS = st.builds(
    Constraints,
    placement=st.sampled_from(Placement),
    memory=st.booleans(),
    tensor_parallel_degrees=st.sampled_from([(), (1, 2)]),
    recompute=st.sampled_from(Recompute),
)


@st.composite
def problems(draw: st.DrawFn) -> Instance:
    """Small instances with any goal, on the line or not, with and without limits of memory."""
    made = draw(generators.instances())
    goals = draw(GOALS)
    if Goal.ITERATION_TIME in goals:
        made = replace(made, cost=replace(made.cost, combine=Combine.MAX))
    return replace(replace(made, constraints=draw(CONSTRAINTS)), goals=goals)


@st.composite
def plans(draw: st.DrawFn, instance: Instance) -> Plan:
    """Draw any plan that has a price, whatever rules it breaks."""
    total = len(instance.layers)
    cuts = sorted(draw(st.sets(st.integers(1, total - 1), max_size=3))) if total > 1 else []
    stages = []
    for first, stop in zip([0, *cuts], [*cuts, total], strict=True):
        group = draw(generators.groups(instance))
        forms = draw(st.tuples(*[st.sampled_from([0, 1, 2])] * (stop - first)))
        stages.append(Stage(Span(first, stop), group, forms))
    return Plan(tuple(stages))


def repriced(instance: Instance, found: Reasons) -> None:
    """Hold every statement about a neighbour to the evaluator."""
    base = evaluate(instance, found.priced.plan)
    assert base.objective is not None
    for one in found.neighbours():
        fresh = evaluate(instance, one.priced.plan)
        assert (fresh.objective, *fresh.further) == one.priced.values
        assert fresh.violations == one.priced.violations
        assert fresh.objective is not None and one.costs[0] == fresh.objective - base.objective
        assert one.priced.plan != found.priced.plan


@given(st.data())
@settings(max_examples=so_many(15), deadline=None)
def test_every_statement_is_a_plan_at_its_price(data: st.DataObject) -> None:
    instance = data.draw(problems())
    plan = data.draw(plans(instance))
    found = reasons(instance, plan, Limits(workers=1))
    repriced(instance, found)
    assert sum(term.value * term.times for term in found.terms) == evaluate(instance, plan).objective
    assert len(found.cuts) == len(plan) - 1 and len(found.stages) == len(plan)


@given(st.data())
@settings(max_examples=so_many(60), deadline=None)
def test_one_layer_left_is_the_best_price_of_that_plan(data: st.DataObject) -> None:
    """Forms of the two stages are tried in full: none is faster where the slowest stage counts."""
    instance = replace(data.draw(generators.instances()), goals=(Goal.BOTTLENECK,))
    plan = data.draw(plans(instance))
    pricing = Pricing(instance, plan)
    base = pricing.price(plan)
    assert base is not None
    for stage in range(1, len(plan)):
        place = plan.stages[stage].span.first - 1
        if place > plan.stages[stage - 1].span.first:
            moved = moved_cut(plan, stage, place)
            one = neighbours(pricing, base, [("", moved, (stage - 1, stage))]).best
            if one is None:
                assert pricing.price(moved).rank[1] >= base.rank[1]  # type: ignore[union-attr]
                continue
            found = one.priced
            asked = pricing.price(moved)
            # A layer may come to a group on which its form is not allowed; another one then takes its place.
            assert asked is not None and (asked.violations or found.rank <= asked.rank)
            assert [one.span for one in found.plan.stages] == [one.span for one in moved.stages]
            assert evaluate(instance, found.plan).objective == found.values[0]


@given(st.data())
@settings(max_examples=so_many(8), deadline=None, phases=[Phase.generate])
def test_idle_devices_are_what_brute_force_says(data: st.DataObject) -> None:
    layers = generators.layer_graphs(max_layers=3)
    clusters = generators.cluster_graphs(max_devices=3)
    instance = data.draw(generators.instances(layers=layers, clusters=clusters))
    instance = replace(instance, constraints=data.draw(CONSTRAINTS))
    best = exhaustive.solve(instance)
    if best.plan is None:
        return
    used = sum(stage.group.devices for stage in best.plan.stages)
    found = reasons(instance, best.plan, Limits(workers=1)).idle
    if found is None:
        assert used == instance.devices
        return
    truth = exhaustive.solve(instance, accept=lambda plan: sum(s.group.devices for s in plan.stages) > used)
    assert found.used == used and found.outcome is not None, found
    assert (found.outcome.proof, found.outcome.objective) == (truth.proof, truth.objective)
    for server in found.servers:
        for moves in (server.moves, server.joins):
            if moves.best is not None:
                held = [dict(stage.group.counts).get(server.server, 0) for stage in moves.best.priced.plan.stages]
                before = [dict(stage.group.counts).get(server.server, 0) for stage in best.plan.stages]
                assert sum(held) > sum(before)
                more = sum(stage.group.devices for stage in moves.best.priced.plan.stages) > used
                if moves.best.priced.feasible and more:
                    assert truth.objective is not None and moves.best.priced.values[0] >= truth.objective


@given(st.data())
@settings(max_examples=so_many(60), deadline=None)
def test_the_best_plan_has_no_better_neighbour(data: st.DataObject) -> None:
    layers, clusters = generators.layer_graphs(max_layers=3), generators.cluster_graphs(max_devices=3)
    instance = data.draw(generators.instances(layers=layers, clusters=clusters))
    instance = replace(instance, constraints=data.draw(CONSTRAINTS))
    best = exhaustive.solve(instance)
    if best.proof is Proof.OPTIMAL and best.plan is not None:
        found = reasons(instance, best.plan, Limits(workers=1))
        assert found.better is None


@given(st.data())
@settings(max_examples=so_many(50), deadline=None)
def test_the_steps_lead_from_one_plan_to_the_other_and_add_up(data: st.DataObject) -> None:
    instance = data.draw(problems())
    one, other = data.draw(plans(instance)), data.draw(plans(instance))
    found = differences(instance, one, other)
    assert (found.changes[-1].plan if found.changes else one) == other
    for at, (before, after) in enumerate(zip(found.before, found.after, strict=True)):
        assert sum(change.effects[at] for change in found.changes) == after - before
    for change in found.changes:
        fresh = evaluate(instance, change.plan)
        assert (fresh.objective, *fresh.further) == change.values[: len(instance.goals)]
        assert fresh.violations == change.violations
    assert not differences(instance, one, one).changes


@given(st.data())
@settings(max_examples=so_many(60), deadline=None)
def test_the_optimiser_is_told_apart_from_communication(data: st.DataObject) -> None:
    """What one device alone does is compute and optimiser; with nobody to synchronise with that is the chain."""
    instance = data.draw(generators.instances(costs=generators.any_costs))
    plan = data.draw(plans(instance))
    chain = {(part.stage, part.name): part.time_ns for part in chain_parts(instance, plan)}
    for at, (stage, cost) in enumerate(zip(plan.stages, evaluate(instance, plan).stages, strict=True)):
        once, charged = updates_ns(instance, stage)
        assert 0 <= charged <= once and charged <= cost.inside_ns
        assert chain.get((at, OPTIMISER), 0) % (once or 1) == 0
        copied = any(instance.copied(layer, stage.span.first) for layer in stage.span.layers)
        if stage.group.devices == 1 and not copied and not stage.group.mode.optimizer_on_host:
            assert cost.inside_ns == charged
            assert (at, SYNCHRONISATION) not in chain


@given(st.data())
@settings(max_examples=so_many(40), deadline=None)
def test_the_chain_adds_up_to_the_makespan(data: st.DataObject) -> None:
    from pipecut.report.simulation import simulate

    instance = data.draw(generators.instances())
    plan = data.draw(plans(instance))
    ran = simulate(instance, plan)
    assert sum(part.time_ns for part in chain_parts(instance, plan)) == ran.timeline.makespan_ns


@given(st.data())
@settings(max_examples=so_many(60), deadline=None)
def test_the_terms_add_up_to_the_objective(data: st.DataObject) -> None:
    instance = data.draw(problems())
    plan = data.draw(plans(instance))
    terms = plan_terms(instance, plan)
    assert sum(term.value * term.times for term in terms) == evaluate(instance, plan).objective
    assert any(term.binding for term in terms)


@pytest.mark.parametrize(
    ("cuts", "wanted", "pairs"),
    [
        ([3], [3, 5], [(0, 0)]),
        ([3, 5], [5], [(1, 0)]),
        ([5], [1, 6], [(0, 1)]),
        ([2, 9], [1, 3, 9], [(0, 0), (1, 2)]),
        ([], [4], []),
        ([4, 7], [4, 7], [(0, 0), (1, 1)]),
    ],
)
def test_cuts_are_matched_in_order(cuts: list[int], wanted: list[int], pairs: list[tuple[int, int]]) -> None:
    assert matched(cuts, wanted) == pairs


def test_neighbours_of_a_plan_in_a_v_are_held_to_the_evaluator() -> None:
    """The turn of the V is no boundary, also for what a neighbour takes at least; fewer stages are no plan."""
    layers = chain([matrix(f"block{at}", 8, 100 + at, taken=9, made=9) for at in range(6)], [5, 400, 900, 400, 5])
    training = Training(4, 4, schedule=Schedule.ZERO_BUBBLE_V)
    instance = instance_of(layers, mesh(1, 1, between=Link(10**8)), PLAIN, training)
    for goal in (Goal.BOTTLENECK, Goal.STEP_TIME):
        asked = Constraints(memory=True, tensor_parallel_degrees=(1,))
        judged = replace(instance, goals=(goal,), constraints=asked)
        best = exhaustive.solve(judged)
        assert best.plan is not None and best.proof is Proof.OPTIMAL
        found = reasons(judged, best.plan, Limits(workers=1))
        repriced(judged, found)
        assert found.better is None and len(found.cuts) == 3
        assert all(cut.without.best is None for cut in found.cuts)


def test_a_plan_without_a_price_has_no_reasons() -> None:
    from tests.examples import PLAIN, chain, instance_of, matrix, mesh

    layers = chain([matrix("a", 50, 9, taken=9, made=9), matrix("b", 50, 9, taken=9, made=9)], [9])
    instance = instance_of(layers, mesh(1, 1), PLAIN)
    with pytest.raises(ValueError, match="expected the end"):
        reasons(instance, Plan(()))
    with pytest.raises(ValueError, match="the second plan has no price"):
        plan = exhaustive.solve(instance).plan
        assert plan is not None
        differences(instance, plan, Plan(()))


def test_nothing_is_left_to_be_done_once_the_time_for_neighbours_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has waited for that long leaves what is not back, and all reasons with it."""
    asked = list[str]()
    for name in ("plan_terms", "chain_parts", "cut_reasons", "stage_reasons"):
        true = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, name=name, true=true: asked.append(name) or true(*given))
    instance = instance_of(chain([matrix(name, 9) for name in "abcd"], [1, 1, 1]), mesh(1, 1))
    plan = exhaustive.solve(instance).plan
    assert plan is not None and reasons(instance, plan)
    assert asked == ["plan_terms", "chain_parts", "cut_reasons", "stage_reasons"]
