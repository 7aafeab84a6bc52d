"""Plans on the timeline: every price of the evaluator comes back, in the pass that it belongs to."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.costs import times
from pipecut.formulation.costs.prices import StageCost
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.groups import Group, GroupKind, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.modes import Mode, forward_passes
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime, Synchronisation
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.timeline.durations import Contention, Transfers
from pipecut.formulation.timeline.from_plan import PlanRun, durations_of
from pipecut.formulation.timeline.measures import TimelineMeasures
from pipecut.formulation.timeline.timeline import run
from pipecut.report.simulation import one_f_one_b_period_ns
from tests.examples import BYTE_LINK, PLAIN, chain, instance_of, matrix, mesh
from tests.generators import OF_SINGLE_STAGES, cost_models, instances, layer_graphs


@st.composite
def line_plans(draw: st.DrawFn, instance: Instance, *, single: bool = False) -> Plan:
    """A plan along the line of devices: cuts, devices and forms drawn; ``single``: one device a stage."""
    layers, devices = len(instance.layers), instance.devices
    depth = draw(st.integers(1, min(layers, devices)))
    cuts = sorted(draw(st.permutations(range(1, layers)))[: depth - 1])
    ends = [depth - 1 - stage for stage in range(depth)]
    stages: list[Stage] = []
    taken = 0
    for first, stop, left in zip([0, *cuts], [*cuts, layers], ends, strict=True):
        count = 1 if single else draw(st.integers(1, devices - taken - left))
        replicas = draw(st.sampled_from([one for one in range(1, count + 1) if count % one == 0]))
        group = Group.on_line(instance, taken, count, Mode(replicas, not single and draw(st.booleans())))
        rows = instance.layers[first:stop]
        forms = tuple(draw(st.sampled_from(forms_on(row, group) or row.allowed_forms)) for row in rows)
        stages.append(Stage(Span(first, stop), group, forms))
        taken += count
    return Plan(tuple(stages))


def priced(instance: Instance, plan: Plan) -> tuple[StageCost, ...]:
    stages = evaluate(instance, plan).stages
    assert len(stages) == len(plan)
    return stages


def amortised_sync_ns(instance: Instance, plan: Plan, index: int) -> int:
    """What the evaluator charges a stage for synchronisation, per micro-batch."""
    stage = plan.stages[index]
    kind = GroupKind.of(instance, stage.group)
    total = 0
    for layer in stage.span.layers:
        source = times.layout_form(instance, stage.span, layer)
        form = 0 if source is None else stage.form(source)
        copy = instance.copied(layer, stage.span.first)
        total += times.inside_ns(instance, layer, form, kind, copy)
        there, back = times.passes_ns(instance, layer, form, kind)
        total -= forward_passes(instance, kind.mode, layer) * there + back
    return total


@given(st.data())
def test_passes_add_up_to_the_price_of_a_stage(data: st.DataObject):
    instance = data.draw(instances())
    plan = data.draw(line_plans(instance))
    durations = durations_of(instance, plan)
    for index, cost in enumerate(priced(instance, plan)):
        sync = amortised_sync_ns(instance, plan, index)
        passes = durations.forward_ns[index] + durations.backward_ns[index] + durations.recompute_ns[index]
        sent = cost.inside_ns + cost.between_ns - sync
        if instance.cost.stage_time is StageTime.ADD:
            assert passes == cost.compute_ns + sent
        else:
            assert max(cost.compute_ns, sent) <= passes <= cost.compute_ns + sent


@pytest.mark.parametrize(
    ("forms", "forward", "backward", "sync"),
    [
        # Two devices, ring: 2 (n - 1) / n of a tensor, so as many ns as it has bytes. Passes: 50 and 100 a layer.
        ((0, 0), 100, 200, 16 + 40),
        ((1, 1), 100 + 6 + 80, 200 + 4, 0),  # outputs of 6 and 80; half a gradient of 8 from columns to whole
        ((2, 2), 100 + 4, 200 + 10 + 8, 0),  # input gradients of 10 and 8; half an activation of 8 to whole
        ((0, 1), 100 + 80 + 2, 200 + 2, 16),  # rows to columns, a quarter of 8 in either direction
        ((1, 0), 100 + 6, 200 + 4, 40),  # whole to rows is free; the gradient goes from rows to whole
    ],
)
def test_forms_send_in_the_pass_that_needs_it(forms: tuple[int, ...], forward: int, backward: int, sync: int):
    layers = [matrix("a", 100, 16, taken=10, made=6), matrix("b", 100, 40, taken=8, made=80)]
    graph = layer_graph("two", layers, [("a", "b", 8)])
    instance = instance_of(graph, mesh(2))
    durations = durations_of(instance, Plan((Stage(Span(0, 2), Group.on_line(instance, 0, 2), forms),)))
    assert (durations.forward_ns, durations.backward_ns, durations.sync_ns) == ((forward,), (backward,), (sync,))


@given(st.data())
def test_synchronisation_once_a_step_is_at_most_what_the_evaluator_spreads(data: st.DataObject):
    charged = replace(data.draw(cost_models), synchronisation=Synchronisation.CHARGED)
    instance = data.draw(instances(costs=st.just(charged)))
    plan = data.draw(line_plans(instance))
    micro_batches = instance.training.micro_batches
    for index, sync in enumerate(durations_of(instance, plan).sync_ns):
        spread = micro_batches * amortised_sync_ns(instance, plan, index)
        span = plan.stages[index].span
        rounded = len(span) + sum(instance.copied(layer, span.first) is not None for layer in span.layers)
        assert sync <= spread < sync + rounded * micro_batches  # each share is rounded up


def test_the_evaluator_spreads_a_synchronisation_with_its_latency():
    link = replace(BYTE_LINK, latency_ns=50)
    layers = chain([matrix("a", 100, weights=80)], [])
    training = Training(global_batch=4, micro_batches=4)
    instance = instance_of(layers, mesh(2, inside=link), training=training)
    plan = Plan((Stage(Span(0, 1), Group.on_line(instance, 0, 2), (0,)),))
    # Ring of 2: 80 bytes in 2 messages, 80 + 100 ns.
    assert durations_of(instance, plan).sync_ns == (180,)
    assert 4 * amortised_sync_ns(instance, plan, 0) == 180


@given(st.data())
def test_boundaries_are_those_of_the_evaluator(data: st.DataObject):
    instance = data.draw(instances())
    plan = data.draw(line_plans(instance))
    durations = durations_of(instance, plan)
    costs = priced(instance, plan)
    for behind, (there, back) in enumerate(zip(durations.activation_ns, durations.gradient_ns, strict=True)):
        assert there + back == costs[behind + 1].boundary_ns
        assert durations.activation_link[behind] != durations.gradient_link[behind]


@given(st.data(), st.sampled_from(OF_SINGLE_STAGES))
def test_peak_memory_is_that_of_the_formula(data: st.DataObject, schedule: Schedule):
    instance = data.draw(instances())
    instance = replace(instance, training=replace(instance.training, schedule=schedule))
    plan = data.draw(line_plans(instance))
    # Without a flush the formula is that of a run long enough to fill the pipeline.
    steps = 1 if schedule.flushes else len(plan)
    made = PlanRun.of(instance, plan, steps=steps)
    timeline = run(made.schedule, made.durations, made.execution)
    for rank, cost in enumerate(priced(instance, plan)):
        assert made.footprint.over_time(timeline, rank).peak_bytes == cost.memory_bytes


@given(st.data())
def test_one_micro_batch_without_replicas_takes_eq_1(data: st.DataObject):
    costs = cost_models.map(lambda one: replace(one, combine=Combine.SUM, stage_time=StageTime.ADD))
    # Of weights that two stages have the gradients are added later, while another stage may still work.
    instance = data.draw(instances(layer_graphs(tied=False), costs=costs))
    instance = replace(instance, training=Training(global_batch=instance.training.global_batch))
    plan = data.draw(line_plans(instance, single=True))
    made = PlanRun.of(instance, plan)
    # The sum over stages and boundaries is the way of one micro-batch there and back, whoever pays for boundaries.
    assert run(made.schedule, made.durations, made.execution).makespan_ns == evaluate(instance, plan).objective


@given(st.data())
def test_the_period_is_at_least_the_slowest_stage(data: st.DataObject):
    costs = cost_models.map(lambda one: replace(one, combine=Combine.MAX, stage_time=StageTime.ADD))
    instance = data.draw(instances(costs=costs))
    plan = data.draw(line_plans(instance, single=True))
    durations = durations_of(instance, plan)
    stages = [cost.compute_ns for cost in priced(instance, plan)]
    assert one_f_one_b_period_ns(durations) >= max(stages)


def two_stages(
    size: int, charge: BoundaryCharge = BoundaryCharge.LINK, micro_batches: int = 64
) -> tuple[Instance, Plan]:
    """Two stages of 30 ns a micro-batch, one device each; the boundary takes ``size`` ns in either direction."""
    layers = chain([matrix("a", 10), matrix("b", 10)], [size])
    training = Training(global_batch=micro_batches, micro_batches=micro_batches)
    cost = replace(PLAIN, boundary_charge=charge)
    instance = instance_of(layers, mesh(1, 1), cost, training)
    stages = tuple(Stage(Span(at, at + 1), Group.on_line(instance, at, 1), (0,)) for at in range(2))
    return instance, Plan(stages)


@pytest.mark.parametrize(
    ("size", "evaluated", "measured"),
    [(0, 30, 30), (12, 30, 42), (15, 30, 45), (30, 60, 60), (40, 80, 70)],
)
def test_where_the_bottleneck_of_the_evaluator_and_the_period_differ(size: int, evaluated: int, measured: int):
    # The period of 1F1B is (30 + 30 + 2 size) / 2: transfers are not hidden. The evaluator: max(30, 2 size).
    instance, plan = two_stages(size)
    made = PlanRun.of(instance, plan)
    assert evaluate(instance, plan).objective == evaluated
    assert TimelineMeasures(run(made.schedule, made.durations, made.execution)).period_ns == measured


def test_receivers_that_pay_stand_still():
    instance, plan = two_stages(12, BoundaryCharge.RECEIVER)
    made = PlanRun.of(instance, plan)
    assert made.execution.transfers is Transfers.RECEIVER
    assert evaluate(instance, plan).objective == 42
    assert TimelineMeasures(run(made.schedule, made.durations, made.execution)).period_ns == 42


def test_boundaries_between_the_same_servers_share_a_link_in_each_direction():
    layers = chain([matrix(name, 10) for name in "abcd"], [40, 40, 40])
    instance = instance_of(layers, mesh(2, 2), training=Training(global_batch=2, micro_batches=2))
    stages = tuple(Stage(Span(at, at + 1), Group.on_line(instance, at, 1), (0,)) for at in range(4))
    durations = durations_of(instance, Plan(stages))
    assert durations.activation_link == (0, 2, 4)
    assert durations.gradient_link == (1, 3, 5)
    three = instance_of(layers, mesh(4))
    inside = durations_of(three, Plan(tuple(replace(one, group=Group.on_line(three, 0, 1)) for one in stages)))
    assert inside.activation_link == (0, 0, 0)
    assert inside.gradient_link == (1, 1, 1)


def test_contention_is_a_choice():
    layers = chain([matrix(name, 10) for name in "abc"], [40, 40])
    instance = instance_of(layers, mesh(3), training=Training(global_batch=8, micro_batches=8))
    plan = Plan(tuple(Stage(Span(at, at + 1), Group.on_line(instance, at, 1), (0,)) for at in range(3)))
    made = [PlanRun.of(instance, plan, contention=one) for one in Contention]
    free, shared = (run(one.schedule, one.durations, one.execution).makespan_ns for one in made)
    assert free < shared


def test_without_a_flush_weights_change_once_a_step():
    layers = chain([matrix("a", 100, weights=80)], [])
    training = Training(global_batch=4, micro_batches=4, schedule=Schedule.ASYNC_ONE_F_ONE_B)
    instance = instance_of(layers, mesh(2), training=training)
    plan = Plan((Stage(Span(0, 1), Group.on_line(instance, 0, 2), (0,)),))
    made = PlanRun.of(instance, plan, steps=20)
    timeline = run(made.schedule, made.durations, made.execution)
    assert len(list(timeline.updates())) == 20
    # 150 ns a micro-batch, and 80 ns once in four.
    assert TimelineMeasures(timeline).period_ns == Fraction(4 * 150 + 80, 4)
    assert evaluate(instance, plan).objective == 150 + 20


def test_more_than_one_step_needs_a_schedule_without_a_flush():
    instance, plan = two_stages(1)
    with pytest.raises(ValueError, match="steps is 2, expected 1 under one_f_one_b"):
        PlanRun.of(instance, plan, steps=2)
