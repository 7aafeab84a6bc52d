"""The study of PipePar: Table I to the digit, Table II by hand, and Fig. 4 held to what must be true of it."""

from __future__ import annotations

import re

import pytest

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits
from pipecut_literature import catalogue
from pipecut_literature.pipepar import study as pipepar_study
from pipecut_literature.pipepar import study as study_of_pipepar
from pipecut_literature.pipepar.study import (
    ACCPAR,
    BATCHES,
    FIGURE_4,
    PIPEPAR,
    READINGS,
    TABLE_I,
    MethodTimes,
    alone,
    claims_table,
    instance_of,
    plan_table,
    planned,
    published_plan,
    run,
    speed_table,
    stages_table,
    table_ii_instance,
    times_of,
    title_of,
)
from pipecut_literature.studies.catalogue import STUDIES
from pipecut_literature.studies.study import StudyInputs, to_markdown
from tests.commands.fakes import ROOT

pytest.importorskip("torch")
CHARGED, FREE, SUMMED = READINGS
MACS_OF_VGG16 = 15_470_264_320
PEAK = 13_400 * 10**9


def times(one_gpu: int, baseline: int, accpar: int | None, pipepar: int | None, optimum: int) -> MethodTimes:
    return MethodTimes(one_gpu, baseline, {ACCPAR: accpar, PIPEPAR: pipepar}, optimum, proved=True)


def seconds(text: str) -> float:
    value, unit = text.split(" ")
    return float(value) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]


@pytest.mark.slow
def test_one_gpu_is_three_passes_over_all_multiply_accumulates() -> None:
    """6 FLOP for each multiply-accumulate of 64 images; each pass of a layer is rounded up to 1 ns."""
    instance = instance_of("vgg16", 64, CHARGED)
    assert alone(instance) == pytest.approx(6 * MACS_OF_VGG16 * 64 / PEAK * 1e9, abs=2 * len(instance.layers))
    assert {alone(instance_of("vgg16", 64, reading)) for reading in READINGS} == {alone(instance)}


def test_data_parallelism_is_an_all_reduce_and_an_eighth_of_the_work() -> None:
    """Seven eighths of the weights twice over 1 Gbit/s, 4 bytes each."""
    instance = instance_of("vgg16", 64, FREE)
    found = planned(instance, "data_parallel", Limits())
    summed = 2 * 7 / 8 * TABLE_I["vgg16"].parameters * 4 * 8
    assert found == pytest.approx(summed + alone(instance) / 8, rel=1e-6)


def test_table_ii_stage_by_stage() -> None:
    """The boundary before features.4 is 64 tensors of 64 x 224 x 224, there and back, over 1 Gbit/s."""
    rows = stages_table().rows
    assert len(rows) == 8 and rows[0][3] == "-"
    assert rows[2][1].startswith("features.4 to ")
    assert seconds(rows[2][3]) == pytest.approx(2 * 64 * 64 * 224 * 224 * 4 * 8 / 1e9, rel=1e-3)
    assert seconds(rows[3][2]) == max(seconds(row[2]) for row in rows)


@pytest.mark.slow
def test_table_ii_is_far_from_the_optimum_in_every_reading() -> None:
    prices = {
        reading: evaluate(instance, published_plan(instance)).objective
        for reading in READINGS
        for instance in [table_ii_instance(reading)]
    }
    assert prices == {CHARGED: 13_153_337_344, FREE: 185_520_959, SUMMED: sum_of_all()}
    found = {
        (reading, 64, "vgg16"): times_of(table_ii_instance(reading), Limits(time_limit_s=60))
        for reading in (CHARGED, FREE)
    } | {(SUMMED, 64, "vgg16"): times(1, 1, 1, 1, 1)}
    assert found[CHARGED, 64, "vgg16"].optimum == 266_979_046
    table, figures = plan_table(found)
    assert [row[0] for row in table.rows] == list(READINGS)
    assert figures[f"table_ii_gap, {CHARGED}"] == round(1 - 266_979_046 / 13_153_337_344, 4)
    assert 0 < float(str(figures[f"table_ii_gap, {FREE}"])) < 1
    # Slower than data parallelism where boundaries are charged, several times too fast where they are not.
    speed_ups = [float(row[6]) for row in table.rows]
    assert speed_ups[0] < 1 < FIGURE_4[64, "vgg16"].pipepar * 4 < speed_ups[1]


