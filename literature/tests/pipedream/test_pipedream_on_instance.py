"""PipeDream's two optimisers on an instance: what goes into their model, and what comes back as a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from pipecut.formulation.outcome import Proof, checked
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.options import Boundary, CostModel
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.reference import line_dp
from pipecut_literature.common.downsets import TooManyDownsetsError
from pipecut_literature.pipedream import planner as pipedream
from pipecut_literature.pipedream.code import MachineLevel, PipeDreamStage
from pipecut_literature.pipedream.paper import price
from pipecut_literature.pipedream.states import antichain_states
from tests.examples import GIGA, PLAIN, chain, instance_of, join, matrix, mesh
from tests.expected import expected_ns
from tests.generators import cluster_graphs, divisible, instances, layer_graphs
from tests.laws import so_many

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(80))
BOTH = pytest.mark.parametrize("solve", [pipedream.solve, pipedream.solve_code])


def shape(outcome):
    return [(stage.span, stage.group.devices) for stage in outcome.plan.stages]


def believed(outcome):
    (note,) = (note for note in outcome.notes if "expects" in note)
    return expected_ns(note)


def work(*macs, sizes=None, weights=10**6):
    layers = [matrix(f"m{at}", one, weights=weights) for at, one in enumerate(macs)]
    return chain(layers, sizes or [0] * (len(macs) - 1))


@BOTH
@SLOW
@given(instance=instances(layer_graphs(6), cluster_graphs(5)).filter(divisible))
def test_plans_hold_on_any_instance(solve, instance):
    outcome = checked(instance, solve(instance))
    assert (outcome.proof, outcome.bound) == (Proof.FEASIBLE, None)
    assert outcome.plan is not None and outcome.objective is not None
    # PipeDream uses every machine, and a stage is replicated, never split, where its layers allow that.
    assert sum(stage.group.devices for stage in outcome.plan.stages) == instance.devices
    for stage in outcome.plan.stages:
        for layer, form in zip(stage.span.layers, stage.forms, strict=True):
            assert form == 0 or 0 not in instance.layers[layer].allowed_forms
    optimum = line_dp.solve(instance).objective
    assert optimum is not None and outcome.objective >= optimum


@SLOW
@given(instances(layer_graphs(7)))
def test_the_program_finds_every_prefix(instance):
    """With one source, as every layer is tied to what is before it, a cut may be made behind any layer."""
    states = pipedream.prefixes(antichain_states(pipedream.profile_of(instance)))
    assert [mask.bit_count() for mask in states.layers] == list(range(1, len(instance.layers) + 1))
    row = pipedream.row_of(instance)
    for at, crossing in enumerate(row.crossing_bytes[:-1]):
        # Counted as whole outputs and with what lies inside, never less than what crosses the cut.
        assert states.output_bytes[at] >= crossing
    assert float(states.compute_s[-1]) == pytest.approx(sum(row.compute_s))
    assert float(states.weight_bytes[-1]) == sum(row.weight_bytes)


@SLOW
@given(instances(layer_graphs(6)))
def test_the_paper_believes_the_price_of_its_own_plan(instance):
    """On one server: the plan on the line, put back into the paper's equations, has the period it believed."""
    levels = pipedream.levels_of(instance)
    outcome = pipedream.solve(instance)
    if len(levels) == 1 and outcome.plan is not None:
        stages = [PipeDreamStage(s.span.first, s.span.stop, s.group.devices) for s in outcome.plan.stages]
        period = price(pipedream.row_of(instance), levels, stages)
        expected = period * 1e9 / instance.training.micro_batches
        assert believed(outcome) == pytest.approx(expected, abs=0.51)


# --- what goes in -------------------------------------------------------------------------------------------


def test_levels_are_the_clusters():
    layers, slow = work(1), Link(GIGA)
    levels = pipedream.levels_of(instance_of(layers, mesh(2, 2, 2, between=slow)))
    assert levels == (MachineLevel(2, 1e9), MachineLevel(3, 1.25e8))
    assert pipedream.levels_of(instance_of(layers, mesh(1, 1, between=slow))) == (MachineLevel(2, 1.25e8),)
    assert pipedream.levels_of(instance_of(layers, mesh(3))) == (MachineLevel(3, 1e9),)
    # Servers that are not alike: one level, over the slowest link of all.
    assert pipedream.levels_of(instance_of(layers, mesh(2, 1, between=slow))) == (MachineLevel(3, 1.25e8),)


def test_a_minibatch_is_a_global_batch():
    layers = chain([matrix("a", 100, weights=7), matrix("b", 50)], [30])
    row = pipedream.row_of(instance_of(layers, mesh(2), training=Training(8, micro_batches=4)))
    assert row.compute_s == pytest.approx((300 * 8e-9, 150 * 8e-9))
    assert row.crossing_bytes == (30 * 8, 0)
    assert row.weight_bytes == (7, 0)


def test_the_program_counts_too_many_bytes_behind_a_branch():
    """a feeds b and c, which meet in d. Behind a, b, c only b and c cross; the program counts a, too."""
    rows = [matrix(name, 10, made=100) for name in "abc"] + [join("d")]
    edges = [(one, other, 100) for one, other in ("ab", "ac", "bd", "cd")]
    instance = instance_of(layer_graph("branch", rows, edges), mesh(2))
    states = pipedream.prefixes(antichain_states(pipedream.profile_of(instance)))
    assert list(states.output_bytes[:3]) == [100, 200, 300]
    assert pipedream.row_of(instance).crossing_bytes == (100, 200, 200, 0)


