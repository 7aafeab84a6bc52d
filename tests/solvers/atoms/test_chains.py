"""Exact rows and forms of chains of atoms, against all forms of single stages; and their traps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import pipecut.solvers.atoms.fronts as solvers_atoms_fronts
import pipecut.solvers.atoms.programs as solvers_atoms_programs
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, all_tables
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import forms_on
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.atoms.chains import Chains
from pipecut.solvers.atoms.labels import HELD, TIME, WORKING, Labels, best_labels
from pipecut.solvers.atoms.programs import programs
from pipecut.solvers.dynamic.states import state_dp as solver
from tests.examples import PLAIN, chain, follow, instance_of, matrix, mesh
from tests.laws import so_many
from tests.problems import problems
from tests.solvers.cpsat.test_cpsat_memory import limited

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
ALL_TIME = FORBIDDEN // 4
TRAINING = Training(1, optimizer_bytes_per_parameter=0, schedule=Schedule.GPIPE)


def stage_time_ns(tables: Tables, kind: int, span: Span, forms: Sequence[int], again: Sequence[Span] = ()) -> int:
    """Return the time of a stage with these forms, and blocks that are computed again, from the tables."""
    instance, rerun = tables.instance, {layer for run in again for layer in run.layers}
    of_layer = {layer: tables.recomputing()[kind] if layer in rerun else kind for layer in span.layers}
    moved = computing = 0
    for layer, form in zip(span.layers, forms, strict=True):
        computing += int(tables.compute[of_layer[layer], layer])
        if instance.layers[layer].split is Split.FOLLOW:
            source = instance.sources[layer]
            form = forms[source - span.first] if source is not None and source in span else 0
        moved += int(tables.own(of_layer[layer], layer, span.first)[form])
    for index, edge in enumerate(instance.form_edges):
        if edge.source in span and edge.consumer in span:
            source, consumer = forms[edge.source - span.first], forms[edge.consumer - span.first]
            moved += int(tables.between[of_layer[edge.consumer], index, source, consumer])
    return max(computing, moved) if instance.cost.stage_time is StageTime.OVERLAP else computing + moved


def tables_of(instance: Instance) -> Tables:
    try:
        return all_tables(instance)
    except ValueError:
        assume(False)
        raise


def squeezed(held: MemoryTables, data: st.DataObject) -> MemoryTables:
    """The same bytes on devices that have so little memory that it often decides."""
    most = int(held.once.max() * 3 + held.by_micro_batch.max() * 3 + held.working_set.max()) + 2
    return replace(held, capacity=tuple(data.draw(st.integers(1, most)) for _ in held.capacity))


def least_ns(tables: Tables, held: MemoryTables, slot: int, kind: int, layers: Span) -> int | None:
    """The least time of a stage that fits, by trying all forms of its layers; None if none fits."""
    instance, lasting = tables.instance, held.lasting(slot, kind)
    kept, working = held.in_stage(slot, kind, layers.first, lasting)
    rows = [instance.layers[layer] for layer in layers.layers]
    allowed = [(0,) if row.split is Split.FOLLOW else forms_on(row, tables.kinds[kind]) for row in rows]
    found: list[int] = []
    for forms in itertools.product(*allowed):
        of = dict(zip(layers.layers, forms, strict=True))
        sources = {layer: instance.sources[layer] for layer in layers.layers}
        lies = [
            form if source is None else of.get(source, 0)
            for form, source in zip(forms, sources.values(), strict=True)
        ]
        needed = sum(int(kept[layer][lie]) for layer, lie in zip(layers.layers, lies, strict=True))
        needed += max(int(working[layer][lie]) for layer, lie in zip(layers.layers, lies, strict=True))
        if needed <= held.room(slot, kind, layers.first):
            found.append(stage_time_ns(tables, kind, layers, forms))
    return min(found, default=None)


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=SLOW)
@given(problems(), st.data())
def test_rows_and_forms_are_those_of_single_stages(instance: Instance, data: st.DataObject) -> None:
    tables, total = tables_of(instance), len(instance.layers)
    inner = data.draw(st.sets(st.integers(1, total - 1))) if total > 1 else set()
    space = CutSpace((0, *sorted(inner), total))
    held = squeezed(MemoryTables.of(tables), data)
    chains = Chains(tables, held, space)
    for _ in range(4):
        slot, kind = data.draw(st.integers(0, 2)), data.draw(st.integers(0, len(tables.kinds) - 1))
        start = data.draw(st.integers(0, space.stops - 1))
        span = Span(start, data.draw(st.integers(start + 1, space.stops)))
        layers = space.layers(span)
        least = least_ns(tables, held, slot, kind, layers)
        threshold = data.draw(st.sampled_from((ALL_TIME, 10, *(() if least is None else (least, least - 1)))))
        found = chains.forms(slot, kind, span, threshold)
        row = chains.row(slot, kind, start, threshold)
        times = row.time[start + 1 :]
        assert (np.diff(times) >= 0).all()
        if least is None or least > threshold:
            assert found is None
        else:
            assert found is not None and stage_time_ns(tables, kind, layers, *found) == least
        known = int(row.time[span.stop])
        if least is None:
            assert known in (FORBIDDEN, row.limit_ns + 1)
        else:
            assert known == min(least, row.limit_ns + 1)
        assert row.end(start, threshold) == start + int((times <= threshold).sum())


@settings(max_examples=so_many(200), deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12))
def test_unbeaten_labels_are_those_that_none_undercuts(rows: list[tuple[int, int, int]]) -> None:
    expected = {
        one
        for one in rows
        if not any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in rows)
    }
    kept = [tuple(row) for row in best_labels(np.array(rows, dtype=np.int64)).tolist()]
    assert len(kept) == len(expected) and set(kept) == expected


def test_a_row_says_when_it_must_be_asked_again_and_doubles_its_limit() -> None:
    """Two layers of 12 ns on one device: above the limit of a row "longer" is known, and not "never"."""
    instance = limited(instance_of(chain([matrix("a", 4), matrix("b", 4)], [0]), mesh(1)), 1 << 20, Schedule.GPIPE)
    tables = all_tables(instance)
    chains = Chains(tables, MemoryTables.of(tables), CutSpace((*range(len(instance.layers) + 1),)))
    low = chains.row(0, 0, 0, 13)
    assert low.limit_ns == 14 and low.time.tolist() == [FORBIDDEN, 12, 15]
    assert [low.end(0, threshold) for threshold in (11, 12, 14, 15)] == [0, 1, 1, 2]
    high = chains.row(0, 0, 0, 15)
    assert high.limit_ns == 28 and high.time.tolist() == [FORBIDDEN, 12, 24]


def test_a_stage_that_never_fits_is_never_asked_again() -> None:
    layers = chain([matrix("a", 1, 10), matrix("b", 1, 100)], [0])
    instance = limited(instance_of(layers, mesh(1), PLAIN, TRAINING), 100, Schedule.GPIPE)
    tables = all_tables(instance)
    row = Chains(tables, MemoryTables.of(tables), CutSpace((*range(len(instance.layers) + 1),))).row(0, 0, 0, 1000)
    assert row.time.tolist() == [FORBIDDEN, 3, FORBIDDEN] and row.end(0, 1 << 40) == 1


def test_blocks_that_are_alike_share_their_programs() -> None:
    rows = [matrix(f"{block}.{name}", 5, 8, made=4) for block in range(4) for name in "ab"]
    instance = replace(
        limited(instance_of(chain(rows, [4] * 7), mesh(2)), 1 << 20, Schedule.GPIPE),
        constraints=replace(
            limited(instance_of(chain(rows, [4] * 7), mesh(2)), 1, Schedule.GPIPE).constraints, no_cut=("*.b",)
        ),
    )
    tables = all_tables(instance)
    known = programs(tables, MemoryTables.of(tables), CutSpace.of(instance))
    assert known.of_atom == (0, 1, 1, 2) and [one.width for one in known.all] == [0, 1, 1]


def on_one_stage(instance: Instance) -> Instance:
    """One stage on both devices, so that its forms alone decide."""
    return replace(instance, constraints=replace(instance.constraints, devices_per_stage=(2,)))


def heavy_follower(name: str) -> Layer:
    """A layer without weights or operations that keeps 80 bytes, divided or whole as its source lies."""
    return Layer(name, "follow", Split.FOLLOW, 0, 0, 0, 80, 0)


def test_a_follower_without_weights_keeps_its_source_in_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Form 1 of ``a`` moves least, and lets ``f`` in the next atom keep its 80 bytes whole: too much here.

    If ``a`` were forgotten at the cut, ``f`` would be taken to lie by rows, and the stage to fit in form 1.
    """
    first = matrix("a", 1, 40, made=1, taken=20)
    instance = on_one_stage(
        limited(
            instance_of(chain([first, heavy_follower("f")], [1]), mesh(2), PLAIN, TRAINING), 124, Schedule.GPIPE
        )
    )
    expected = brute_force.solve(instance)
    found = solver.solve(instance, Limits(workers=1))
    assert found.proof is expected.proof is Proof.OPTIMAL and found.objective == expected.objective
    forgetful = _looks_without(lambda tables, layer: bool(tables.inside[:, layer, 0].any()))
    monkeypatch.setattr(solvers_atoms_programs, "last_looks", forgetful)
    tables = all_tables(instance)
    chains = Chains(tables, MemoryTables.of(tables), CutSpace((*range(len(instance.layers) + 1),)))
    kind = next(at for at, one in enumerate(tables.kinds) if one.devices == 2)
    wrong = int(chains.row(0, kind, 0, 1000).time[2])
    assert wrong < (expected.objective or 0)


