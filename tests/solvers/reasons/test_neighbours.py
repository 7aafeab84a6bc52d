from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import Deadline
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive
from pipecut.solvers.reasons.cuts import moved_cut
from pipecut.solvers.reasons.devices import device_candidates
from pipecut.solvers.reasons.plan_neighbours import Candidate, neighbours
from pipecut.solvers.reasons.priced_plans import PricedPlan, Pricing, laid
from pipecut.solvers.reasons.reasons import reasons
from tests import generators
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW, constraints
from tests.solvers.reasons.test_reasons import plans


def in_every_form(instance: Instance, plan: Plan, changed: tuple[int, ...]) -> list[Plan]:
    """Return a plan with all forms that layers of the changed stages may have."""
    found = [plan]
    for at in changed:
        stage, choices = plan.stages[at], []
        for layer in stage.span.layers:
            row = instance.layers[layer]
            free = row.split is not Split.FOLLOW
            choices.append(forms_on(row, stage.group) if free else (0,))
        found = [
            Plan((*one.stages[:at], replace(stage, forms=forms), *one.stages[at + 1 :]))
            for one in found
            for forms in itertools.product(*choices)
        ]
    return found


@given(st.data())
@settings(max_examples=so_many(20), deadline=None)
def test_the_best_neighbour_is_the_best_of_all_in_every_form(data: st.DataObject) -> None:
    layers = generators.layer_graphs(max_layers=4, places=data.draw(st.booleans()))
    instance = data.draw(generators.instances(layers=layers, clusters=generators.cluster_graphs(max_devices=4)))
    goal = data.draw(st.sampled_from([Goal.BOTTLENECK, Goal.ITERATION_TIME]))
    if goal is Goal.ITERATION_TIME:
        instance = replace(instance, cost=replace(instance.cost, combine=Combine.MAX))
    instance = replace(instance, goals=(goal,))
    instance = replace(instance, constraints=replace(instance.constraints, memory=data.draw(st.booleans())))
    plan = data.draw(plans(instance))
    pricing = Pricing(instance, plan)
    base = pricing.price(plan)
    assert base is not None
    places = [cut for cut in range(1, len(instance.layers)) if cut not in instance.demands.no_cut]
    candidates: list[Candidate] = [
        ("", moved_cut(plan, cut, place), (cut - 1, cut))
        for cut in range(1, len(plan))
        for place in places
        if plan.stages[cut - 1].span.first < place < plan.stages[cut].span.stop
    ][:3]
    candidates += list(device_candidates(pricing, plan, 0))[:3]
    if pricing.on_line:
        candidates = [(what, laid(instance, one), changed) for what, one, changed in candidates]
    before = {stage.group for stage in plan.stages}
    candidates = [
        (what, one, tuple({*changed, *(at for at, stage in enumerate(one.stages) if stage.group not in before)}))
        for what, one, changed in candidates
    ]
    found = neighbours(pricing, base, candidates)
    everything = [
        evaluate(instance, one)
        for _, candidate, changed in candidates
        for one in in_every_form(instance, candidate, changed)
        if one != plan
    ]
    kept = [one.objective for one in everything if one.feasible and one.objective is not None]
    if found.best is None:
        assert not kept or min(kept) >= base.values[0]
    else:
        assert found.best.priced.feasible == bool(kept)
        assert not kept or found.best.priced.values[0] == min(kept)


def asked() -> tuple[Pricing, PricedPlan, Plan]:
    layers = chain([matrix(name, 50, 9, taken=9, made=9) for name in "abc"], [9, 9])
    instance = instance_of(layers, mesh(2, 2), PLAIN)
    plan = Plan((Stage(Span(0, 3), Group(((0, 1),)), (0, 0, 0)),))
    pricing = Pricing(instance, plan)
    base = pricing.price(plan)
    assert base is not None
    return pricing, base, plan


def test_what_was_not_answered_in_time_is_said() -> None:
    pricing, base, plan = asked()
    every = neighbours(pricing, base, device_candidates(pricing, plan, 0))
    assert every.complete and every.looked_at > 1 and every.best is not None
    late = Pricing(pricing.instance, plan, Deadline(stopped=lambda: True))
    found = neighbours(late, base, device_candidates(late, plan, 0))
    assert not found.complete and found.best is None and found.looked_at == 0


@pytest.mark.parametrize("questions", [1, 2, 30])
def test_no_question_takes_the_time_of_all(questions: int) -> None:
    pricing, _, plan = asked()
    timed = Pricing(pricing.instance, plan, Deadline().within(100), questions)
    timed.ask()
    left = timed.deadline.left_s()
    assert left is not None and left <= 100 / min(questions, 3)
    for _ in range(questions):
        timed.ask()
    assert (timed.deadline.left_s() or 0) <= 100


