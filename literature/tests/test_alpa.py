"""Alpa's dynamic programme: against every plan of its own objective, by hand, and on any instance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.amounts import exact_duration
from pipecut.formulation.outcome import Proof, checked
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.reference import line_dp
from pipecut_literature.alpa import planner as alpa
from tests.examples import GIGA, chain, instance_of, matrix, mesh
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(80))


def every_plan(total, devices, sizes):
    """Every way to cut layers and to give the stages submeshes that use up all devices."""
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(range(1, total), count) for count in range(total)
    ):
        spans = list(itertools.pairwise((0, *cuts, total)))
        for given_ in itertools.product(sizes, repeat=len(spans)):
            if sum(given_) == devices:
                yield list(zip(spans, given_, strict=True))


def step(plan, times, micro_batches):
    spent = [int(times[n][span]) for span, n in plan]
    return sum(spent) + (micro_batches - 1) * max(spent)


@st.composite
def tables(draw, sizes=(1, 2, 4)):
    """Any times at all of spans, by submesh: also such as no layers could have."""
    total = draw(st.integers(1, 5))
    times = {}
    for n in sizes:
        table = np.full((total, total + 1), FORBIDDEN, dtype=np.int64)
        for first, stop in itertools.combinations(range(total + 1), 2):
            table[first, stop] = draw(st.integers(0, 40))
        times[n] = table
    return times


@settings(SLOW, max_examples=so_many(300))
@given(tables(), st.integers(1, 6), st.integers(1, 5), st.sampled_from([0, 0, 1, 3, 10]))
def test_against_every_plan_of_its_own_objective(times, devices, micro_batches, epsilon):
    total = len(next(iter(times.values())))
    best = min(
        (step(plan, times, micro_batches) for plan in every_plan(total, devices, tuple(times))), default=None
    )
    if best is None:
        with pytest.raises(ValueError, match=f"use all {devices} devices"):
            alpa.least_step(times, devices, micro_batches, epsilon)
        return
    found, stages = alpa.least_step(times, devices, micro_batches, epsilon)
    plan = [((span.first, span.stop), n) for span, n in stages]
    assert plan in list(every_plan(total, devices, tuple(times)))
    assert found == step(plan, times, micro_batches)
    assert best <= found <= best + micro_batches * epsilon


@SLOW
@given(st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted), st.integers(0, 20))
def test_every_time_lies_at_most_epsilon_below_a_candidate(values, epsilon):
    kept = alpa.thinned(values, epsilon)
    assert set(kept) <= set(values)
    assert kept == sorted(kept)
    assert all(min(one for one in kept if one >= value) - value <= epsilon for value in values)
    assert all(later - one > epsilon for one, later in itertools.pairwise(kept))


@SLOW
@given(instances(layer_graphs(6), cluster_graphs(5)))
def test_plans_hold_on_any_instance(instance):
    outcome = checked(instance, alpa.solve(instance))
    assert (outcome.proof, outcome.bound) == (Proof.FEASIBLE, None)
    assert outcome.plan is not None and outcome.objective is not None
    assert sum(stage.group.devices for stage in outcome.plan.stages) == instance.devices
    optimum = line_dp.solve(instance).objective
    assert optimum is not None and outcome.objective >= optimum


def shape(outcome):
    return [(stage.span, stage.group.devices) for stage in outcome.plan.stages]


def single(name, macs):
    """A layer that no two devices should share: weights, input and output are all dear to sum."""
    return matrix(name, macs, weights=10**6, taken=10**6, made=10**6)


def test_one_micro_batch_gives_no_reason_for_balance():
    """Works of 300 | 60 | 60 | 300 ns that cannot be shared. One micro-batch takes 720 ns wherever the cut lies,
    and the first cut is taken; eight take 720 + 7 x 360 ns with the cut in the middle.
    """
    layers = chain([single("a", 100), single("b", 20), single("c", 20), single("d", 100)], [0, 0, 0])
    for micro_batches, step_ns, cut in ((1, 720, 1), (8, 720 + 7 * 360, 2)):
        training = Training(micro_batches, micro_batches=micro_batches)
        outcome = alpa.solve(instance_of(layers, mesh(2), training=training), epsilon_ns=0)
        assert outcome.notes[0].startswith(
            f"the recurrence expects a step of {exact_duration(step_ns)}; the evaluator "
        )
        assert shape(outcome) == [(Span(0, cut), 1), (Span(cut, 4), 1)]


def test_the_step_decides_and_not_the_bottleneck():
    """Two layers on four devices: 85 ns together, or 50 ns each on two. Which is better depends on the step."""
    table = {n: np.full((2, 3), FORBIDDEN, dtype=np.int64) for n in (1, 2, 4)}
    for n, (first, second, both) in {1: (80, 80, 160), 2: (50, 50, 100), 4: (45, 45, 85)}.items():
        table[n][0, 1], table[n][1, 2], table[n][0, 2] = first, second, both
    # 85 < 50 + 50, and 50 + 50 + 50 < 85 + 85. On three devices 80 + 50 in either order, as none may be idle.
    assert alpa.least_step(table, 4, 1, 0) == (85, [(Span(0, 2), 4)])
    assert alpa.least_step(table, 4, 2, 0) == (150, [(Span(0, 1), 2), (Span(1, 2), 2)])
    assert alpa.least_step(table, 3, 1, 0)[0] == 130


def test_epsilon_bounds_what_is_lost():
    table = {1: np.full((2, 3), FORBIDDEN, dtype=np.int64), 2: np.full((2, 3), FORBIDDEN, dtype=np.int64)}
    for n, (first, second, both) in {1: (100, 100, 200), 2: (109, 109, 109)}.items():
        table[n][0, 1], table[n][1, 2], table[n][0, 2] = first, second, both
    # 2 micro-batches: 200 + 100 apart, 109 + 109 = 218 together.
    assert alpa.least_step(table, 2, 2, 0)[0] == 218
    assert alpa.least_step(table, 2, 100, 0)[0] == 200 + 99 * 100
    assert alpa.thinned([100, 109, 200], 10) == [109, 200]
    # With epsilon 10 the candidate 109 stands for 100 as well, and the smallest sum below it wins: 109 alone.
    assert alpa.least_step(table, 2, 100, 10)[0] == 109 + 99 * 109


def test_any_number_of_micro_batches_is_a_number():
    table = {1: np.array([[FORBIDDEN, 10**12]], dtype=np.int64)}
    assert alpa.least_step(table, 1, 10**9, 0) == (10**21, [(Span(0, 1), 1)])


def test_submeshes_are_powers_of_two_in_a_server_or_whole_servers():
    layers = chain([single("a", 1)], [])
    assert sorted(alpa.submeshes(instance_of(layers, mesh(4, 4, 4, between=Link(GIGA))))) == [1, 2, 4, 8, 12]
    assert sorted(alpa.submeshes(instance_of(layers, mesh(3, 3)))) == [1, 2, 3, 6]
    assert sorted(alpa.submeshes(instance_of(layers, mesh(8)))) == [1, 2, 4, 8]
    assert sorted(alpa.submeshes(instance_of(layers, mesh(1, 1, 1)))) == [1, 2, 3]
    # Servers that are not alike count as one.
    assert sorted(alpa.submeshes(instance_of(layers, mesh(2, 1, 2, 1)))) == [1, 2, 4, 6]


def test_links_between_servers_are_for_several_servers_only():
    """Weights of 60 bytes summed over two devices of a server, at 1 ns a byte; over two servers, at 8 ns."""
    layers = chain([matrix("a", 100, weights=60, taken=10**4, made=10**4)], [])
    instance = instance_of(layers, mesh(2, 2, between=Link(GIGA)))
    views = alpa.submeshes(instance)
    assert [int(views[n].times.time[views[n].kinds[n]][0, 1]) for n in (1, 2, 4)] == [300, 150 + 60, 75 + 8 * 90]
    assert shape(alpa.solve(instance)) == [(Span(0, 1), 4)]


def test_an_epsilon_below_zero_is_refused():
    with pytest.raises(ValueError, match="epsilon is -1 ns"):
        alpa.solve(instance_of(chain([single("a", 1)], []), mesh(1)), epsilon_ns=-1)