def _looks_without(weighty: Callable[[Tables, int], bool]) -> Callable[[Tables], list[int]]:
    def looks(tables: Tables) -> list[int]:
        last = list(range(len(tables.instance.layers)))
        for edge in tables.instance.form_edges:
            last[edge.source] = max(last[edge.source], edge.consumer)
        for layer, source in enumerate(tables.instance.sources):
            if source is not None and weighty(tables, layer):
                last[source] = max(last[source], layer)
        return last

    return looks


def test_the_working_set_is_no_part_of_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """``a`` in form 0 holds 80 and works in 100 bytes, in form 1 it holds 40 and works in 200; ``b`` works in 300.

    Added up form 0 is less, and faster; with ``b`` behind it only form 1 fits into 340 bytes.
    """
    layers = [matrix("a", 1, 40, made=100, allowed=(0, 1)), matrix("b", 1, taken=300, allowed=(0,))]
    apart = layer_graph("two that do not meet", layers, [])
    instance = on_one_stage(limited(instance_of(apart, mesh(2), PLAIN, TRAINING), 345, Schedule.GPIPE))
    expected = brute_force.solve(instance)
    found = solver.solve(instance, Limits(workers=1))
    assert found.proof is expected.proof is Proof.OPTIMAL and found.objective == expected.objective

    def added(labels: Labels, group: np.ndarray) -> np.ndarray:
        summed = labels.copy()
        summed[:, HELD] += summed[:, WORKING]
        summed[:, WORKING] = 0
        order = np.lexsort((summed[:, HELD], summed[:, TIME], group))
        kept: list[int] = []
        for row in order:
            if not any(group[row] == group[one] and (summed[one] <= summed[row]).all() for one in kept):
                kept.append(row)
        return np.array(kept, dtype=np.intp)

    tables = all_tables(instance)
    kind = next(at for at, one in enumerate(tables.kinds) if one.devices == 2)
    monkeypatch.setattr(solvers_atoms_fronts, "best_rows", added)
    chains = Chains(tables, MemoryTables.of(tables), CutSpace((*range(len(instance.layers) + 1),)))
    assert chains.row(0, kind, 0, 1000).time[2] > 1000


