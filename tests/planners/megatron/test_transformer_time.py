"""Predicted times of transformers: hand-made numbers, laws that hold whatever the machine, and refusals."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planners.common.accelerator import Accelerator, efficiency_for
from planners.megatron.transformer import LayerRecompute, TransformerShape, layer_flops
from planners.megatron.transformer_step import TrainingRun, durations_of, predict, whole_ns
from planners.megatron.transformer_time import LayerSetting, Passes, all_reduce_s, layer_passes

SHAPE = TransformerShape(8, 256, 4, 128, 1000)
FREE = Accelerator("no links", 10**12, Fraction(1, 2))
MACHINE = replace(
    FREE, memory_bytes_per_second=2 * 10**12, near_bytes_per_second=10**11, far_bytes_per_second=10**10
)
relaxed = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)


@st.composite
def layer_settings(draw: st.DrawFn, degree: int | None = None) -> LayerSetting:
    return LayerSetting(
        draw(st.integers(1, 3)),
        degree or draw(st.sampled_from([1, 2, 4, 8])),
        draw(st.booleans()),
        draw(st.sampled_from(LayerRecompute)),
        draw(st.booleans()),
    )


@st.composite
def runs(draw: st.DrawFn) -> TrainingRun:
    setting = draw(layer_settings(degree=8))
    ranks, chunks = draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1), (4, 2)]))
    replicas = draw(st.integers(1, 3))
    batch = setting.micro_batch * replicas * ranks * draw(st.integers(1, 3))
    return TrainingRun("run", SHAPE, setting, ranks, chunks, replicas, batch)


def total(passes: Passes) -> Fraction:
    return passes.forward_s + passes.backward_s + passes.recompute_s


def test_without_links_a_layer_takes_its_flops() -> None:
    passes = layer_passes(SHAPE, LayerSetting(2, 4, recompute=LayerRecompute.FULL), FREE)
    forward = Fraction(layer_flops(SHAPE, 2), 4 * 5 * 10**11)
    assert passes == Passes(forward, 2 * forward, forward)


def test_an_all_reduce_sends_twice_all_but_one_share() -> None:
    amount = 2 * 3 * 128 * 256
    assert all_reduce_s(SHAPE, LayerSetting(3, 4), MACHINE) == Fraction(amount * 2 * 3, 4 * 10**11)
    assert all_reduce_s(SHAPE, LayerSetting(3, 1), MACHINE) == 0


def test_the_traffic_between_products_by_hand() -> None:
    machine = replace(FREE, memory_bytes_per_second=10**9)
    tokens, scores = 128 * 256, 4 * 128 * 128
    seconds = (
        layer_passes(SHAPE, LayerSetting(1), machine).forward_s
        - layer_passes(SHAPE, LayerSetting(1), FREE).forward_s
    )
    assert seconds == Fraction((8 + 14 + 16) * tokens + 9 * scores, 10**9)
    divided = layer_passes(SHAPE, LayerSetting(1, 2), machine).forward_s
    divided -= layer_passes(SHAPE, LayerSetting(1, 2), FREE).forward_s
    assert divided == Fraction((8 + 14) * tokens, 10**9) + Fraction(16 * tokens + 9 * scores, 2 * 10**9)


def test_the_traffic_of_a_backward_pass_by_hand() -> None:
    machine = replace(FREE, memory_bytes_per_second=10**9)
    tokens, scores = 128 * 256, 4 * 128 * 128
    setting = LayerSetting(1, 2, sequence_parallel=True, recompute=LayerRecompute.SELECTIVE)
    found, free = (layer_passes(SHAPE, setting, one) for one in (machine, FREE))
    assert found.backward_s - free.backward_s == Fraction((12 + 10 + 12 + 24) * tokens + 11 * scores, 2 * 10**9)
    assert found.recompute_s - free.recompute_s == Fraction(9 * scores, 2 * 10**9), "the core only"


def test_what_a_backward_pass_waits_for_by_hand() -> None:
    """An all-reduce of 51.7 us beside weight gradients of 25.2 us (q, k, v) and 33.6 us (perceptron)."""
    machine = replace(FREE, near_bytes_per_second=19 * 10**8)
    eager = LayerSetting(1, 4, overlap_input_gradient=True)
    one = all_reduce_s(SHAPE, eager, machine)
    gradients = [Fraction(2 * 128 * width * 256**2, 4 * 5 * 10**11) for width in (3, 4)]
    products = layer_passes(SHAPE, eager, FREE).backward_s

    def waits(setting: LayerSetting) -> Fraction:
        return layer_passes(SHAPE, setting, machine).backward_s - products

    assert waits(replace(eager, overlap_input_gradient=False)) == 2 * one
    assert waits(eager) == 2 * one - sum(gradients)
    split = replace(eager, sequence_parallel=True)
    assert one / 2 < gradients[1], "the second reduce-scatter is hidden"
    assert waits(split) == one + (one / 2 - gradients[0]) > one


def test_the_ends_of_a_pipeline_by_hand() -> None:
    training = TrainingRun("run", SHAPE, LayerSetting(1, 8), 4, 1, 1, 4)
    durations = durations_of(training, FREE)
    layers = 2 * whole_ns(Fraction(layer_flops(SHAPE, 1), 8 * 5 * 10**11))
    head = whole_ns(Fraction(2 * 128 * 256 * 1000, 8 * 5 * 10**11))
    assert durations.forward_ns == pytest.approx((layers, layers, layers, layers + head), abs=2)
    assert durations.backward_ns == pytest.approx((2 * layers,) * 3 + (2 * layers + 2 * head,), abs=4)


def test_transfers_and_updates_by_hand() -> None:
    training = TrainingRun("run", SHAPE, LayerSetting(3, 8), 4, 1, 1, 12)
    amount = 2 * 3 * 128 * 256
    eighth, gather = Fraction(amount, 8 * 10**10), Fraction(7 * amount, 8 * 10**11)
    durations = durations_of(training, MACHINE)
    assert durations.activation_ns == durations.gradient_ns == (whole_ns(eighth + gather),) * 3
    split = replace(training, setting=LayerSetting(3, 8, sequence_parallel=True))
    assert durations_of(split, MACHINE).activation_ns == (whole_ns(eighth),) * 3
    table = SHAPE.vocabulary * SHAPE.hidden
    layers = 2 * SHAPE.layer_parameters
    shared = whole_ns(Fraction(2 * table, 8 * 10**10))
    assert durations.sync_ns == (shared, 0, 0, shared), "no replicas: only the embedding of both ends"
    ends, middle = (whole_ns(Fraction(40 * count, 8 * 2 * 10**12)) for count in (layers + table, layers))
    assert durations.optimizer_ns == (ends, middle, middle, ends)


@pytest.mark.parametrize(("degree", "bytes_per_second"), [(1, 8 * 10**10), (2, 4 * 10**10), (8, 10**10)])
def test_rings_of_a_node_share_its_adapters(degree: int, bytes_per_second: int) -> None:
    training = TrainingRun("run", SHAPE, LayerSetting(1, degree), 1, 1, 4, 4)
    parameters = SHAPE.layers * SHAPE.layer_parameters + SHAPE.vocabulary * SHAPE.hidden
    amount = Fraction(2 * 3 * 2 * parameters, 4 * degree)
    assert durations_of(training, MACHINE).sync_ns == (whole_ns(amount / bytes_per_second),)
    slow = replace(MACHINE, near_bytes_per_second=10**9)
    assert durations_of(training, slow).sync_ns == (whole_ns(amount / 10**9),), "no faster than inside the node"


@relaxed
@given(setting=layer_settings())
def test_laws_of_a_layer(setting: LayerSetting) -> None:
    passes = layer_passes(SHAPE, setting, MACHINE)
    eager = layer_passes(SHAPE, replace(setting, overlap_input_gradient=True), MACHINE)
    patient = layer_passes(SHAPE, replace(setting, overlap_input_gradient=False), MACHINE)
    assert total(eager) <= total(patient)
    times = [total(layer_passes(SHAPE, replace(setting, recompute=one), MACHINE)) for one in LayerRecompute]
    assert times == sorted(times), "none, selective, full"
    assert total(layer_passes(SHAPE, setting, replace(MACHINE, efficiency=Fraction(3, 4)))) < total(passes)
    assert total(layer_passes(SHAPE, setting, FREE)) < total(passes)
    whole = layer_passes(SHAPE, replace(setting, sequence_parallel=False), MACHINE)
    split = layer_passes(SHAPE, replace(setting, sequence_parallel=True), MACHINE)
    assert split.forward_s <= whole.forward_s


@relaxed
@given(training=runs())
def test_laws_of_a_step(training: TrainingRun) -> None:
    step = predict(training, MACHINE)
    assert step.iteration_ns > step.closed_form_ns, "ends, transfers and the update come on top"
    assert step.bubble >= 0
    assert predict(training, replace(MACHINE, far_bytes_per_second=10**11)).iteration_ns <= step.iteration_ns
    assert predict(training, replace(MACHINE, efficiency=Fraction(1))).iteration_ns < step.iteration_ns
    more = replace(training, replicas=2 * training.replicas, global_batch=2 * training.global_batch)
    assert predict(more, MACHINE).iteration_ns > step.iteration_ns, "a longer all-reduce"


def test_one_rank_does_one_thing_after_another() -> None:
    training = TrainingRun("run", SHAPE, LayerSetting(1, 8, recompute=LayerRecompute.FULL), 1, 1, 2, 6)
    durations = durations_of(training, MACHINE)
    passes = durations.forward_ns[0] + durations.backward_ns[0] + durations.recompute_ns[0]
    expected = 3 * passes + durations.sync_ns[0] + durations.optimizer_ns[0]
    assert predict(training, MACHINE).iteration_ns == expected
    parameters = SHAPE.layers * SHAPE.layer_parameters + SHAPE.vocabulary * SHAPE.hidden
    assert durations.sync_ns[0] == whole_ns(Fraction(2 * parameters, 8 * 10**10)), "2 (d - 1) / d of 2 bytes each"


@relaxed
@given(steps=st.integers(1, 1000))
def test_an_efficiency_is_found_again(steps: int) -> None:
    setting = LayerSetting(4, 8)

    def predicted_ns(efficiency: Fraction) -> int:
        return whole_ns(layer_passes(SHAPE, setting, replace(MACHINE, efficiency=efficiency)).forward_s)

    published = predicted_ns(Fraction(steps, 1000))
    assert predicted_ns(efficiency_for(predicted_ns, published)) == published


def test_no_efficiency_is_above_the_peak() -> None:
    with pytest.raises(ValueError, match="predicted 10 ns at the peak, published 9 ns"):
        efficiency_for(lambda efficiency: int(10 / efficiency), 9)
    with pytest.raises(ValueError, match="efficiency is 0, expected above 0, at most 1"):
        replace(MACHINE, efficiency=Fraction(0))


def test_wrong_runs_are_refused() -> None:
    setting = LayerSetting(2, 8)
    with pytest.raises(ValueError, match="odd: 8 layers do not divide among 3 stages"):
        TrainingRun("odd", SHAPE, setting, 3, 1, 1, 6)
    with pytest.raises(
        ValueError, match="odd: a batch of 6 does not divide into micro-batches of 2 on 2 replicas"
    ):
        TrainingRun("odd", SHAPE, setting, 2, 1, 2, 6)
    with pytest.raises(ValueError, match="odd: 4 devices for each stage on nodes of 8"):
        durations_of(TrainingRun("odd", SHAPE, replace(setting, tensor_parallel_degree=4), 2, 1, 1, 4), MACHINE)
