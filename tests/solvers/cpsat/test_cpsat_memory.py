"""Memory limits: CP-SAT against brute force, infeasible instances, and what more memory may never do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.bulk.alike import number_of_forms
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.prices import form_of
from pipecut.formulation.costs.tables import all_tables, build_tables, line_groups
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Recompute
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, SINGLE_FORMS, Layer, Split
from pipecut.formulation.problem.options import Samples
from pipecut.formulation.problem.plan import Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat import cpsat as layered
from tests.examples import PLAIN, chain, instance_of, matrix, mesh, on_servers
from tests.generators import OF_SINGLE_STAGES, instances, layer_graphs, on_grids
from tests.laws import so_many
from tests.solvers.priced import few_plans

ONE_WORKER = Limits(workers=1)


def limited(instance: Instance, capacity_bytes: int, schedule: Schedule) -> Instance:
    """The same instance with so much memory on every device, and a limit on it.

    With as many stages as there can be where their number decides what each of them keeps.
    """
    servers = [
        replace(server, device_class=replace(server.device_class, memory_bytes=capacity_bytes))
        for server in instance.servers
    ]
    training = replace(instance.training, schedule=schedule)
    most = min(len(instance.layers), instance.devices) if schedule.in_halves else None
    constraints = Constraints(memory=True, stages_at_least=most, stages_at_most=most)
    return on_servers(replace(instance, training=training, constraints=constraints), servers)


@st.composite
def tight(draw: st.DrawFn) -> Instance:
    """Instances whose memory is a part of what the first plan would need, so that it often binds."""
    instance = draw(instances(layers=layer_graphs(max_layers=4)))
    schedule = draw(st.sampled_from(OF_SINGLE_STAGES))
    free = limited(instance, 1 << 50, schedule)
    plan = checked(free, layered.solve(free, ONE_WORKER)).plan
    assert plan is not None
    needed = max(stage.memory_bytes for stage in evaluate(free, plan).stages)
    assume(needed > 0)
    capacity = max(1, needed * draw(st.integers(20, 110)) // 100)
    return limited(instance, capacity, schedule)


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tight())
def test_finds_what_brute_force_finds_under_a_memory_limit(instance: Instance) -> None:
    assume(few_plans(instance))
    found = checked(instance, layered.solve(instance, ONE_WORKER))
    expected = checked(instance, brute_force.solve(instance))
    assert found.proof is expected.proof
    assert found.objective == expected.objective


@settings(max_examples=so_many(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(instances().map(lambda one: (one, tuple(line_groups(one).values()))), on_grids()), st.data())
def test_memory_tables_are_the_specification_cell_by_cell(
    asked: tuple[Instance, tuple[Group, ...]], data: st.DataObject
) -> None:
    instance, groups = asked
    # Parts are those of a stage with its optimiser on the device.
    modes = (replace(group.mode, optimizer_on_host=False) for group in groups)
    tables = build_tables(
        instance, tuple(replace(one, mode=mode) for one, mode in zip(groups, modes, strict=True))
    )
    held = MemoryTables.of(tables)
    group = data.draw(st.sampled_from(tables.groups))
    kind = tables.kinds.index(GroupKind.of(instance, group))
    stop = data.draw(st.integers(1, len(instance.layers)))
    first = data.draw(st.integers(0, stop - 1))
    number = number_of_forms(instance.layers)
    every = [form for form in range(number) if form in SINGLE_FORMS or group.mode.grid > 1]
    some = [form for form in every if form < len(FORMS) or form not in SINGLE_FORMS]
    forms = tuple(
        data.draw(st.sampled_from(every if instance.layers[layer].is_matrix else some))
        for layer in range(first, stop)
    )
    stage = Stage(Span(first, stop), group, forms)
    are_those_of(held, kind, stage)


@pytest.mark.parametrize("samples", [1, 2, 3])
@pytest.mark.parametrize("form", range(5))
def test_memory_tables_know_whole_samples_in_every_form(samples: int, form: int) -> None:
    """Of one sample, and of three, the fuller of two devices has more than half of the rows."""
    kinds = {Split.MATRIX: (0, 1, 2, 3, 4), Split.FOLLOW: FORMS, Split.JOIN: FORMS}
    layers = [Layer(f"a {of}", "any", of, 1200, 900, 800, 700, 0, 0, allowed) for of, allowed in kinds.items()]
    training = Training(global_batch=samples, micro_batches=1)
    instance = instance_of(chain(layers, [800] * 2), mesh(2), replace(PLAIN, samples=Samples.WHOLE), training)
    instance = replace(instance, constraints=Constraints(recompute=Recompute.ALLOWED))
    tables = all_tables(instance)
    shared = [group for group in tables.groups if group.tensor_parallel_degree == 2]
    assert {group.mode.recompute for group in shared} == {False, True}
    for group in shared:
        kind = tables.kinds.index(GroupKind.of(instance, group))
        stage = Stage(Span(0, len(layers)), group, (form, 0, min(form, FORMS[-1])))
        are_those_of(MemoryTables.of(tables), kind, stage)


def are_those_of(held: MemoryTables, kind: int, stage: Stage) -> None:
    """Compare the cells of a stage's layers with their parts."""
    instance = held.instance
    for layer in stage.span.layers:
        source = instance.sources[layer]
        form = stage.form(source) if source is not None and source in stage.span else 0
        form, copy = form_of(instance, stage, layer), instance.copied(layer, stage.span.first)
        part = MemoryParts.of_layer(instance, GroupKind.of(instance, stage.group), layer, form, copy)
        whole = not instance.training.schedule.in_halves
        cells = (held.by_version, held.once, held.by_micro_batch, held.working_set)
        found = [int(cell[kind, layer, form]) for cell in cells]
        copy = instance.copies[layer]
        if copy is not None and copy.earlier < stage.span.first:
            more = held.copies[copy.earlier, layer]
            added = (more.by_version, more.once, None, more.working_set)
            found = [
                one + (0 if part is None else int(part[kind, form]))
                for one, part in zip(found, added, strict=True)
            ]
        once, again = part.gradients + part.optimizer, part.recomputed + part.output_gradients
        by_version, once = (part.weights, once + again) if whole else (again, once + part.weights)
        assert found == [by_version, once, part.stash, part.working_set]


