"""Memory by kind: the parts of a stage against sums written down apart, and the timeline against both."""

from __future__ import annotations

import itertools
from dataclasses import astuple, replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from formulation.costs.memory import MemoryParts, stage_memory, undivided
from formulation.evaluate import evaluate
from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.layers import Split
from formulation.problem.modes import Mode
from formulation.problem.options import Schedule, Sharing, Training
from formulation.problem.plan import Plan, Span, Stage
from formulation.timeline.from_plan import footprint_of
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.generators import groups as any_group
from tests.generators import instances


@st.composite
def plans(draw: st.DrawFn) -> tuple[Instance, Plan]:
    """Any stages in order, each on devices of its own choice in any mode; equal shares of the work."""
    instance = draw(instances())
    cost = replace(instance.cost, sharing=Sharing.EQUAL)
    training = replace(instance.training, schedule=draw(st.sampled_from(Schedule)))
    instance = replace(instance, cost=cost, training=training)
    total = len(instance.layers)
    cuts = sorted(draw(st.sets(st.integers(1, total - 1)))) if total > 1 else []
    stages = []
    for first, stop in itertools.pairwise([0, *cuts, total]):
        group = draw(any_group(instance))
        forms = tuple(draw(st.integers(0, 2 * (group.tensor_parallel_degree > 1))) for _ in range(first, stop))
        stages.append(Stage(Span(first, stop), group, forms))
    return instance, Plan(tuple(stages))


def by_hand(instance: Instance, plan: Plan, index: int) -> MemoryParts:
    """Return the parts of a stage from docs/formulation.md, with no help from the product's formula."""
    stage, training = plan.stages[index], instance.training
    versions, kept = copies_of(instance, len(plan) - index)
    devices, replicas = stage.group.devices, stage.group.replicas
    found = dict.fromkeys(("weights", "gradients", "optimizer", "stash"), 0)
    working = 0
    for layer in stage.span.layers:
        source, is_product = instance.sources[layer], instance.layers[layer].split is Split.MATRIX
        form = stage.forms[source - stage.span.first] if source is not None and source in stage.span else 0
        shard = Fraction(replicas, devices) if form == 2 or (form == 1 and is_product) else Fraction(1)
        taken = Fraction(1, replicas) if form == (2 if is_product else 1) else Fraction(1, devices)
        made = Fraction(1, replicas) if form == 1 else Fraction(1, devices)
        trained = instance.layers[layer].trained_bytes
        elements = -(-trained // instance.model.element_bytes)
        found["weights"] += up(instance.parameter_bytes[layer] * shard)
        found["gradients"] += up(-(-trained * training.elements.gradients // instance.model.element_bytes) * shard)
        found["optimizer"] += up(elements * training.elements.optimizer * shard)
        found["stash"] += up(instance.stash_bytes[layer] * taken)
        inputs, outputs = instance.input_bytes[layer], instance.output_bytes[layer]
        working = max(working, up(2 * inputs * taken) + up(2 * outputs * made))
    sent: dict[int, int] = {}
    for edge in instance.edges:
        if edge.producer < stage.span.first <= edge.consumer:
            sent[edge.producer] = sent.get(edge.producer, 0) + edge.size_bytes
    crossed = sum(min(size, instance.output_bytes[producer]) for producer, size in sent.items())
    return MemoryParts(
        weights=versions * found["weights"],
        gradients=found["gradients"],
        optimizer=found["optimizer"],
        stash=(1 if stage.group.recompute else kept) * found["stash"],
        received=kept * up(crossed * Fraction(1, devices)),
        working_set=working,
    )


def copies_of(instance: Instance, left: int) -> tuple[int, int]:
    """Return versions of the weights and micro-batches in flight of a stage with so many from it to the last."""
    many = instance.training.micro_batches
    return {
        Schedule.NAIVE: (1, 1),
        Schedule.GPIPE: (1, many),
        Schedule.ONE_F_ONE_B: (1, min(left, many)),
        Schedule.ASYNC_ONE_F_ONE_B: (left, left),
        Schedule.DOUBLE_BUFFERED: (2, left),
    }[instance.training.schedule]


def up(value: Fraction) -> int:
    """Round up to whole bytes."""
    return -(-value.numerator // value.denominator)


@settings(max_examples=200, deadline=None)
@given(plans())
def test_parts_are_those_of_the_page_and_add_up_to_the_peak(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    footprint, evaluation = footprint_of(instance, plan), evaluate(instance, plan)
    for index, cost in enumerate(evaluation.stages):
        parts = stage_memory(instance, plan, index)
        assert parts == cost.memory == by_hand(instance, plan, index)
        assert sum(astuple(parts)) == parts.total == cost.memory_bytes
        assert parts.lasting + parts.working_set == parts.total
        kept = copies_of(instance, len(plan) - index)[1]
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
    assert stage_memory(instance, plan, 0) == MemoryParts(100, 100, 200, 3 * 30 * sizes, 0, 2 * (8 + 6) * sizes)
    assert stage_memory(instance, plan, 1) == MemoryParts(100, 100, 200, 30, 3 * 6, 2 * (8 + 6))
    assert undivided(instance) == MemoryParts(200, 200, 400, 2 * 30 * sizes, 0, 2 * (8 + 6) * sizes)
