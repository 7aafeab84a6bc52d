"""The benchmark of scaling: its instances, its fits, and that its tables and picture say when time ran out."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.size import scaling, scaling_picture
from benchmarks.size.scaling import METHODS, Point, ScalingRow

AXIS = "layers, 8 devices"


def measured(power: float) -> list[ScalingRow]:
    """Return made-up measurements that follow a power law, the last of which ran out of time."""
    points = [Point(AXIS, size, size, 8, 1) for size in (8, 16, 32, 64)]
    rows = [ScalingRow(point, method, 0.01 * point.size**power) for point in points[:3] for method in METHODS]
    return [*rows, *(ScalingRow(points[3], method, 31.0, 20.0, "time") for method in METHODS)]


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_a_power_law_is_found_again(power: float) -> None:
    fit = scaling.exponent([one for one in measured(power) if one.method == "cpsat"])
    assert fit is not None and fit[0] == pytest.approx(power) and fit[1] == pytest.approx(1)


def test_two_points_make_no_law() -> None:
    two = [one for one in measured(1.0) if one.method == "cpsat"][:2]
    assert scaling.exponent(two) is None


def test_the_tables_say_where_time_ran_out() -> None:
    found = measured(1.0)
    rows = scaling.table(found).splitlines()
    assert len(rows) == 2 + 4 and all(row.count("|") == rows[0].count("|") for row in rows)
    assert rows[-1].count("> 31") == len(METHODS) and "> " not in rows[-2]
    assert "1.00 (1.00; 3)" in scaling.exponents(found)


def test_the_picture_holds_every_curve_and_its_end() -> None:
    picture = scaling_picture.draw(scaling.curves(measured(1.0), 20.0))
    root = ElementTree.fromstring(picture)  # noqa: S314 (our own text)
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(METHODS) <= set(texts) and "open triangle: no proof in 20 s" in texts
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 3 * len(METHODS)


@pytest.mark.slow
def test_instances_have_the_size_they_claim_and_methods_agree() -> None:
    pytest.importorskip("torch")
    point = Point("layers, 2 devices", 6, 6, 2, 1)
    found = list(scaling.measure_all([point], 20.0))
    assert [one.method for one in found] == list(METHODS) and not any(one.reason for one in found)
    for classes in (1, 2, 4):
        instance = scaling.instance_of(Point("", 1, 40, 8, classes))
        assert (len(instance.layers), instance.devices, len(instance.device_classes)) == (40, 8, classes)