def test_tables_know_copies_and_micro_batches_in_flight_of_every_slot() -> None:
    instance = instance_of(chain([matrix("a", 1)], []), mesh(1))
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    rows = {}
    for schedule in OF_SINGLE_STAGES:
        training = replace(instance.training, global_batch=3, micro_batches=3, schedule=schedule)
        held = replace(MemoryTables.of(tables), instance=replace(instance, training=training))
        rows[schedule] = [(held.keeps(slot).versions + 1, held.keeps(slot).in_flight) for slot in range(5)]
    assert rows[Schedule.NAIVE] == [(2, 1)] * 5
    assert rows[Schedule.GPIPE] == [(2, 3)] * 5
    assert rows[Schedule.ONE_F_ONE_B] == [(2, 1), (2, 2), (2, 3), (2, 3), (2, 3)]
    assert rows[Schedule.ASYNC_ONE_F_ONE_B] == [(2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]
    constraints = replace(instance.constraints, stages_at_least=2, stages_at_most=2)
    training = replace(instance.training, global_batch=3, micro_batches=3, schedule=Schedule.ZERO_BUBBLE_H1)
    held = replace(MemoryTables.of(tables), instance=replace(instance, training=training, constraints=constraints))
    assert [(held.keeps(slot).versions, held.keeps(slot).in_flight) for slot in range(2)] == [(2, 2), (1, 2)]


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


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tight())
def test_more_memory_never_hurts(instance: Instance) -> None:
    schedule = instance.training.schedule
    capacity = instance.device_classes[0].memory_bytes
    values = []
    for factor in (1, 2, 8):
        found = layered.solve(limited(instance, factor * capacity, schedule), ONE_WORKER)
        values.append(np.inf if found.objective is None else found.objective)
    assert values == sorted(values, reverse=True)
