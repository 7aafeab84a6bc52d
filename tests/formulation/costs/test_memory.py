"""Memory by kind: the parts of a stage against sums written down apart, and the timeline against both."""

from __future__ import annotations

import itertools
from dataclasses import astuple, replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import Samples, Sharing
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.timeline.from_plan import footprint_of
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.generators import OF_SINGLE_STAGES, instances
from tests.generators import groups as any_group
from tests.laws import so_many


@st.composite
def plans(draw: st.DrawFn) -> tuple[Instance, Plan]:
    """Any stages in order, each on devices of its own choice in any mode; equal shares of the work."""
    instance = draw(instances())
    cost = replace(instance.cost, sharing=Sharing.EQUAL)
    training = replace(instance.training, schedule=draw(st.sampled_from(OF_SINGLE_STAGES)))
    instance = replace(instance, cost=cost, training=training)
    total = len(instance.layers)
    cuts = sorted(draw(st.sets(st.integers(1, total - 1)))) if total > 1 else []
    stages = []
    for first, stop in itertools.pairwise([0, *cuts, total]):
        group = draw(any_group(instance))
        forms = tuple(draw(st.integers(0, 4 * (group.tensor_parallel_degree > 1))) for _ in range(first, stop))
        stages.append(Stage(Span(first, stop), group, forms))
    return instance, Plan(tuple(stages))


