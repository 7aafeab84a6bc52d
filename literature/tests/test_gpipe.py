"""GPipe's cells: the least variance there is, by hand and against every way to cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.reference import line_dp
from pipecut_literature.gpipe import planner as gpipe
from tests.examples import BYTE_LINK, GIGA, UNIT, chain, instance_of, matrix, mesh
from tests.generators import instances, layer_graphs
from tests.laws import so_many

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))


def squares(costs, ends):
    return sum(sum(costs[first:stop]) ** 2 for first, stop in itertools.pairwise(ends))


@settings(SLOW, max_examples=so_many(300))
@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.data())
def test_no_way_to_cut_has_less_variance(costs, data):
    cells = data.draw(st.integers(1, len(costs)))
    found = gpipe.least_variance(costs, cells)
    every = [(0, *cuts, len(costs)) for cuts in itertools.combinations(range(1, len(costs)), cells - 1)]
    assert found in every
    best = min(squares(costs, ends) for ends in every)
    assert squares(costs, found) == best
    # Among equals the earliest last cut, then the earliest before it, wins.
    assert found == min((ends for ends in every if squares(costs, ends) == best), key=lambda ends: ends[::-1])


@SLOW
@given(instances(layer_graphs(7)))
def test_plans_hold_on_any_instance(instance):
    outcome = checked(instance, gpipe.solve(instance))
    assert (outcome.proof, outcome.bound) == (Proof.FEASIBLE, None)
    assert outcome.plan is not None and outcome.objective is not None
    assert len(outcome.plan) == min(instance.devices, len(instance.layers))
    assert all(stage.group.devices == 1 for stage in outcome.plan.stages)
    optimum = line_dp.solve(instance).objective
    assert optimum is not None and outcome.objective >= optimum


def work(*macs):
    return chain([matrix(f"m{at}", one) for at, one in enumerate(macs)], [0] * (len(macs) - 1))


def spans(outcome):
    return [stage.span for stage in outcome.plan.stages]


def test_even_work_is_cut_evenly():
    """Forward 1 and backward 2 ns for each MAC: three cells of 12, 12 and 12 ns."""
    outcome = gpipe.solve(instance_of(work(1, 3, 4, 2, 2), mesh(3)))
    assert spans(outcome) == [Span(0, 2), Span(2, 3), Span(3, 5)]
    assert outcome.objective == 12


def test_least_variance_is_not_the_least_maximum():
    """Cells of 8 | 3 | 4 have squares of 89 in all; 1 | 7 | 7 have a lower maximum, and squares of 99."""
    instance = instance_of(work(1, 7, 3, 1, 3), mesh(3))
    outcome = gpipe.solve(instance)
    assert spans(outcome) == [Span(0, 2), Span(2, 3), Span(3, 5)]
    assert outcome.objective == 3 * 8
    even = Plan(tuple(Stage(Span(*ends), Group(((0, 1),)), (0,) * (ends[1] - ends[0])) for ends in LEAST))
    assert evaluate(instance, even).objective == 3 * 7


LEAST = ((0, 1), (1, 2), (2, 5))


def test_fewer_layers_than_devices():
    outcome = gpipe.solve(instance_of(work(1, 1), mesh(4)))
    assert spans(outcome) == [Span(0, 1), Span(1, 2)]


def test_it_does_not_see_transfers_or_that_devices_differ():
    """3 | 3 on devices of speed 2 and 1, although the cut in the middle costs 100 ns each way."""
    layers = chain([matrix(name, 10) for name in "abcdef"], [0, 0, 100, 0, 0])
    fast = DeviceClass("fast", 1 << 40, 2 * GIGA)
    cluster = cluster_graph("mixed", [Server("f", fast, 1), Server("u", UNIT, 1)], [("f", "u", BYTE_LINK)])
    outcome = gpipe.solve(instance_of(layers, cluster))
    assert spans(outcome) == [Span(0, 3), Span(3, 6)]
    assert outcome.objective == 200
    assert "the largest estimated cell is 90 ns; the evaluator finds 200 ns" in outcome.notes


def test_cells_that_cannot_be():
    with pytest.raises(ValueError, match="3 cells of 2 layers"):
        gpipe.least_variance([1, 1], 3)
    with pytest.raises(ValueError, match="0 cells of 2 layers"):
        gpipe.least_variance([1, 1], 0)