def test_a_layer_outside_is_no_layer_in_form_0() -> None:
    """A stage that starts at ``b`` changes no layout of what ``a`` sends; one that holds both may have to."""
    layers = [matrix("a", 1, 4, made=8, allowed=(0,)), matrix("b", 1, 400, taken=2, allowed=(2,))]
    instance = limited(instance_of(chain(layers, [8]), mesh(2), PLAIN, TRAINING), 1 << 20, Schedule.GPIPE)
    tables = all_tables(instance)
    chains = Chains(tables, MemoryTables.of(tables), CutSpace((*range(len(instance.layers) + 1),)))
    kind = next(at for at, one in enumerate(tables.kinds) if one.devices == 2)
    for span in (Span(1, 2), Span(0, 2)):
        forms = chains.forms(0, kind, span, ALL_TIME)
        assert forms is not None
        time = stage_time_ns(tables, kind, span, *forms)
        assert chains.row(0, kind, span.first, ALL_TIME).time[span.stop] == time
    both = int(chains.row(0, kind, 0, ALL_TIME).time[2])
    alone = [int(chains.row(0, kind, at, ALL_TIME).time[at + 1]) for at in (0, 1)]
    assert both > sum(alone)


@pytest.mark.parametrize("received", [0, 60])
def test_what_a_stage_received_is_room_that_it_lacks(received: int) -> None:
    layers = chain([matrix("a", 1, 1, made=received), matrix("b", 1, 50)], [received])
    instance = limited(instance_of(layers, mesh(1), PLAIN, TRAINING), 150, Schedule.GPIPE)
    tables = all_tables(instance)
    row = Chains(tables, MemoryTables.of(tables), CutSpace((*range(len(instance.layers) + 1),))).row(0, 0, 1, 1000)
    assert (row.time[2] < FORBIDDEN) == (received == 0)


def test_micro_batches_in_flight_change_a_front_and_a_follower_follows_nobody() -> None:
    """Six micro-batches wait at the first of two stages, and each keeps what ``b`` has read."""
    kept = replace(matrix("b", 1, 10), stash_bytes=30)
    training = Training(6, 6, optimizer_bytes_per_parameter=0)
    rows = chain([follow("in"), kept, matrix("c", 1, 10)], [4, 4])
    instance = limited(instance_of(rows, mesh(1, 1), PLAIN, training), 100, Schedule.ONE_F_ONE_B)
    tables = all_tables(instance)
    chains = Chains(tables, MemoryTables.of(tables), CutSpace((*range(len(instance.layers) + 1),)))
    fits = [bool(chains.row(slot, 0, 0, ALL_TIME).time[2] < FORBIDDEN) for slot in range(4)]
    assert fits == [True, True, False, False]