def test_a_neighbour_with_more_adapters_than_the_plan_is_priced_over_them() -> None:
    servers = [Server(name, DeviceClass("card", 10**9, 10**9), 4, Link(10**9), 4) for name in "ab"]
    cluster = cluster_graph("two", servers, [], mesh=Link(10**6))
    instance = instance_of(chain([matrix("one", 10**6), matrix("two", 10**6)], [10**6]), cluster)

    def plan(devices: int) -> Plan:
        groups = [Group(((server, devices),), Mode(devices)) for server in (0, 1)]
        return Plan(tuple(Stage(Span(at, at + 1), group, (0,)) for at, group in enumerate(groups)))

    pricing = Pricing(instance, plan(1))
    pricing.prepare([plan(1)])
    pricing.prepare([plan(4)])
    found = evaluate(instance, plan(4))
    work = sum(cost.total_ns + cost.boundary_ns for cost in found.stages)
    assert pricing.at_least(plan(4), frozenset()) == ((found.objective,), work)


def one_device_moved(instance: Instance, base: Plan, plan: Plan, index: int) -> bool:
    """Tell whether stage ``index`` has one device more or fewer than before, and else nothing is otherwise.

    The device comes from another stage or from nobody, and goes to one or to nobody. On the line servers follow
    from the numbers. Stages whose devices are others may have any mode and any forms.
    """
    line = instance.constraints.placement is Placement.LINE
    if [one.span for one in plan.stages] != [one.span for one in base.stages]:
        return False
    changes: dict[int, Counter[int]] = {}
    for at, (one, other) in enumerate(zip(plan.stages, base.stages, strict=True)):
        now, then = (Counter({-1: at.group.devices} if line else dict(at.group.counts)) for at in (one, other))
        now.subtract(then)
        row = Counter({server: count for server, count in now.items() if count})
        if row:
            changes[at] = row
        elif (one.group.mode, one.again) != (other.group.mode, other.again):
            return False
        if one.group == other.group and one.forms != other.forms:
            return False
    moved = list(changes.values())
    if index not in changes or len(moved) > 2 or any(sorted(row.values()) not in ([1], [-1]) for row in moved):
        return False
    return len(moved) == 1 or all(moved[0][server] == -moved[1][server] for server in moved[0])


def one_cut_moved(base: Plan, plan: Plan, cut: int) -> bool:
    """Tell whether another place of one cut is all that is otherwise, but for the forms of its two stages."""
    if [one.group for one in plan.stages] != [one.group for one in base.stages]:
        return False
    pairs = list(zip(plan.stages, base.stages, strict=True))
    moved = [at for at, (one, other) in enumerate(pairs) if one.span.first != other.span.first]
    beside = (cut - 1, cut)
    return moved == [cut] and all(one == other for at, (one, other) in enumerate(pairs) if at not in beside)


@given(st.data())
@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW, phases=[Phase.generate])
def test_no_single_move_is_better_than_what_is_said_to_be_the_best(data: st.DataObject) -> None:
    """Every plan there is, priced by itself: those one device or one cut away are never below what is named."""
    layers = generators.layer_graphs(max_layers=4)
    instance = data.draw(generators.instances(layers=layers, clusters=generators.cluster_graphs(max_devices=4)))
    asked = data.draw(constraints(instance, most=1))
    asked = replace(
        asked, placement=data.draw(st.sampled_from(Placement)), memory=data.draw(st.booleans()), at_most=()
    )
    instance = replace(replace(instance, constraints=asked), goals=(Goal.BOTTLENECK,))
    assume(exhaustive.count_plans(instance) <= 4_000)
    every = list(exhaustive.plans(instance))
    assume(every)
    deep = [plan for plan in every if len(plan) == max(map(len, every))]
    base = data.draw(st.sampled_from(deep if data.draw(st.booleans()) else every))
    found = reasons(instance, base)

    def best_of(accepts: Callable[[Plan], bool]) -> int | None:
        priced = (evaluate(instance, plan) for plan in every if plan != base and accepts(plan))
        return min((one.objective for one in priced if one.feasible and one.objective is not None), default=None)

    for stage in found.stages:
        least = best_of(lambda plan, at=stage.stage: one_device_moved(instance, base, plan, at))
        named = stage.devices.best
        assert stage.devices.complete
        assert least is None or (named is not None and named.priced.feasible and named.priced.values[0] <= least)
    for cut in found.cuts:
        least = best_of(lambda plan, at=cut.stage: one_cut_moved(base, plan, at))
        named = cut.elsewhere.best
        assert cut.elsewhere.complete
        assert least is None or (named is not None and named.priced.feasible and named.priced.values[0] <= least)