def by_hand(instance: Instance, plan: Plan, index: int) -> MemoryParts:
    """Return the parts of a stage from docs/formulation.md, with no help from the product's formula."""
    stage, training = plan.stages[index], instance.training
    versions, kept = copies_of(instance, len(plan) - index, len(plan))
    halves = training.schedule is Schedule.ZERO_BUBBLE_H1
    late = min(index + 1, training.micro_batches) if halves else 1
    devices, replicas = stage.group.devices, stage.group.replicas
    samples, whole = training.micro_batch, instance.cost.samples is Samples.WHOLE
    by_rows = Fraction(-(-samples // devices), samples) if whole else Fraction(1, devices)
    in_all = Fraction(-(-samples // replicas), samples) if whole else Fraction(1, replicas)
    found = dict.fromkeys(("weights", "gradients", "optimizer", "stash", "recomputed", "waiting"), 0)
    working = 0
    for layer in stage.span.layers:
        source, is_product = instance.sources[layer], instance.layers[layer].split is Split.MATRIX
        form = stage.forms[source - stage.span.first] if source is not None and source in stage.span else 0
        shard = Fraction(replicas, devices) if form in (2, 4) or (form in (1, 3) and is_product) else Fraction(1)
        columns = in_all * replicas / devices
        rows_in, rows_out = form in ((0, 4) if is_product else (0, 3)), form in (0, 3)
        taken = in_all if form == (2 if is_product else 1) else by_rows if rows_in else columns
        made = in_all if form == 1 else by_rows if rows_out else columns
        used = in_all if is_product and form == 4 else taken
        added = in_all if is_product and form == 3 else made
        trained = instance.layers[layer].trained_bytes
        elements = -(-trained // instance.model.element_bytes)
        weights = instance.parameter_bytes[layer]
        gradients = -(-trained * training.elements.gradients // instance.model.element_bytes)
        optimizer = elements * training.elements.optimizer
        copy = instance.copies[layer]
        if copy is not None and copy.earlier < stage.span.first:
            weights, gradients = weights + copy.parameter_bytes, gradients + copy.gradient_bytes
            optimizer += copy.optimizer_bytes
        alike = form == 0 or (form == 3 and not is_product)
        level, holders = list(Sharded).index(stage.group.mode.sharded), devices if alike else replicas
        found["weights"] += up(weights * shard / (holders if level == 3 else 1))
        found["gradients"] += up(gradients * shard / (holders if level >= 2 else 1))
        found["optimizer"] += up(optimizer * shard / (holders if level else 1))
        again = stage.group.mode.recompute
        named = instance.demands.recompute_layers
        once = layer in named if again == "layers" else again
        found["recomputed" if once else "stash"] += up(instance.stash_bytes[layer] * taken)
        found["stash"] += up(lent_by(instance, layer) * made) if again == "layers" else 0
        inputs, outputs = instance.input_bytes[layer], instance.output_bytes[layer]
        tied = instance.copies[layer]
        if halves and (trained or (tied is not None and tied.gradient_bytes)):
            found["waiting"] += up(outputs * added)
        lent = up(weights * shard) if level == 3 and holders > 1 else 0
        lent += up(gradients * shard) if level >= 2 and holders > 1 else 0
        working = max(working, up(2 * inputs * used) + up(2 * outputs * added) + lent)
    sent: dict[int, int] = {}
    for edge in instance.edges:
        if edge.producer < stage.span.first <= edge.consumer:
            sent[edge.producer] = sent.get(edge.producer, 0) + edge.size_bytes
    crossed = sum(min(size, instance.output_bytes[producer]) for producer, size in sent.items())
    return MemoryParts(
        weights=versions * found["weights"],
        gradients=found["gradients"],
        optimizer=0 if stage.group.mode.optimizer_on_host else found["optimizer"],
        stash=kept * found["stash"],
        received=kept * up(crossed * by_rows),
        working_set=working,
        recomputed=late * found["recomputed"],
        output_gradients=late * found["waiting"],
    )


def lent_by(instance: Instance, layer: int) -> int:
    """Return what stays of the output of a layer where named layers are computed again."""
    named = instance.demands.recompute_layers
    read = [
        sum(one.size_bytes for one in instance.edges if one.consumer == at) for at in range(len(instance.layers))
    ]
    return min(
        instance.output_bytes[layer],
        sum(
            one.size_bytes
            for one in instance.edges
            if one.producer == layer
            and (
                one.consumer in named
                if layer not in named
                else one.consumer not in named and instance.stash_bytes[one.consumer] < read[one.consumer]
            )
        ),
    )


def copies_of(instance: Instance, left: int, stages: int) -> tuple[int, int]:
    """Return versions of the weights and micro-batches in flight of a stage with so many from it to the last."""
    many = instance.training.micro_batches
    return {
        Schedule.NAIVE: (1, 1),
        Schedule.GPIPE: (1, many),
        Schedule.ZERO_BUBBLE_H1: (1, min(stages, many)),
        Schedule.ONE_F_ONE_B: (1, min(left, many)),
        Schedule.ASYNC_ONE_F_ONE_B: (left, left),
        Schedule.DOUBLE_BUFFERED: (2, left),
    }[instance.training.schedule]


def up(value: Fraction) -> int:
    """Round up to whole bytes."""
    return -(-value.numerator // value.denominator)


@settings(max_examples=so_many(200), deadline=None)
@given(plans())
def test_parts_are_those_of_the_page_and_add_up_to_the_peak(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    footprint, evaluation = footprint_of(instance, plan), evaluate(instance, plan)
    for index, cost in enumerate(evaluation.stages):
        parts = MemoryParts.of_stage(instance, plan, index)
        assert parts == cost.memory == by_hand(instance, plan, index)
        assert sum(astuple(parts)) == parts.total == cost.memory_bytes
        assert parts.lasting + parts.working_set == parts.total
        kept = copies_of(instance, len(plan) - index, len(plan))[1]
        peak = footprint.static_bytes[index] + kept * footprint.stash_bytes[index]
        more = 0 if instance.training.schedule.flushes else kept - 1
        assert peak + more * footprint.version_bytes[index] == parts.total


def test_parts_of_two_stages_in_small_numbers() -> None:
    """Two layers of 100 bytes of weights on 2 devices that each hold a copy, 3 micro-batches in flight."""
    layers = [replace(matrix(name, 10, 100, taken=8, made=6), stash_bytes=30) for name in "ab"]
    training = Training(6, 3, 4, 8, Schedule.GPIPE)
    instance = instance_of(chain(layers, [6]), mesh(2, 1), PLAIN, training)
    plan = Plan(
        (
            Stage(Span(0, 1), Group(((1, 1),)), (0,)),
            Stage(Span(1, 2), Group(((0, 2),), Mode(2, recompute=True)), (0,)),
        )
    )
    sizes = 2  # samples in a micro-batch
    assert MemoryParts.of_stage(instance, plan, 0) == MemoryParts(
        100, 100, 200, 3 * 30 * sizes, 0, 2 * (8 + 6) * sizes
    )
    assert MemoryParts.of_stage(instance, plan, 1) == MemoryParts(100, 100, 200, 0, 3 * 6, 2 * (8 + 6), 30)
    assert MemoryParts.undivided(instance) == MemoryParts(200, 200, 400, 2 * 30 * sizes, 0, 2 * (8 + 6) * sizes)


def test_gradients_of_outputs_wait_for_those_of_the_weights() -> None:
    """Two stages under ZB-H1, 2 samples a micro-batch: stage 1 puts one off while it takes another back.

    Of both it keeps the gradient of the output, unless it trains nothing; and what it computes again of both.
    """
    layers = [replace(matrix(name, 10, 100, taken=8, made=6), stash_bytes=30) for name in "ab"]
    training = Training(6, 3, 4, 8, Schedule.ZERO_BUBBLE_H1)
    instance = instance_of(chain(layers, [6]), mesh(2, 1), PLAIN, training)

    def plan(*, recompute: bool) -> Plan:
        groups = (Group(((0, 1),), Mode(recompute=recompute)), Group(((1, 1),), Mode(recompute=recompute)))
        return Plan(tuple(Stage(Span(at, at + 1), group, (0,)) for at, group in enumerate(groups)))

    kept, again = plan(recompute=False), plan(recompute=True)
    working = 2 * (16 + 12)
    assert MemoryParts.of_stage(instance, kept, 0) == MemoryParts(100, 100, 200, 2 * 60, 0, working, 0, 12)
    assert MemoryParts.of_stage(instance, kept, 1) == MemoryParts(
        100, 100, 200, 2 * 60, 2 * 12, working, 0, 2 * 12
    )
    assert MemoryParts.of_stage(instance, again, 1) == MemoryParts(
        100, 100, 200, 0, 2 * 12, working, 2 * 60, 2 * 12
    )
    frozen = instance_of(
        chain([layers[0], replace(layers[1], trainable_bytes=0)], [6]), mesh(2, 1), PLAIN, training
    )
    assert MemoryParts.of_stage(frozen, kept, 1).output_gradients == 0
