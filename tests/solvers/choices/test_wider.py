"""What is proved of the wider question: never above the best plan of what was asked, whatever is opened."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal
from unittest import mock

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Proof
from pipecut.formulation.problem.cluster import Server, cluster_graph
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance, longest_run_ns
from pipecut.formulation.problem.options import BoundaryCharge, StageTime, Synchronisation
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers import exhaustive
from pipecut.solvers.choices.other_questions import LeastStep, Widened, head_is_best, searched, widened, wider
from pipecut.solvers.choices.trainings import decided
from pipecut.solvers.reduce.best_grid import GridFound
from pipecut.solvers.reduce.reduced_dp import accepts, gone_on
from tests.examples import chain, instance_of, matrix, mesh, on_servers
from tests.generators import CLASSES, cluster_graphs, links
from tests.laws import so_many
from tests.solvers.choices.test_trainings import three_products
from tests.solvers.cpsat.test_freedoms import has_groups
from tests.solvers.priced import few_plans
from tests.solvers.reduce.test_reduced import QUIET, as_seen, repeated
from tests.solvers.step_time.test_formula import paced

SEEN = mock.patch(
    "pipecut.solvers.choices.other_questions.is_reduced",
    lambda one: one.training.chunks == 1 and accepts(one).takes,
)
"""However small an instance is, the reduction is asked about it."""


@st.composite
def alike(draw: st.DrawFn) -> nx.Graph:
    """Two or three servers that nothing tells apart, with or without adapters."""
    number, devices = draw(st.sampled_from([(2, 2), (3, 1), (2, 1), (1, 3)]))
    inside, between = draw(links), draw(links)
    adapters, kind = draw(st.integers(0, devices)), draw(st.sampled_from(CLASSES))
    servers = [
        Server(f"server{at}", kind, devices, inside if devices > 1 else None, adapters) for at in range(number)
    ]
    return cluster_graph("alike", servers, [], mesh=between if number > 1 else None)


@st.composite
def opened(draw: st.DrawFn, least: int = 2) -> Instance:
    """Models that repeat themselves, with something open or asked that the reduction does not see."""
    instance = paced(draw(repeated(draw(st.sampled_from([alike(), cluster_graphs(max_devices=3)])), least)))
    goal = draw(
        st.sampled_from([Goal.STEP_TIME, Goal.STEP_TIME, Goal.ITERATION_TIME, Goal.BOTTLENECK, Goal.PERIOD])
    )
    endless = {Goal.STEP_TIME: (False,), Goal.PERIOD: (True,)}.get(goal, (False, True))
    orders = [one for one in Schedule if not one.in_halves and (not one.flushes) in endless]
    if goal is Goal.STEP_TIME:
        orders += [Schedule.ZERO_BUBBLE_H1] * 2
    order = draw(st.sampled_from(orders))
    warm_up = draw(st.sampled_from(["classic", "eager", "choose"])) if order is Schedule.ONE_F_ONE_B else "classic"
    stages = draw(st.sampled_from([None, None, 2]))
    if room := draw(st.sampled_from([None, 2, 3, 4, 6])):
        size = max(1, MemoryParts.undivided(instance).total * room // 4)
        rows = [
            replace(one, device_class=replace(one.device_class, memory_bytes=size)) for one in instance.servers
        ]
        instance = on_servers(instance, tuple(rows))
    both = st.sampled_from(Synchronisation)
    return replace(
        instance,
        training=replace(instance.training, schedule=order, warm_up=warm_up),
        cost=replace(
            instance.cost,
            stage_time=StageTime.ADD,
            synchronisation=draw(both),
            inside=draw(both),
            boundary_charge=draw(st.sampled_from(BoundaryCharge)),
        ),
        constraints=replace(
            instance.constraints,
            placement=draw(st.sampled_from(Placement)),
            stages_at_least=stages,
            memory=room is not None or instance.constraints.memory,
        ),
        goals=(goal,),
    )


def _truth(instance: Instance) -> Outcome:
    assume(has_groups(instance) and few_plans(instance))
    return exhaustive.solve(instance)


def _bound(instance: Instance, upper: int) -> int:
    search = searched(instance, upper, NEVER)
    search.begin()
    while (following := gone_on(search)) is not None:
        search = following
    assert search.plan is None or evaluate(instance, search.plan).objective == search.best
    return search.bound


@pytest.mark.slow
@settings(max_examples=so_many(400), deadline=None, suppress_health_check=QUIET)
@given(opened(), st.booleans())
def test_no_plan_is_below_the_bound_of_the_wider_question(instance: Instance, known: bool) -> None:
    assume(wider(instance) is not None)
    truth = _truth(instance)
    most = longest_run_ns(instance, instance.training.micro_batches) + 1
    if truth.objective is None:
        return
    assert _bound(instance, truth.objective + 1 if known else most) <= truth.objective


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(repeated(), st.sampled_from([(Schedule.ONE_F_ONE_B, Schedule.GPIPE), (Schedule.GPIPE,)]), st.booleans())
def test_of_choices_each_has_a_bound_and_the_claim_is_the_weakest(
    instance: Instance, orders: tuple[Schedule, ...], known: bool
) -> None:
    instance = replace(as_seen(instance), goals=(Goal.STEP_TIME,))
    instance = replace(
        instance, training=replace(instance.training, schedule=orders[0], schedule_choices=orders[:-1] and orders)
    )
    assume(has_groups(instance) and accepts(replace(instance, training=_plain(instance))).takes)
    truths = [_truth(replace(instance, training=one)) for one in instance.training.choices]
    told = list[int | None]()
    with SEEN:
        limits = Limits(progress=lambda one: told.append(one.bound if one.whole else None))
        found = widened(instance, limits if known else Limits(), None)
    values = [one.objective for one in truths if one.objective is not None]
    assert bool(found.bounds) == bool(values)
    for one, truth in zip(instance.training.choices, truths, strict=True):
        if values and truth.objective is not None:
            assert found.bounds[one] <= truth.objective
    assert all(one is None or not values or one <= min(values) for one in told)
    if found.start is not None:
        priced = evaluate(found.start.instance, found.start.plan)
        assert priced.feasible and priced.objective == found.start.objective >= min(values)


def _plain(instance: Instance) -> object:
    return replace(instance.training, schedule=Schedule.ONE_F_ONE_B, schedule_choices=())


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(repeated(alike()))
def test_where_the_head_of_the_line_is_best_no_group_has_better_links(instance: Instance) -> None:
    free = replace(instance, constraints=replace(instance.constraints, placement=Placement.FREE))
    assume(has_groups(free) and head_is_best(free))
    for group in Group.possible(free):
        head = GroupKind.of(free, Group.on_line(free, 0, group.devices, group.mode))
        kind = GroupKind.of(free, group)
        rows = [(head.link, kind.link), (head.inner, kind.inner)]
        rows += list(itertools.zip_longest(head.axes or (), kind.axes or ()))
        for one, other in rows:
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.bits_per_second >= other.bits_per_second and one.latency_ns <= other.latency_ns
        assert replace(head, link=None, inner=None, axes=None) == replace(kind, link=None, inner=None, axes=None)


def test_a_claim_takes_the_larger_bound_and_says_whose_it_is() -> None:
    instance = replace(three_products((1,)), goals=(Goal.STEP_TIME,))
    best = exhaustive.solve(instance)
    assert best.objective is not None
    open_ = replace(best, proof=Proof.FEASIBLE, bound=1)
    some = Widened({instance.training: best.objective - 1}, None).raised(instance, open_)
    assert (some.proof, some.bound, some.bound_by) == (Proof.FEASIBLE, best.objective - 1, ("reduced_dp",))
    met = Widened({instance.training: best.objective}, None).raised(instance, open_)
    assert (met.proof, met.bound) == (Proof.OPTIMAL, best.objective)
    assert Widened({}, None).raised(instance, open_) == open_
    with pytest.raises(FalseClaimError):
        Widened({instance.training: best.objective + 1}, None).raised(instance, open_)


@pytest.mark.parametrize("order", [Schedule.GPIPE, Schedule.ZERO_BUBBLE_H1, Schedule.ONE_F_ONE_B])
def test_how_time_is_counted_follows_from_the_order_of_passes(order: Schedule) -> None:
    instance = three_products((1,))
    instance = replace(instance, training=replace(instance.training, schedule=order), goals=(Goal.STEP_TIME,))
    seen, unseen = GoalLimit(Goal.DEVICES, 1), GoalLimit(Goal.BOTTLENECK, 1)
    limited = replace(instance, constraints=replace(instance.constraints, at_most=(seen, unseen)))
    found, paths = wider(limited), {Schedule.GPIPE: LeastStep.FLOW, Schedule.ZERO_BUBBLE_H1: LeastStep.WORK}
    assert found is not None and found[1] is paths.get(order, LeastStep.EXECUTED)
    assert found[0].constraints.at_most == (seen,)
    assert found[0].training.schedule is (order if order is Schedule.GPIPE else Schedule.ONE_F_ONE_B)
    loose = replace(limited, training=replace(instance.training, schedule=Schedule.ONE_F_ONE_B, warm_up=(1, 1, 1)))
    assert wider(loose) is None


@pytest.mark.few(6)
@pytest.mark.parametrize("order", [one for one in Schedule if not one.in_a_v])
@pytest.mark.parametrize("warm_up", ["classic", "eager", "choose"])
def test_no_stage_keeps_less_than_in_the_wider_question(
    order: Schedule, warm_up: Literal["classic", "eager", "choose"]
) -> None:
    instance = replace(three_products((1,)), goals=(Goal.BOTTLENECK,))
    for many, stages, least in itertools.product((1, 2, 5, 12), range(1, 8), range(1, 8)):
        if least > stages or (warm_up != "classic" and order is not Schedule.ONE_F_ONE_B):
            continue
        training = replace(
            instance.training, global_batch=many, micro_batches=many, schedule=order, warm_up=warm_up
        )
        asked = replace(
            instance, training=training, constraints=replace(instance.constraints, stages_at_least=least)
        )
        found = wider(asked)
        assert found is not None
        for stage in range(stages):
            own, counted = (
                Keeps.of(training, stage, stages),
                Keeps.in_slot(found[0].training, stages - 1 - stage),
            )
            assert counted.in_flight <= own.in_flight
            assert counted.versions <= own.versions and counted.again <= own.again
            if order is Schedule.GPIPE:
                assert counted.in_flight == many


def test_of_a_bottleneck_each_number_of_micro_batches_has_a_bound_of_its_own() -> None:
    instance = replace(three_products((1, 4, 12)), goals=(Goal.BOTTLENECK,))
    told = list[int | None]()
    with SEEN:
        found = widened(instance, Limits(progress=lambda one: told.append(one.bound)), None)
    truths = {
        one: exhaustive.solve(replace(instance, training=one)).objective for one in instance.training.choices
    }
    for one, best in truths.items():
        assert best is not None and 0 < found.bounds[one] <= best * one.micro_batches
    assert found.start is not None and not any(told)
    best = min((best or 0) * one.micro_batches for one, best in truths.items())
    assert found.start.step >= best >= min(found.bounds.values()) > best * 9 // 10


def test_what_nobody_else_answers_has_the_plan_and_the_bound_of_the_wider_question() -> None:
    instance = replace(three_products((1, 4, 12)), goals=(Goal.STEP_TIME,))
    instance = replace(instance, training=replace(instance.training, schedule=Schedule.GPIPE))

    def nothing(one: Instance, limits: Limits) -> Outcome:
        return Outcome("nobody", Proof.UNKNOWN, bound=0)

    with SEEN:
        found = decided(instance, nothing, Limits())
    best = min(
        exhaustive.solve(replace(instance, training=one)).objective or 0 for one in instance.training.choices
    )
    outcome = found.outcome
    assert outcome.objective is not None and outcome.bound is not None and outcome.plan is not None
    assert best // 2 < outcome.bound <= best <= outcome.objective  # what is done once a step is left out
    assert evaluate(found.instance, outcome.plan).objective == outcome.objective
    assert outcome.bound_by == ("reduced_dp",)


@st.composite
def interleaved(draw: st.DrawFn) -> Instance:
    """The same with groups that hold two stages or three, of blocks that are alike or not."""
    instance = draw(opened(least=4))
    assume(instance.devices > 1)
    model = instance.model
    if draw(st.booleans()):
        times = st.lists(st.integers(1, 9), min_size=len(model.layers), max_size=len(model.layers))
        rows = zip(model.layers, draw(times), strict=True)
        model = replace(model, layers=tuple(replace(row, macs=row.macs * many) for row, many in rows))
    many = draw(st.sampled_from([2, 2, 4, 3]))
    training = replace(
        instance.training,
        global_batch=many * draw(st.sampled_from([1, 2])),
        micro_batches=many,
        schedule=Schedule.ONE_F_ONE_B,
        warm_up="classic",
        chunks=draw(st.sampled_from([2, 2, 2, 3])),
    )
    cost = replace(instance.cost, boundary_charge=BoundaryCharge.LINK)
    goal = draw(st.sampled_from([Goal.STEP_TIME, Goal.STEP_TIME, Goal.BOTTLENECK]))
    asked = replace(instance.constraints, stages_at_least=None)
    return replace(instance, model=model, training=training, cost=cost, constraints=asked, goals=(goal,))


@settings(max_examples=so_many(300), deadline=None, suppress_health_check=QUIET)
@given(interleaved())
def test_no_plan_of_groups_with_several_stages_is_below_the_bound(instance: Instance) -> None:
    assume(wider(instance) is not None)
    truth = _truth(instance)
    if truth.objective is not None:
        assert _bound(instance, truth.objective + 1) <= truth.objective


def test_stages_that_are_dealt_out_share_work_that_no_run_of_layers_does() -> None:
    """Two groups have a short and a long layer each; of two runs one has a long layer and all that is short."""
    layers = chain([matrix(f"l{at}", macs) for at, macs in enumerate((10, 10, 90, 90))], [0] * 3)
    instance = instance_of(layers, mesh(1, 1), training=Training(2, 2, chunks=2))
    truth = exhaustive.solve(replace(instance, goals=(Goal.BOTTLENECK,)))
    assert truth.plan is not None and truth.objective == 3 * (10 + 90)
    longest = 3 * 90
    assert longest <= _bound(replace(instance, goals=(Goal.BOTTLENECK,)), truth.objective + 1) <= truth.objective


def test_one_question_bounds_all_numbers_of_stages_a_group_whatever_is_begun_with() -> None:
    layers = chain([matrix(f"l{at}", 10) for at in range(6)], [0] * 5)
    training = Training(2, 2, chunks=2, chunk_choices=(2, 3))
    instance = replace(instance_of(layers, mesh(1, 1), training=training), goals=(Goal.STEP_TIME,))
    choices = [replace(instance, training=one) for one in training.choices]
    truths = [exhaustive.solve(one) for one in choices]
    values = [one.objective or 0 for one in truths]
    for about, truth, value in zip(choices, truths, values, strict=True):
        assert truth.plan is not None
        with SEEN:
            found = widened(instance, Limits(), GridFound(value, truth.plan, about))
        assert {*found.bounds} == {one.training for one in choices} and found.start is not None
        assert min(found.bounds.values()) > 0 and max(found.bounds.values()) <= min(values) <= found.start.step