def test_a_layer_without_a_producer_is_not_lost():
    rows = [matrix("a", 10, made=5), matrix("b", 10, made=5), join("c")]
    graph = layer_graph("two inputs", rows, [("a", "c", 5), ("b", "c", 5)])
    profile = pipedream.profile_of(instance_of(graph, mesh(2)))
    assert profile.edges == ((0, 1), (0, 2), (1, 2))
    assert len(profile.planned().layers) == 3


# --- what comes out -----------------------------------------------------------------------------------------


@BOTH
def test_a_stage_is_replicated_where_its_weights_are_few(solve):
    """300 and 100 ns of work, hardly any weights in the first, a lot in the second: 3 - 1, as in the paper."""
    layers = chain([matrix("conv", 100, weights=1), matrix("fc", 33, weights=10**6)], [1])
    outcome = checked(instance := instance_of(layers, mesh(4)), solve(instance))
    assert shape(outcome) == [(Span(0, 1), 3), (Span(1, 2), 1)]
    assert believed(outcome) in (100, 101)
    # 34 + 67 ns of work, and 4/3 of a byte to sum on 3 devices, each rounded up.
    assert outcome.objective == 101 + 2


def test_the_paper_hides_the_all_reduce_and_the_program_adds_it():
    """One layer of 300 ns and 60 bytes on two devices: max(300, 2 x 60) / 2, and (300 + 4 x 60 / 2) / 2."""
    instance = instance_of(work(100, weights=60), mesh(2))
    paper, code = pipedream.solve(instance), pipedream.solve_code(instance)
    assert (believed(paper), believed(code)) == (150, 210)
    assert paper.objective == code.objective == 150 + 60


def test_gradients_are_summed_once_a_step():
    instance = instance_of(work(100, weights=60), mesh(2), training=Training(4, micro_batches=4))
    assert believed(pipedream.solve_code(instance)) == 150 + 60 // 4
    assert pipedream.solve_code(instance).objective == 150 + 60 // 4


def test_a_pipeline_that_servers_repeat_has_the_devices_of_all():
    """Two layers of 300 ns on two servers of two; weights too dear to replicate inside, links between are wide."""
    layers = work(100, 100, weights=400)
    cluster = mesh(2, 2, inside=Link(8 * GIGA), between=Link(800 * GIGA))
    instance = instance_of(layers, cluster)
    outcome = checked(instance, pipedream.solve(instance))
    assert "sees 2 levels: servers, and devices in each" in outcome.notes
    # Inside a server 300 by a straight pipeline; two servers repeat it: max(300, 2 x 800 bytes / 100) / 2.
    assert believed(outcome) == 150
    assert shape(outcome) == [(Span(0, 1), 2), (Span(1, 2), 2)]


def test_neither_sees_that_the_best_plan_leaves_a_device_idle():
    layer = matrix("a", 100, weights=10**6, taken=10**6, made=10**6)
    instance = instance_of(chain([layer], []), mesh(2))
    assert line_dp.solve(instance).objective == 300
    for solve in (pipedream.solve, pipedream.solve_code):
        assert shape(solve(instance)) == [(Span(0, 1), 2)]
        assert solve(instance).objective == 150 + 10**6


def test_neither_sees_that_a_layer_can_be_split():
    """Weights of a megabyte, an output of none: form 1 splits the weights for nothing."""
    instance = instance_of(work(100), mesh(2))
    assert line_dp.solve(instance).objective == 150
    for solve in (pipedream.solve, pipedream.solve_code):
        assert solve(instance).objective == 150 + 10**6


def test_both_charge_transfers_even_where_the_instance_does_not():
    """400 bytes behind the first layer, there and back; two stages all the same, as weights are dear."""
    layers = work(100, 100, sizes=[400])
    instance = instance_of(layers, mesh(2), CostModel(flops_per_mac=1, boundary=Boundary.NONE))
    for solve in (pipedream.solve, pipedream.solve_code):
        assert believed(solve(instance)) == 800
        assert solve(instance).objective == 300


@BOTH
def test_replicas_are_replicas_where_the_instance_knows_them(solve):
    layers = chain([matrix("conv", 100, weights=1), matrix("fc", 33, weights=10**6)], [1])
    constraints = Constraints(tensor_parallel_degrees=(1,))
    instance = replace(instance_of(layers, mesh(4)), constraints=constraints)
    outcome = checked(instance, solve(instance))
    assert outcome.proof is Proof.FEASIBLE and outcome.plan is not None
    assert [stage.group.replicas for stage in outcome.plan.stages] == [3, 1]
    assert outcome.objective == 101 + 2


def test_a_recurrence_too_long_is_refused(monkeypatch):
    """4 layers on 2 servers of 2: two levels of 4 x 4 ** 3 steps; the program's top level saves a factor of 4."""
    instance = instance_of(work(1, 1, 1, 1), mesh(2, 2))
    for solve, steps in ((pipedream.solve, 512), (pipedream.solve_code, 256 + 64)):
        monkeypatch.setattr(pipedream, "MOST_STEPS", steps)
        assert checked(instance, solve(instance)).plan is not None
        monkeypatch.setattr(pipedream, "MOST_STEPS", steps - 1)
        with pytest.raises(ValueError, match="PipeDream's recurrence would take"):
            solve(instance)


def test_a_graph_too_wide_to_walk_is_refused():
    ways = [matrix(f"w{at}", 1, made=1) for at in range(14)]
    edges = [("in", way.name, 1) for way in ways] + [(way.name, "out", 1) for way in ways]
    graph = layer_graph("wide", [matrix("in", 1, made=1), *ways, join("out")], edges)
    instance = instance_of(graph, mesh(2), PLAIN)
    with pytest.raises(TooManyDownsetsError, match="more than 4000 antichains"):
        pipedream.solve_code(instance)
    assert checked(instance, pipedream.solve(instance)).plan is not None
