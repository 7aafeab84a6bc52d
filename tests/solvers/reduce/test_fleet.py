"""Stages by how many devices they have, at a price of a device, against the price of every plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import cast
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.problem.cluster import Cluster, Server, cluster_graph
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import (
    FORBIDDEN,
    MOST_NS,
    Instance,
    build_instance,
    longest_run_ns,
)
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive
from pipecut.solvers.reduce.by_count import ByCount
from pipecut.solvers.reduce.by_devices import DeviceSums
from pipecut.solvers.reduce.counted import CountedStages, ExecutedStages
from pipecut.solvers.reduce.device_prices import Option, PricedQuestion, PricedSums
from pipecut.solvers.reduce.executed.leaves import counted_passes
from pipecut.solvers.reduce.executed.steps import ByStep
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.reduce.reduced_dp import accepts, is_counted
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from pipecut.solvers.reduce.seats import SeatLine
from pipecut.solvers.reduce.word import Word
from tests.enumerator import every_plan
from tests.generators import CLASSES, typed_clusters
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import has_groups
from tests.solvers.priced import few_plans
from tests.solvers.reduce.test_reduced import QUIET, as_seen, repeated

FEW = 15
"""So many layers on devices have plans that are priced in a second or two."""
GOALS = st.sampled_from([Goal.ITERATION_TIME, Goal.STEP_TIME])


def _stages(instance: Instance) -> ReducedStages:
    word = Word.of(instance)
    return ReducedStages.of(word, SeatLine.of(instance, word.space), each=instance.goals[0] is Goal.STEP_TIME)


def _searched(instance: Instance, upper: int | None = None) -> ByCount:
    """Search to the end, as the reduction does on a long line."""

    def price(plan: Plan) -> int | None:
        found = evaluate(instance, plan)
        return found.objective if found.feasible else None

    most = longest_run_ns(instance, instance.training.micro_batches) + 1
    search = ByCount.of(_stages(instance), price, most if upper is None else upper)
    search.begin()
    while search.step():
        pass
    return search


def _seen(instance: Instance) -> None:
    assume(instance.devices * len(instance.layers) <= FEW)
    assume(has_groups(instance) and accepts(instance).takes and few_plans(instance))


@pytest.mark.slow
@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(repeated(), GOALS)
def test_no_plan_is_below_the_bound_and_plans_take_what_is_said(instance: Instance, goal: Goal) -> None:
    """With links of several speeds, uneven servers, ZeRO, tensor parallelism, memory and blocks computed again."""
    instance = replace(as_seen(instance), goals=(goal,))
    _seen(instance)
    found, truth = _searched(instance), exhaustive.solve(instance)
    if truth.objective is None:
        assert found.plan is None
        return
    assert found.bound <= truth.objective
    if found.plan is not None:
        priced = evaluate(instance, found.plan)
        assert priced.feasible and priced.objective == found.best >= truth.objective


@pytest.mark.slow
@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(repeated(typed_clusters(max_devices=4)), GOALS, st.integers(1, 6))
def test_no_plan_is_below_the_bound_on_servers_of_some_types(
    instance: Instance, goal: Goal, micro_batches: int
) -> None:
    instance = replace(as_seen(instance, micro_batches), goals=(goal,))
    _seen(instance)
    found, truth = _searched(instance), exhaustive.solve(instance)
    assert truth.objective is None or found.bound <= truth.objective


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(repeated(typed_clusters(max_devices=4)))
def test_no_plan_has_slowest_stages_that_take_less_than_is_said_of_all(instance: Instance) -> None:
    """Whatever devices of each type cost."""
    instance = replace(as_seen(instance), goals=(Goal.BOTTLENECK,))
    _seen(replace(instance, goals=(Goal.ITERATION_TIME,)))
    truth, stages = exhaustive.solve(instance), _stages(instance)
    assume(truth.objective is not None)
    assert stages.pace_ns() <= (truth.objective or 0)
    assert CountedStages.of(stages, stages).pace_ns() <= (truth.objective or 0)


@pytest.mark.parametrize("speeds", [(1, 1, 1), (1, 3, 4), (1, 2, 5, 1)])
def test_devices_of_several_speeds_share_work_as_these_are(speeds: tuple[int, ...]) -> None:
    """The best plan has as many layers on each as it is fast, which take as long as ten on the first one."""
    layers = 10
    like = _even(1, 8, Goal.ITERATION_TIME, layers=layers * sum(speeds))
    servers = [
        Server(f"server{at}", replace(CLASSES[0], name=f"x{speed}", flops_per_second=speed * 10**9), 1)
        for at, speed in enumerate(speeds)
    ]
    asked = replace(like.constraints, devices_per_stage=(1,))
    instance = replace(like, cluster=Cluster.mesh("unlike", servers, Link(10**12)), constraints=asked)
    best = layers * (instance.forward_ns[0][0] + instance.backward_ns[0][0])
    pace = _stages(instance).pace_ns()
    assert 0.97 * best <= pace <= best


@pytest.mark.slow
def test_devices_with_slower_links_are_not_stood_for_by_those_with_faster_ones() -> None:
    """Stages on servers that differ in their links alone take no less on the slower one, and cost its devices."""
    like, fast, slow = _even(2, 8, Goal.ITERATION_TIME), Link(10**12), Link(10**6)
    servers = [Server("fast", CLASSES[0], 2, fast), *(Server(f"slow{at}", CLASSES[0], 2, slow) for at in range(3))]
    instance = replace(like, cluster=Cluster.mesh("unlike", servers, fast))
    truth, stages = exhaustive.solve(replace(instance, goals=(Goal.BOTTLENECK,))), _stages(instance)
    assert truth.objective is not None and len(stages.line.in_class) == 2
    assert stages.pace_ns() <= truth.objective
    assert CountedStages.of(stages, stages).pace_ns() <= truth.objective


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(repeated(), GOALS)
def test_a_value_just_above_the_best_plan_rules_it_out_nowhere(instance: Instance, goal: Goal) -> None:
    """What leaves stages out for a value that plans have to be below leaves the best plan in."""
    instance = replace(as_seen(instance), goals=(goal,))
    _seen(instance)
    truth = exhaustive.solve(instance)
    assume(truth.objective is not None)
    best = truth.objective or 0
    assert _searched(instance, best + 1).bound <= best


def _even(servers: int, micro_batches: int, goal: Goal, macs: int = 10**6, layers: int = 8) -> Instance:
    """Eight equal layers, or so many, on alike servers of two devices, with fast links."""
    names, fast = [f"layer{at}" for at in range(layers)], Link(10**12)
    chain = [Layer(name, "linear", Split.MATRIX, 0, 10, 10, 10, macs, allowed_forms=(0,)) for name in names]
    edges = [(*pair, 10) for pair in pairwise(names)]
    rows = [Server(f"server{at}", CLASSES[0], 2, fast) for at in range(servers)]
    joined = [(one.name, other.name, fast) for one, other in combinations(rows, 2)]
    cluster, training = cluster_graph("even", rows, joined), Training(micro_batches, micro_batches)
    instance = build_instance(layer_graph("even", chain, edges), cluster, training, CostModel())
    return replace(as_seen(instance), goals=(goal,))


@pytest.mark.parametrize("micro_batches", [1, 3, 8])
@pytest.mark.parametrize("servers", [1, 2])
def test_the_bound_by_the_formula_meets_the_best_plan_of_equal_layers(servers: int, micro_batches: int) -> None:
    instance = _even(servers, micro_batches, Goal.ITERATION_TIME)
    found, truth = _searched(instance), exhaustive.solve(instance)
    assert truth.objective is not None and found.best == truth.objective
    assert found.bound <= truth.objective <= found.bound * 1001 // 1000
    assert found.bound == truth.objective or micro_batches > 1


@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_the_bound_of_an_executed_step_is_close_for_equal_layers(micro_batches: int) -> None:
    instance = _even(2, micro_batches, Goal.STEP_TIME)
    found, truth = _searched(instance), exhaustive.solve(instance)
    assert truth.objective is not None and truth.objective <= found.best <= truth.objective * 1001 // 1000
    assert found.bound <= truth.objective <= found.bound * 5 // 4


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(repeated(), st.integers(0, 10**9))
def test_at_no_price_of_a_device_a_sum_is_above_that_of_a_plan(instance: Instance, price: int) -> None:
    """The least sum of stages, with their devices at a price, less all devices at that price."""
    instance = as_seen(instance)
    _seen(instance)
    truth, stages = exhaustive.solve(replace(instance, goals=(Goal.ITERATION_TIME,))), _stages(instance)
    assume(truth.objective is not None)
    counted = CountedStages.of(stages, stages)
    question = PricedQuestion(lambda _: ((Option(1, 0, 0, 1),),), -1, MOST_NS, MOST_NS, False, 0, (0,))
    sums = PricedSums.of(counted, question, price)
    found = sums.least()
    assert found is not None and found.value <= (truth.objective or 0)
    used = sum(int(counted.devices[cell.size]) for cell in found.cells)
    assert found.devices == used and found.value == found.total + price * (used - counted.line.devices)
    kept = DeviceSums.of(sums, NEVER).least()
    assert kept is not None and found.value <= kept.value == kept.total <= (truth.objective or 0)
    used = sum(int(counted.devices[cell.size]) for cell in kept.cells)
    assert kept.devices == used <= counted.line.devices


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(repeated())
def test_stages_of_plans_take_no_less_than_is_said_with_what_they_do_once_a_step(instance: Instance) -> None:
    instance = replace(as_seen(instance), goals=(Goal.STEP_TIME,))
    _seen(instance)
    stages, many = ExecutedStages(_stages(instance)), instance.training.micro_batches
    stages.charged.least(0, 0)
    space, line = stages.passes.word.space, stages.passes.line
    for plan in (one for one in every_plan(instance) if evaluate(instance, one).feasible):
        x = 0
        for at, stage in enumerate(plan.stages):
            run, seat = space.run(stage.span), line.seat_of(x, stage.group)
            slot, (forward, backward, sync) = len(plan) - 1 - at, counted_passes(instance, stage)
            assert stages.ended(seat, slot)[run.first, run.stop] <= forward + backward + sync
            assert stages.passes.whole(seat, slot)[run.first, run.stop] <= many * (forward + backward) + sync
            x += stage.group.devices


def test_long_lines_are_counted_and_short_ones_are_not() -> None:
    assert not is_counted(_even(2, 8, Goal.STEP_TIME))
    assert is_counted(_even(200, 8, Goal.STEP_TIME))


def _shortest(
    true: NDArray[np.int64],
    once: NDArray[np.int64],
    crossing: NDArray[np.int64],
    devices: Sequence[int],
    total: int,
    micro_batches: int,
) -> int:
    """Return the least step over all stages one behind the other, of what ways through each stage alone say.

    A way ends with what the first stage does once a step, or the stage itself.
    """
    atoms = true.shape[-1] - 1

    def plans(first: int, left: int) -> Iterator[list[tuple[int, int, int]]]:
        if first == atoms:
            yield []
        for size, many in enumerate(devices):
            if many <= left and first < atoms:
                for stop in range(first + 1, atoms + 1):
                    for rest in plans(stop, left - many):
                        own = int(true[size, first, stop]), int(once[size, first, stop])
                        yield [(int(crossing[size, first]) if first else 0, *own), *rest]

    def step(stages: list[tuple[int, int, int]]) -> int:
        last, times = len(stages) - 1, [time for _, time, _ in stages]
        crossed = [before for before, _, _ in stages]
        tails = [sum(times[at:]) + sum(crossed[at + 1 :]) for at in range(len(stages))]
        return max(
            max(
                2 * (tails[at] - time) + (micro_batches - last + at) * time,
                micro_batches * time,
                -(-micro_batches // (last - at + 1)) * tails[at],
            )
            + max(tails[0] - tails[at] + stages[0][2], own)
            for at, (_, time, own) in enumerate(stages)
        )

    return min(map(step, plans(0, total)))


@settings(max_examples=so_many(200), deadline=None, suppress_health_check=QUIET)
@given(st.data(), st.integers(9, 40))
def test_whatever_is_settled_on_the_way_no_bound_is_above_the_shortest_step(
    data: st.DataObject, micro_batches: int
) -> None:
    """Stages whose least times are too low at first, and rise as they are settled.

    What first ones do once a step is charged to their passes, as it is wherever it counts (``ExecutedStages``).
    """
    stages = _stages(_even(2, micro_batches, Goal.STEP_TIME))
    line, atoms = stages.line, 4
    shape = len(line.sizes), atoms + 1, atoms + 1
    true, low = np.full(shape, FORBIDDEN), np.full(shape, FORBIDDEN)
    once = np.zeros(shape, dtype=np.int64)
    for size, first, stop in np.ndindex(*shape):
        if first < stop:
            time = data.draw(st.integers(3_000, 6_000)) * (stop - first) // line.sizes[size]
            true[size, first, stop] = time
            low[size, first, stop] = time * data.draw(st.sampled_from([100, 100, 97, 90, 70])) // 100
            once[size, first, stop] = data.draw(st.sampled_from([0, 100, 8_000]))
    crossing = np.full((len(line.sizes), atoms + 1), data.draw(st.sampled_from([0, 0, 500, 4_000])))
    crossing[:, 1:atoms] += data.draw(st.sampled_from([0, 1_000]))
    of = {
        int(seat): size for size in range(len(line.sizes)) for seat in np.unique(line.seat[:, size]) if seat >= 0
    }
    known = {seat: low[size].copy() for seat, size in of.items()}

    class Times:
        def least(self, seat: int, slot: int) -> NDArray[np.int64]:
            found = known[seat].copy()
            found[0] += np.where(found[0] < FORBIDDEN, once[of[seat], 0] // micro_batches, 0)
            return found

        def ended(self, seat: int, slot: int) -> NDArray[np.int64]:
            return np.where(known[seat] < FORBIDDEN, known[seat] + once[of[seat]], FORBIDDEN)

        def leave_out(self, most: int) -> bool:
            changed = False
            for seat, row in known.items():
                late = (row < FORBIDDEN) & (micro_batches * np.minimum(row, most) + once[of[seat]] >= most)
                changed, row[late] = changed or bool(late.any()), FORBIDDEN
            return changed

        def settle(self, cell: Cell, slot: int, limit: int) -> bool:
            seat, at = int(line.seat[cell.x, cell.size]), (cell.first, cell.stop)
            before = int(known[seat][at])
            known[seat][at] = max(before, min(int(true[cell.size][at]), limit))
            return int(known[seat][at]) > before

    counted = CountedStages(
        line,
        atoms,
        np.array(line.sizes),
        tuple(tuple(seat for seat, one in of.items() if one == size) for size in range(len(line.sizes))),
        crossing[None],
        np.zeros(len(line.sizes), dtype=np.int64),
        (1, min(atoms, line.devices // min(line.sizes))),
        lambda slot: slot + 1,
        cast("ReducedStages", Times()),
    )
    best = _shortest(true, once, crossing, line.sizes, line.devices, micro_batches)
    upper = best + data.draw(st.integers(1, best // 8))
    search = ByCount(counted, micro_batches, True, lambda _: None, lambda *_: None, lambda _: None, NEVER, upper)
    search.begin()
    while search.step():
        pass
    assert search.bound <= best
    assert crossing.any() or best <= search.bound * 11 // 10  # ways through all stages were looked at


@pytest.mark.slow
@pytest.mark.parametrize(("many", "micro_batches"), [(0, 4), (3, 2)])
def test_what_is_too_much_to_list_stays_open_in_the_shortest_interval(many: int, micro_batches: int) -> None:
    instance = _even(2, micro_batches, Goal.STEP_TIME, macs=4)
    assert 0 < max(instance.forward_ns[0]) < 20
    truth = exhaustive.solve(instance)
    search = ByStep(instance, _stages(instance), (truth.objective or 0) + 1)
    with mock.patch("pipecut.solvers.reduce.executed.compositions.MOST", many):
        search.begin()
        while search.step():
            pass
    assert 0 < search.bound <= (truth.objective or 0)