def sum_of_all() -> int:
    instance = table_ii_instance(CHARGED)
    return sum(cost.total_ns + cost.boundary_ns for cost in evaluate(instance, published_plan(instance)).stages)


def test_a_planner_that_is_not_there_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    left = tuple(entry for entry in catalogue.PLANNERS if entry.name != ACCPAR)
    monkeypatch.setattr(catalogue, "PLANNERS", left)
    assert planned(instance_of("vgg16", 64, FREE), ACCPAR, Limits()) is None
    row = speed_table(FREE, {(64, "vgg13"): times(10, 100, None, 20, 10)}).rows[0]
    assert row == ("64", "VGG13", "5.71", "-", "9.95", "5.00", "10.00")


def test_a_bound_is_marked() -> None:
    unproved = MethodTimes(10, 100, {ACCPAR: 50, PIPEPAR: 20}, 10, proved=False)
    assert speed_table(FREE, {(64, "vgg13"): unproved}).rows[0][-1] == ">= 10.00"


def test_statements_are_counted() -> None:
    """A planner as good as the optimum for VGG16, AccPar worse than the baseline once, no ResNet above a VGG."""
    rows = {
        (64, "vgg16"): times(1, 100, 50, 10, 10),
        (64, "resnet50"): times(1, 100, 200, 50, 10),
        (128, "vgg16"): times(1, 100, 50, 20, 10),
        (128, "resnet50"): times(1, 100, 50, 100, 10),
    }
    table, figures = claims_table({FREE: rows})
    ours = [row[2] for row in table.rows]
    assert ours == ["3 of 4", "3 of 4", "2 of 2", "2 of 2"]
    assert [row[1] for row in table.rows] == ["12 of 12", "12 of 12", "6 of 6", "6 of 6"]
    assert list(figures.values()) == ours


def test_models_are_named_as_in_the_paper() -> None:
    assert [title_of(model) for model in TABLE_I] == [
        *("VGG13", "VGG16", "VGG19", "ResNet34", "ResNet50", "ResNet152")
    ]


@pytest.mark.slow
def test_the_whole_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the third reading, whose largest case takes a minute, and the two deepest models."""
    monkeypatch.delitem(pipepar_study.READINGS, SUMMED)  # type: ignore[arg-type]
    bars = {row: FIGURE_4[row] for row in FIGURE_4 if row[1] not in ("resnet50", "resnet152")}
    monkeypatch.setattr(study_of_pipepar, "FIGURE_4", bars)
    study = run(StudyInputs(time_limit_s=60))
    tables = {table.title: table for table in study.tables}
    assert study.figures["table_i_rows_equal"] == 6
    assert {row[-1] for row in tables["Table I"].rows} == {"yes"}
    for reading in (CHARGED, FREE):
        rows = tables[f"Fig. 4, speed-up over data parallelism, {reading}"].rows
        assert len(rows) == len(bars)
        assert all(float(row[6]) >= float(row[5]) >= 1 for row in rows)
        alone_rows = tables[f"Speed-up over one GPU, {reading}"].rows
        assert all(float(row[3]) < 1 <= float(row[6]) for row in alone_rows)
    text = to_markdown(study, "pipecut study pipepar", "today")
    assert "133,047,848" in text


def test_the_document_is_that_of_the_study() -> None:
    """The committed document has a row for each bar, with the published numbers."""
    entry = STUDIES["pipepar"]
    text = (ROOT / entry.document).read_text(encoding="utf-8")
    assert text.count("## ") == 3 + 2 * len(READINGS) + 1
    for (batch, model), bars in FIGURE_4.items():
        pattern = rf"^\| {batch} \| {title_of(model)} \| {bars.accpar:.2f} \| \S+ \| {bars.pipepar:.2f} \|"
        assert len(re.findall(pattern, text, re.MULTILINE)) == len(READINGS)
    assert {batch for batch, _ in FIGURE_4} == set(BATCHES)
