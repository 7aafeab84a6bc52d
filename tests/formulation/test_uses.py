"""What stays closed because an instance has no use for it: opened, it would make no plan better."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute, Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Across, Axis
from pipecut.formulation.problem.options import Compute, CostModel, Synchronisation
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.uses import axes_of_use, divided_for_use, memory_binds, memory_is_tight
from tests.enumerator import more_plans_than, truth
from tests.examples import chain, instance_of, join, matrix, mesh
from tests.laws import so_many
from tests.problems import problems

MOST_PLANS = 600
WEIGHTS = 1_000
LIMITED = Constraints(memory=True)


def two_layers(memory: int = 1 << 40, devices: int = 2, training: Training | None = None) -> Instance:
    """Two layers with a thousand bytes of weights each, on devices of so much memory."""
    rows = [matrix("a", 10, WEIGHTS), matrix("b", 10, WEIGHTS)]
    kind = DeviceClass("unit", memory, 10**9)
    made = instance_of(chain(rows, [8]), mesh(devices, kind=kind), CostModel(), training)
    return replace(made, constraints=LIMITED)


@pytest.mark.slow
@given(problems(), st.booleans())
@settings(max_examples=so_many(60))
def test_what_is_closed_makes_no_plan_better(drawn: Instance, limited: bool) -> None:
    assume(drawn.training.schedule.flushes)
    asked = replace(drawn.constraints, recompute=Recompute.ALLOWED, sharded=tuple(Sharded), memory=limited)
    opened = replace(drawn, constraints=replace(asked, recompute_layers=()))
    assume(not more_plans_than(opened, MOST_PLANS))
    again = Recompute.ALLOWED if memory_binds(opened) else Recompute.NEVER
    limits = replace(opened.constraints, recompute=again, sharded=divided_for_use(opened))
    assert truth(replace(opened, constraints=limits)).values == truth(opened).values


def test_memory_binds_where_a_plan_could_fill_a_device_or_is_judged_by_it() -> None:
    roomy, narrow = two_layers(), two_layers(4 * WEIGHTS)
    assert not memory_binds(roomy) and memory_binds(narrow)
    assert not memory_binds(replace(narrow, constraints=Constraints()))
    assert memory_binds(replace(roomy, goals=(Goal.DEVICES, Goal.MEMORY)))


def test_memory_binds_if_it_does_in_one_choice() -> None:
    """Of one micro-batch the whole batch is on the device, of many little."""
    memory = 200_000
    few, many = (two_layers(memory, training=Training(4_096, number)) for number in (1, 1_024))
    rows = Training(4_096, 1_024, micro_batch_choices=(1, 1_024))
    assert memory_binds(few) and not memory_binds(replace(many, training=Training(1_024, 1_024)))
    assert memory_binds(two_layers(memory, training=rows))


def test_memory_is_tight_where_all_devices_hold_little_more_than_the_model() -> None:
    """Weights, gradients and a state of the optimiser are six thousand bytes, and little else."""
    assert memory_is_tight(two_layers(10 * WEIGHTS)) and not memory_is_tight(two_layers(14 * WEIGHTS))
    assert not memory_is_tight(two_layers(10 * WEIGHTS, devices=3))


def test_states_are_divided_for_memory_and_for_speed() -> None:
    roomy, narrow = two_layers(), two_layers(4 * WEIGHTS)
    assert divided_for_use(roomy) == (Sharded.NONE,) and divided_for_use(narrow) == tuple(Sharded)
    speed = (Sharded.NONE, Sharded.OPTIMIZER)
    assert divided_for_use(replace(roomy, cost=CostModel(compute=Compute.ROOFLINE))) == speed
    mixed = Training(1, precision=Precision(weights=2, gradients=4, activations=2, optimizer=12))
    assert divided_for_use(replace(roomy, training=mixed)) == speed
    beside = CostModel(synchronisation=Synchronisation.OVERLAPPED)
    assert divided_for_use(replace(roomy, cost=beside)) == tuple(Sharded)
    assert divided_for_use(two_layers(4 * WEIGHTS, devices=1)) == (Sharded.NONE,)
    endless = Training(1, schedule=Schedule.ASYNC_ONE_F_ONE_B)
    assert divided_for_use(two_layers(4 * WEIGHTS, training=endless)) == (Sharded.NONE,)


def test_parts_of_a_sequence_are_there_where_attention_mixes_them() -> None:
    def axes(*across: Across | None) -> frozenset[Axis]:
        rows = [matrix("a"), *(replace(join(f"b{at}"), across=one) for at, one in enumerate(across))]
        return axes_of_use(instance_of(chain(rows, [8] * len(across)), mesh(2)))

    assert axes() == axes(None) == frozenset()
    assert axes(Across(Axis.CONTEXT)) == {Axis.SEQUENCE, Axis.CONTEXT}
    assert axes(Across(Axis.VOCABULARY)) == {Axis.VOCABULARY}
