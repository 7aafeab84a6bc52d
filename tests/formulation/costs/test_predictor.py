"""What a device takes for its part of a layer: by hand, in units, and the laws that bounds rest on."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.predictor import curves
from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.predictor.layer_times import Predictor, Share
from pipecut.formulation.predictor.roofline import Product, Roofline, Work
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.layers import Layer, Split
from pipecut.formulation.problem.options import Compute, CostModel, Samples, StageTime
from pipecut.formulation.problem.training import Training
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import instances

TERA = 10**12
CARD = DeviceClass("card", 1 << 30, 100 * TERA, memory_bytes_per_second=TERA)
PRODUCT = Product(1, 1_000, 2_000, read_bytes=4_000, written_bytes=8_000)
LINEAR = replace(matrix("linear", 2_000_000, weights=8_000_000, taken=4_000, made=8_000), work=Work((PRODUCT,)))
MOVED = Work(kernels=1, read_bytes=8_000, written_bytes=8_000)
RELU = Layer("relu", "ReLU", Split.FOLLOW, 0, 8_000, 8_000, 0, 0, work=MOVED)
PLAIN = Roofline(largest=Fraction(1, 2), outer=0, inner=0, memory=Fraction(1), kernel_ns=0)
QUARTER = Share(Fraction(1, 4), Fraction(1))

shares = st.tuples(st.integers(1, 6), st.integers(1, 3)).map(
    lambda pair: Share(Fraction(1, pair[0] * pair[1]), Fraction(1, pair[0]))
)
forms = st.sampled_from([0, 1, 2])


def predictor(samples: int, constants: Roofline = PLAIN) -> Predictor:
    return Predictor(Training(samples, 1), CostModel(compute=Compute.ROOFLINE, roofline=constants), 4)


def test_a_large_product_takes_its_flops_at_a_share_of_the_peak() -> None:
    """2 x 10,000 x 1,000 x 2,000 FLOP at 50 TFLOP/s: 800 us; its 128 MB take 128 us, so they hide."""
    assert predictor(10_000).passes_ns(LINEAR, CARD) == (800_000, 1_600_000)


def test_a_small_product_takes_the_bytes_of_its_weights() -> None:
    """One sample: 8 MB of weights and 12 kB of activations at 1 TB/s; its 4 MFLOP take 80 ns."""
    assert predictor(1).passes_ns(LINEAR, CARD) == (8_012, 2 * 8_012)


def test_no_kernel_is_shorter_than_the_floor() -> None:
    slow = replace(PLAIN, kernel_ns=5_000)
    assert predictor(1, slow).passes_ns(RELU, CARD) == (5_000, 5_000)
    assert predictor(1000, slow).passes_ns(RELU, CARD) == (16_000, 24_000)


def test_what_products_count_larger() -> None:
    """(10,000 + 100)(1,000 + 50)(2,000 + 100) in place of 10,000 x 1,000 x 2,000."""
    found, _ = predictor(10_000, replace(PLAIN, outer=100, inner=50)).passes_ns(LINEAR, CARD)
    assert found == 2 * 10_100 * 1_050 * 2_100 // 50_000


def test_forms_change_the_sizes() -> None:
    """A quarter of the rows or columns is a quarter of the time; of the input, 250 + 100 are summed, not 275."""
    of = predictor(10_000, replace(PLAIN, inner=100))
    rows, inner, columns = (of.passes_ns(LINEAR, CARD, form, QUARTER)[0] for form in (0, 1, 2))
    assert rows == columns == 800_000 // 4 * 11 // 10
    assert inner == 2 * 10_000 * (250 + 100) * 2_000 // 50_000


def test_data_that_lie_whole_are_worked_on_by_every_device() -> None:
    by_form = [predictor(1000).passes_ns(RELU, CARD, form, QUARTER)[0] for form in (0, 1, 2)]
    assert by_form == [4_000, 16_000, 4_000]


def test_a_graph_without_sizes_has_one_share_of_the_peak() -> None:
    found, _ = predictor(10_000).passes_ns(replace(LINEAR, work=None), CARD)
    assert found == -(-2 * 10_000 * 2_000_000 // 60_000)


def test_frozen_weights_have_no_gradient() -> None:
    times = [replace(predictor(10_000), products={"linear": one}).passes_ns(LINEAR, CARD) for one in (0, 1, 2)]
    assert times == [(800_000, one * 800_000) for one in (0, 1, 2)]


def test_all_micro_batches_but_the_first_add_their_gradients() -> None:
    """8 MB of gradients, twice read and once written at 1 TB/s, in three of four micro-batches: 18 us each."""
    once, often = predictor(10_000), replace(predictor(10_000), training=Training(40_000, 4))
    assert once.passes_ns(LINEAR, CARD) == (800_000, 1_600_000)
    assert often.passes_ns(LINEAR, CARD) == (800_000, 1_618_000)
    assert often.passes_ns(LINEAR, CARD, 2, QUARTER)[1] == 400_000 + 18_000 // 4, "of its own columns"
    assert often.passes_ns(LINEAR, CARD, 0, QUARTER)[1] == 400_000 + 18_000, "of all weights"
    unsized = replace(LINEAR, work=None)
    more = often.passes_ns(unsized, CARD)[1] - once.passes_ns(unsized, CARD)[1]
    assert abs(more - 18_000) <= 1
    frozen = replace(often, products={"linear": 0})
    assert frozen.passes_ns(LINEAR, CARD)[1] == 0


def test_by_the_peak_data_that_lie_whole_are_worked_on_by_every_device() -> None:
    join = replace(LINEAR, split=Split.JOIN, parameter_bytes=0)
    of = Predictor(Training(10_000, 1), CostModel(), 4)
    whole = of.passes_ns(join, CARD)
    assert [of.passes_ns(join, CARD, form, QUARTER) for form in (0, 2)] == [(whole[0] // 4, whole[1] // 4)] * 2
    assert of.passes_ns(join, CARD, 1, QUARTER) == whole
    assert of.passes_ns(LINEAR, CARD, 1, QUARTER)[0] == whole[0] // 4, "a product sums a part of its input"
    overlapping = replace(of, cost=CostModel(stage_time=StageTime.OVERLAP, samples=Samples.FRACTIONS))
    assert overlapping.passes_ns(join, CARD, 1, QUARTER) == (whole[0] // 4, whole[1] // 4)
    measured = replace(join, measured=(Measured("card", 10_000, 800, 1_600),))
    assert of.passes_ns(measured, CARD, 1, QUARTER) == (800, 1_600)
    assert of.passes_ns(measured, CARD, 2, QUARTER) == (200, 400)


CURVE = (
    Measured("card", 2, 100, 300),
    Measured("card", 4, 160, 400),
    Measured("card", 4, 90, 240, width=2),
)


@pytest.mark.parametrize(
    ("samples", "shard", "forward"),
    [
        (2, 1, 100),
        (3, 1, 130),
        (1, 1, 50),
        (8, 1, 320),
        (4, Fraction(1, 2), 90),
        (4, Fraction(3, 4), 125),
        (4, Fraction(1, 4), 45),
        (2, Fraction(3, 4), Fraction(145, 2)),
    ],
)
def test_between_measured_sizes_times_lie_on_lines(samples, shard, forward) -> None:
    part = Fraction(samples), Fraction(shard)
    assert curves.at(CURVE, *part)[0] == forward


@given(instances(), shares, forms)
def test_no_share_takes_less_than_its_part_nor_more_than_all(instance, share, form) -> None:
    for device in instance.device_classes:
        for layer in instance.layers:
            within(instance.predictor, layer, device, form, share)


sizes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 900))


@given(st.lists(sizes, min_size=2, max_size=5, unique_by=lambda row: row[:2]), st.integers(1, 9), shares, forms)
def test_no_share_of_a_curve_takes_less_than_its_part_nor_more_than_all(rows, samples, share, form) -> None:
    curve = tuple(Measured("card", size, time, 2 * time, width) for size, width, time in rows)
    within(predictor(samples), replace(LINEAR, measured=curve), CARD, form, share)


def within(of: Predictor, layer: Layer, device: DeviceClass, form: int, share: Share) -> None:
    found = of.passes_ns(layer, device, form, share)
    least, most = of.least_ns(layer, device), of.most_ns(layer, device)
    assert all(time >= share.device * low for time, low in zip(found, least, strict=True))
    assert all(time <= high for time, high in zip(found, most, strict=True))


def test_overlap_is_refused_where_forms_decide_about_computing() -> None:
    with pytest.raises(ValueError, match="stage_time 'overlap' needs compute 'peak'"):
        CostModel(compute=Compute.ROOFLINE, stage_time=StageTime.OVERLAP, samples=Samples.FRACTIONS)
    cluster = mesh(1)
    name = next(row["server"].device_class.name for _, row in cluster.nodes(data=True) if "server" in row)
    curved = replace(matrix("a", 10), measured=tuple(Measured(name, size, 1, 1) for size in (1, 2)))
    with pytest.raises(ValueError, match="layer a is measured in several sizes"):
        instance_of(
            chain([curved], []), cluster, CostModel(stage_time=StageTime.OVERLAP, samples=Samples.FRACTIONS)
        )


@pytest.mark.parametrize("wrong", [{"largest": Fraction(0)}, {"memory": Fraction(2)}, {"kernel_ns": -1}])
def test_constants_out_of_range_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match=f"roofline.{next(iter(wrong))}"):
        Roofline(**wrong)
