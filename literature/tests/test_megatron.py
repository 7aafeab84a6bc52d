"""Megatron's grid: which configurations there are, how they are cut and split, and what is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.modes import ONE_COPY
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers.reference import line_dp
from pipecut_literature.megatron import planner as megatron
from pipecut_literature.megatron.planner import Configuration
from tests.examples import UNIT, chain, instance_of, matrix, mesh
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(80))
limits = st.builds(
    Constraints,
    memory=st.booleans(),
    max_servers=st.sampled_from([None, 1, 2]),
    tensor_parallel_degrees=st.sampled_from([(), (1,), (2,), (1, 2)]),
    recompute=st.sampled_from(Recompute),
    placement=st.sampled_from(Placement),
    stages_at_most=st.sampled_from([None, 1, 2]),
)


def blocks(count, per_block=2, macs=10):
    """An embedding, so many blocks of matrices, and a head, in a chain."""
    inner = [matrix(f"h.{at}.m{one}", macs) for at in range(count) for one in range(per_block)]
    return chain([matrix("embed", 1), *inner, matrix("head", 1)], [4] * (count * per_block + 1))


def with_degrees(instance, *degrees, recompute=Recompute.NEVER):
    return replace(instance, constraints=Constraints(tensor_parallel_degrees=degrees, recompute=recompute))


def grid(instance):
    return [(one.tensor, one.pipeline, one.data, one.mode.recompute) for one in megatron.configurations(instance)]


@SLOW
@given(instance=instances(layer_graphs(6), cluster_graphs(5)), constraints=limits)
def test_what_is_returned_keeps_every_rule_and_nothing_else_is_claimed(instance, constraints):
    limited = replace(instance, constraints=constraints)
    outcome = checked(limited, megatron.solve(limited))
    assert outcome.blind_to == () and outcome.bound is None
    assert outcome.proof is (Proof.UNKNOWN if outcome.plan is None else Proof.FEASIBLE)
    plans = [megatron.plan_of(limited, one) for one in megatron.configurations(limited)]
    prices = [found.objective or 0 for found in (evaluate(limited, plan) for plan in plans) if found.feasible]
    assert outcome.objective == min(prices, default=None)


@SLOW
@given(instance=instances(layer_graphs(6), cluster_graphs(5)), degrees=st.sampled_from([(), (1,), (1, 2)]))
def test_every_plan_is_a_plan_on_all_devices_that_splits_inside_servers(instance, degrees):
    limited = with_degrees(instance, *degrees)
    for one in megatron.configurations(limited):
        plan = megatron.plan_of(limited, one)
        assert evaluate(limited, plan).violations == ()
        assert sum(stage.group.devices for stage in plan.stages) == limited.devices
        assert one.tensor * one.pipeline * one.data == limited.devices
        assert all(server.devices % one.tensor == 0 for server in limited.servers)


@SLOW
@given(instances(layer_graphs(6), cluster_graphs(5)))
def test_it_never_beats_the_optimum(instance):
    outcome, best = checked(instance, megatron.solve(instance)), line_dp.solve(instance)
    assert best.proof is Proof.OPTIMAL and best.bound is not None
    assert outcome.objective is not None and outcome.objective >= best.bound


def test_the_grid_of_two_servers_with_four_devices():
    instance = with_degrees(instance_of(blocks(8), mesh(4, 4)), 1, 2, 4, 8)
    assert grid(instance) == [
        *[(1, 1, 8, False), (4, 1, 2, False), (2, 1, 4, False)],
        *[(1, 2, 4, False), (4, 2, 1, False), (2, 2, 2, False)],
        *[(1, 4, 2, False), (2, 4, 1, False)],
        (1, 8, 1, False),
    ]
    assert [one.mode.replicas for one in megatron.configurations(instance)][:3] == [8, 2, 4]


def test_without_degrees_a_stage_is_split_or_copied_but_not_both():
    assert grid(instance_of(blocks(4), mesh(2, 2))) == [
        (1, 1, 4, False),
        (1, 2, 2, False),
        (2, 2, 1, False),
        (1, 4, 1, False),
    ]


def test_recomputing_doubles_the_grid_where_it_is_allowed():
    instance = with_degrees(instance_of(blocks(2), mesh(2)), 1, recompute=Recompute.ALLOWED)
    assert grid(instance) == [(1, 1, 2, False), (1, 1, 2, True), (1, 2, 1, False), (1, 2, 1, True)]


def test_blocks_are_shared_evenly_with_the_ends_on_the_outer_stages():
    instance = instance_of(blocks(4), mesh(4))
    assert [len(span) for span in megatron.block_spans(instance)] == [2] * 4
    assert megatron.stage_spans(instance, 2) == (Span(0, 5), Span(5, 10))
    assert megatron.stage_spans(instance, 4) == (Span(0, 3), Span(3, 5), Span(5, 7), Span(7, 10))
    assert megatron.stage_spans(instance, 3) == (Span(0, 5), Span(5, 7), Span(7, 10))
    with pytest.raises(ValueError, match="5 stages for 4 blocks"):
        megatron.stage_spans(instance, 5)


def test_layers_are_counted_where_names_show_no_blocks():
    instance = instance_of(chain([matrix(f"features.{at}") for at in range(7)], [1] * 6), mesh(2))
    assert megatron.stage_spans(instance, 2) == (Span(0, 4), Span(4, 7))


def test_a_pair_costs_two_all_reduces_and_nothing_between_its_halves():
    """Two matrices of 8 bytes in and out on 2 devices, 1 byte a ns: the second sums 8 bytes, the first its input's
    gradient: 2 * (1/2) * 8 ns each, and no time is lost between them."""
    layers = [matrix("a", taken=8, made=32), matrix("b", taken=32, made=8)]
    instance = with_degrees(instance_of(chain(layers, [32]), mesh(2)), 2)
    plan = megatron.plan_of(instance, Configuration(2, 1, 1, ONE_COPY))
    assert plan.stages[0].forms == (2, 1)
    assert evaluate(instance, plan).objective == 8 + 8


def test_the_best_of_the_grid_is_chosen_and_named():
    """Two blocks of 60 ns, cheap tensors, dear weights: two stages beat copies on both devices."""
    inner = [matrix(f"h.{at}.m{one}", 10, 1_000) for at in range(2) for one in range(2)]
    outcome = megatron.solve(instance_of(chain(inner, [1, 1, 1]), mesh(2)))
    assert outcome.objective == 60
    assert outcome.notes == (
        "t = 1, p = 2, d = 1",
        "3 of the 3 configurations that were tried keep the rules",
    )


def test_memory_is_seen():
    """Two stages are fastest; the first holds all weights (3 * 6000 bytes), of which half fits on a device."""
    weights = (3_000, 3_000, 0, 0)
    inner = [matrix(f"h.{at // 2}.m{at}", 10, one, made=1_000) for at, one in enumerate(weights)]
    graph = chain(inner, [1, 1, 1])

    def planned(memory_bytes):
        cluster = mesh(2, kind=replace(UNIT, memory_bytes=memory_bytes))
        return megatron.solve(replace(instance_of(graph, cluster), constraints=Constraints(memory=True)))

    wide, tight, hopeless = planned(30_000), planned(17_000), planned(10)
    assert wide.notes == ("t = 1, p = 2, d = 1", "3 of the 3 configurations that were tried keep the rules")
    assert tight.notes == ("t = 2, p = 1, d = 1", "1 of the 3 configurations that were tried keep the rules")
    assert wide.objective is not None and tight.objective is not None and wide.objective < tight.objective
    assert hopeless.plan is None and hopeless.proof is Proof.UNKNOWN
    assert hopeless.notes == ("0 of the 3 configurations that were tried keep the rules",)


def test_goals_are_minded_in_their_order():
    """Two stages of 60 ns, four micro-batches: a step of 120 + 3 * 60 ns; the bottleneck alone would be 60."""
    training = Training(global_batch=4, micro_batches=4, schedule=Schedule.ONE_F_ONE_B)
    inner = [matrix(f"h.{at}.m{one}", 10, 10**6, taken=500, made=500) for at in range(2) for one in range(2)]
    instance = instance_of(chain(inner, [0, 0, 0]), mesh(2), training=training)
    for goals, expected in (((Goal.ITERATION_TIME, Goal.STAGES), 300), ((Goal.BOTTLENECK,), 60)):
        assert megatron.solve(replace(instance, goals=goals)).objective == expected
    assert megatron.solve(replace(instance, goals=(Goal.STAGES, Goal.ITERATION_TIME))).objective == 1


def test_it_ends_when_it_is_told_to():
    outcome = megatron.solve(instance_of(blocks(2), mesh(2)), Limits(stopped=lambda: True))
    assert outcome.plan is None and outcome.notes == ("0 of the 0 configurations that were tried keep the rules",)


def test_a_configuration_that_does_not_fit_the_cluster_is_refused():
    with pytest.raises(ValueError, match="t = 3, p = 1, d = 1 does not take 2 devices"):
        megatron.plan_of(instance_of(blocks(2), mesh(2)), Configuration(3, 1, 1, ONE_COPY))
