"""What several devices hold alike and divide: ZeRO's own numbers, and what is sent for them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from pipecut.formulation.costs import times
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.costs.times import Shared
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cluster import Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, OnHost, Sharded
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import AllReduce, CostModel, Synchronisation
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import NOTHING, Link, Volume
from pipecut.formulation.timeline.from_plan import durations_of
from tests.examples import PLAIN, UNIT, chain, instance_of, matrix, mesh

BILLION = 10**9


def one_layer(weights: int, devices: int, cost: CostModel = PLAIN, training: Training | None = None) -> Instance:
    return instance_of(chain([matrix("a", weights=weights)], []), mesh(devices), cost, training)


def held(instance: Instance, mode: Mode, form: int = 0) -> Plan:
    return Plan((Stage(Span(0, 1), Group(((0, instance.devices),), mode), (form,)),))


@pytest.mark.parametrize(
    ("sharded", "tenths_of_gigabytes"),
    [(Sharded.NONE, 1200), (Sharded.OPTIMIZER, 314), (Sharded.GRADIENTS, 166), (Sharded.WEIGHTS, 18)],
)
def test_memory_is_that_of_zero(sharded: Sharded, tenths_of_gigabytes: int) -> None:
    """ZeRO, arXiv 1910.02054, Fig. 1: 7.5 billion parameters on 64 devices, 16 bytes each in mixed precision."""
    training = Training(64, precision=Precision.presets()["fp16-mixed"])
    instance = one_layer(4 * 75 * BILLION // 10, 64, training=training)
    parts = MemoryParts.of_stage(instance, held(instance, Mode(64, sharded=sharded)), 0)
    assert (parts.weights + parts.gradients + parts.optimizer) // (BILLION // 10) == tenths_of_gigabytes


@pytest.mark.parametrize(
    ("sharded", "sent"),
    [(Sharded.NONE, 2), (Sharded.OPTIMIZER, 2), (Sharded.GRADIENTS, 2), (Sharded.WEIGHTS, 3)],
)
def test_a_step_sends_as_much_as_zero_says(sharded: Sharded, sent: int) -> None:
    """ZeRO, §7: twice the model for copies and for stages 1 and 2, three times for stage 3; of it (n - 1) / n."""
    size = Fraction(1000)
    shared = Shared(8, size, size, size, AllReduce.RING)
    once, each, after = shared.once(sharded), shared.gathered(sharded), shared.scattered(sharded)
    assert once.amount_bytes + 2 * each.amount_bytes + after.amount_bytes == sent * size * Fraction(7, 8)
    assert Shared(1, size, size, size, AllReduce.RING).gathered(sharded) == NOTHING


def test_halves_of_both_kinds_of_sums_are_half() -> None:
    shared = Shared(4, Fraction(100), Fraction(60), Fraction(60), AllReduce.PLAIN)
    assert shared.once(Sharded.OPTIMIZER) == Volume(Fraction(60), 2)
    assert shared.gathered(Sharded.WEIGHTS) == Volume(Fraction(50), 1)
    ring = replace(shared, kind=AllReduce.RING)
    assert ring.once(Sharded.OPTIMIZER) == Volume(Fraction(90), 6)
    assert ring.gathered(Sharded.WEIGHTS) == Volume(Fraction(75), 3)


@pytest.mark.parametrize(
    ("sharded", "again", "expected", "beside"),
    [
        (Sharded.NONE, False, 50, 0),  # 2 * 3/4 of 100 bytes once in 3 micro-batches
        (Sharded.OPTIMIZER, False, 50, 0),
        (Sharded.GRADIENTS, False, 75 + 25, 20),  # gradients every time, new weights once
        (Sharded.WEIGHTS, False, 3 * 75, 35 + 70),  # weights forward and backward, gradients backward
        (Sharded.WEIGHTS, True, 4 * 75, 2 * 35 + 70),  # weights once more for the second forward pass
    ],
)
def test_times_of_a_layer_by_rows(sharded: Sharded, again: bool, expected: int, beside: int) -> None:
    """Beside passes of 40 and 80 ns only what takes longer than these counts; beside nothing all does."""
    instance = one_layer(100, 4, training=Training(global_batch=12, micro_batches=3))
    kind = GroupKind.of(instance, Group(((0, 4),), Mode(2, again, sharded)))
    assert times.inside_ns(instance, 0, 0, kind) == expected
    overlapped = replace(PLAIN, synchronisation=Synchronisation.OVERLAPPED)
    assert times.inside_ns(replace(instance, cost=overlapped), 0, 0, kind) == expected
    (layer,) = instance.model.layers
    working = replace(instance, model=replace(instance.model, layers=(replace(layer, macs=40),)))
    assert times.inside_ns(working, 0, 0, kind) == expected
    assert times.inside_ns(replace(working, cost=overlapped), 0, 0, kind) == beside


def test_a_shard_of_a_matrix_has_one_holder_a_replica() -> None:
    """Two replicas of two devices; by columns a device works with 50 of 100 bytes, and keeps 25 of them."""
    instance = one_layer(100, 4)
    plan = held(instance, Mode(2, sharded=Sharded.WEIGHTS), form=2)
    parts = MemoryParts.of_stage(instance, plan, 0)
    assert (parts.weights, parts.gradients, parts.optimizer, parts.working_set) == (25, 25, 25, 50 + 50)
    whole = MemoryParts.of_stage(instance, held(instance, Mode(1, sharded=Sharded.WEIGHTS), form=2), 0)
    assert (whole.weights, whole.working_set) == (25, 0)  # one replica: nobody holds the same, nothing is divided


def test_parts_are_rounded_up() -> None:
    instance = one_layer(100, 3)
    parts = MemoryParts.of_stage(instance, held(instance, Mode(3, sharded=Sharded.WEIGHTS)), 0)
    assert (parts.weights, parts.gradients, parts.optimizer) == (34, 34, 34)


def test_the_timeline_gathers_before_every_pass() -> None:
    instance = one_layer(100, 4)
    durations = durations_of(instance, held(instance, Mode(4, True, Sharded.WEIGHTS)))
    assert (durations.forward_ns, durations.recompute_ns, durations.backward_ns) == ((75,), (75,), (150,))
    assert durations.sync_ns == (0,)
    once = durations_of(instance, held(instance, Mode(4, False, Sharded.OPTIMIZER)))
    assert (once.forward_ns, once.backward_ns, once.sync_ns) == ((0,), (0,), (150,))


@pytest.mark.parametrize(
    ("sharded", "sent"),
    [(Sharded.NONE, 200), (Sharded.OPTIMIZER, 50), (Sharded.GRADIENTS, 50), (Sharded.WEIGHTS, 50)],
)
def test_a_host_gets_what_its_device_keeps_of_the_optimiser(sharded: Sharded, sent: int) -> None:
    """Four holders: 100 bytes of gradients there and of weights back, or a quarter of each. 1 byte takes 2 ns."""
    card = replace(UNIT, host_link=Link(4 * BILLION, 5))
    layers = chain([matrix("a", weights=100)], [])
    instance = instance_of(layers, mesh(4, kind=card))
    alone, on_host = (
        durations_of(instance, held(instance, Mode(4, sharded=sharded, optimizer_on_host=one))).sync_ns[0]
        for one in (False, True)
    )
    assert on_host - alone == 2 * sent + 2 * 5
    parts = MemoryParts.of_stage(instance, held(instance, Mode(4, sharded=sharded, optimizer_on_host=True)), 0)
    assert parts.optimizer == 0


def test_frozen_weights_need_no_host() -> None:
    frozen = replace(matrix("a", weights=100), trainable_bytes=0)
    instance = instance_of(chain([frozen], []), mesh(1, kind=replace(UNIT, host_link=Link(1, 5))))
    assert durations_of(instance, held(instance, Mode(optimizer_on_host=True))).sync_ns == (0,)


def test_the_slowest_way_to_a_host_counts() -> None:
    fast, slow = (replace(UNIT, name=str(rate), host_link=Link(rate * BILLION)) for rate in (8, 2))
    servers = [Server("f", fast, 1), Server("s", slow, 1)]
    cluster = cluster_graph("two", servers, [("f", "s", Link(8 * BILLION))])
    instance = instance_of(chain([matrix("a", weights=100)], []), cluster)
    plan = Plan((Stage(Span(0, 1), Group(((0, 1), (1, 1)), Mode(2, optimizer_on_host=True)), (0,)),))
    assert durations_of(instance, plan).sync_ns == (100 + 200 * 4,)


def test_a_host_that_nothing_is_known_of_is_not_asked() -> None:
    with pytest.raises(ValueError, match="optimizer_on_host: 'allowed' needs the link of every device"):
        replace(one_layer(100, 1), constraints=Constraints(optimizer_on_host=OnHost.ALLOWED))
    plan = Plan((Stage(Span(0, 1), Group(((0, 1),), Mode(optimizer_on_host=True)), (0,)),))
    found = evaluate(one_layer(100, 1), plan)
    words = "stage 0 keeps the optimiser on its host, constraints.optimizer_on_host is 'never'"
    assert [one.message for one in found.violations] == [words]


def test_a_stage_divides_only_what_it_may() -> None:
    instance = replace(one_layer(100, 2), constraints=Constraints(sharded=(Sharded.NONE, Sharded.OPTIMIZER)))
    found = evaluate(instance, held(instance, Mode(sharded=Sharded.WEIGHTS)))
    words = "stage 0 has sharded 'weights', constraints.sharded allows none, optimizer"
    assert [one.message for one in found.violations] == [words]
    alone = replace(one_layer(100, 1), constraints=Constraints(sharded=(Sharded.WEIGHTS,)))
    assert evaluate(alone, held(alone, Mode())).feasible
    found = evaluate(alone, held(alone, Mode(sharded=Sharded.WEIGHTS)))
    words = "stage 0 has sharded 'weights', a single device can only have none"
    assert [one.message for one in found.violations] == [words]


def test_a_list_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="sharded lists nothing, expected some of none, optimizer"):
        Constraints(sharded=())
