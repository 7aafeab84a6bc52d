"""Memory limits: CP-SAT against brute force, infeasible instances, and what more memory may never do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from formulation.costs.memory import layer_parts
from formulation.costs.memory_tables import memory_tables
from formulation.costs.tables import build_tables, line_groups
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Proof, checked
from formulation.problem.groups import group_kind
from formulation.problem.instance import Instance
from formulation.problem.options import Constraints, Schedule
from formulation.problem.plan import Span, Stage
from solvers import exhaustive as brute_force
from solvers.cpsat import solver as layered
from tests.examples import chain, instance_of, matrix, mesh, on_servers
from tests.generators import instances, layer_graphs

ONE_WORKER = Limits(workers=1)


def limited(instance: Instance, capacity_bytes: int, schedule: Schedule) -> Instance:
    """The same instance with so much memory on every device, and a limit on it."""
    servers = [
        replace(server, device_class=replace(server.device_class, memory_bytes=capacity_bytes))
        for server in instance.servers
    ]
    training = replace(instance.training, schedule=schedule)
    return on_servers(replace(instance, training=training, constraints=Constraints(memory=True)), servers)


@st.composite
def tight(draw: st.DrawFn) -> Instance:
    """Instances whose memory is a part of what the first plan would need, so that it often binds."""
    instance = draw(instances(layers=layer_graphs(max_layers=4)))
    schedule = draw(st.sampled_from(Schedule))
    free = limited(instance, 1 << 50, schedule)
    plan = checked(free, layered.solve(free, ONE_WORKER)).plan
    assert plan is not None
    needed = max(stage.memory_bytes for stage in evaluate(free, plan).stages)
    assume(needed > 0)
    capacity = max(1, needed * draw(st.integers(20, 110)) // 100)
    return limited(instance, capacity, schedule)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tight())
def test_finds_what_brute_force_finds_under_a_memory_limit(instance: Instance) -> None:
    found = checked(instance, layered.solve(instance, ONE_WORKER))
    expected = checked(instance, brute_force.solve(instance))
    assert found.proof is expected.proof
    assert found.objective == expected.objective


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(), st.data())
def test_memory_tables_are_the_specification_cell_by_cell(instance: Instance, data: st.DataObject) -> None:
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    held = memory_tables(tables)
    group = data.draw(st.sampled_from(tables.groups))
    kind = tables.kinds.index(group_kind(instance, group))
    stop = data.draw(st.integers(1, len(instance.layers)))
    first = data.draw(st.integers(0, stop - 1))
    forms = tuple(data.draw(st.integers(0, 2)) for _ in range(first, stop))
    stage = Stage(Span(first, stop), group, forms)
    for layer in stage.span.layers:
        source = instance.sources[layer]
        form = stage.form(source) if source is not None and source in stage.span else 0
        part = layer_parts(instance, stage, layer, group_kind(instance, group).shares)
        cells = (held.by_version, held.once, held.by_micro_batch, held.working_set)
        assert [int(cell[kind, layer, form]) for cell in cells] == [
            part.weights,
            part.gradients + part.optimizer + (part.stash if group.recompute else 0),
            0 if group.recompute else part.stash,
            part.working_set,
        ]


def test_tables_know_copies_and_micro_batches_in_flight_of_every_slot() -> None:
    instance = instance_of(chain([matrix("a", 1)], []), mesh(1))
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    rows = {}
    for schedule in Schedule:
        training = replace(instance.training, global_batch=3, micro_batches=3, schedule=schedule)
        held = replace(memory_tables(tables), instance=replace(instance, training=training))
        rows[schedule] = [(held.keeps(slot).versions + 1, held.keeps(slot).in_flight) for slot in range(5)]
    assert rows[Schedule.NAIVE] == [(2, 1)] * 5
    assert rows[Schedule.GPIPE] == [(2, 3)] * 5
    assert rows[Schedule.ONE_F_ONE_B] == [(2, 1), (2, 2), (2, 3), (2, 3), (2, 3)]
    assert rows[Schedule.ASYNC_ONE_F_ONE_B] == [(2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]


def test_a_layer_that_fits_nowhere_makes_the_instance_infeasible() -> None:
    instance = limited(instance_of(chain([matrix("a", 1, weights=900)], []), mesh(2)), 100, Schedule.GPIPE)
    found = checked(instance, layered.solve(instance))
    assert found.proof is Proof.INFEASIBLE
    assert found.plan is None and found.bound is None


def test_sharding_weights_makes_room_where_copies_do_not_fit() -> None:
    heavy = instance_of(chain([matrix("a", 10, weights=60, taken=1, made=1)], []), mesh(2))
    roomy, narrow = limited(heavy, 1000, Schedule.GPIPE), limited(heavy, 110, Schedule.GPIPE)
    assert checked(narrow, layered.solve(narrow)).proof is Proof.OPTIMAL
    plan = layered.solve(narrow).plan
    assert plan is not None and plan.stages[0].forms[0] in (1, 2)
    assert (layered.solve(roomy).objective or 0) <= (layered.solve(narrow).objective or 0)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tight())
def test_more_memory_never_hurts(instance: Instance) -> None:
    schedule = instance.training.schedule
    capacity = instance.device_classes[0].memory_bytes
    values = []
    for factor in (1, 2, 8):
        found = layered.solve(limited(instance, factor * capacity, schedule), ONE_WORKER)
        values.append(np.inf if found.objective is None else found.objective)
    assert values == sorted(values, reverse=True)
