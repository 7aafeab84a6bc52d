"""The study of published runs: how runs become instances and plans, what it reports, what its document says."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.predictor.roofline import Roofline
from pipecut.formulation.problem.layers import layers_of
from pipecut_literature.fidelity.gpipe import speed_table
from pipecut_literature.fidelity.memory import LAYOUTS, memory_table, statements_table
from pipecut_literature.fidelity.runs import Constants, data_sheet, fitted, instance_of, plan_of, step_s
from pipecut_literature.fidelity.study import KORTHIKANTI, MEGATRON, errors_of, run, steps_table
from pipecut_literature.gpipe.amoebanet import amoebanet_d
from pipecut_literature.gpipe.published import SPEED_TABLES
from pipecut_literature.megatron.layers import transformer_layers
from pipecut_literature.megatron.published import ITERATION_TIMES, MEGATRON_TABLE_1, MODELS, TERA
from pipecut_literature.megatron.transformer import (
    LayerRecompute,
    TransformerShape,
    head_flops,
    iteration_flops,
    layer_flops,
)
from pipecut_literature.studies.catalogue import STUDIES
from pipecut_literature.studies.study import StudyInputs, mean_absolute, to_markdown
from tests.commands.fakes import ROOT

FOUND = Constants(823, 167)


@pytest.mark.slow
def test_its_document_is_what_it_writes() -> None:
    path = ROOT / STUDIES["fidelity"].document
    written = path.read_text(encoding="utf-8").splitlines()
    again = to_markdown(run(StudyInputs()), "", "").splitlines()
    assert written[:2] + written[3:] == again[:2] + again[3:], "written again by pipecut study fidelity"


def test_published_models_have_the_parameters_and_devices_of_their_tables() -> None:
    names = [row.name for row in MEGATRON_TABLE_1]
    assert names == ["1.7B", "3.6B", "7.5B", "18.4B", "39.1B", "76.1B", "145.6B", "310.1B", "529.6B", "1008.0B"]
    assert [row.training.devices for row in MEGATRON_TABLE_1] == [
        32,
        64,
        128,
        256,
        512,
        1024,
        1536,
        1920,
        2520,
        3072,
    ]
    devices = [row.training.devices for row in ITERATION_TIMES]
    assert devices == [8, 8, 64, 64, 280, 280, 2240, 512, 512]


def test_published_utilisation_follows_from_published_times() -> None:
    """Korthikanti et al. print model FLOPs utilisation too: 41.5, 51.4, 56.0 and 56.3 %."""
    printed = {"22B": 41.5, "175B": 51.4, "530B": 56.0, "1T": 56.3}
    rows = [row for row in ITERATION_TIMES if row.training.sequence_parallel]
    for row in rows:
        training = row.training
        if training.replicas == 1:
            flops = iteration_flops(training.shape, training.global_batch, LayerRecompute.NONE)
            rate = flops / (training.devices * row.iteration_s)
            share = float(rate / (312 * TERA) * 100)
            assert share == pytest.approx(printed[row.name.split(",")[0]], abs=0.25)


@pytest.mark.parametrize("shape", [TransformerShape(2, 64, 4, 32, 50), TransformerShape(3, 96, 8, 16, 40)])
def test_a_model_has_the_products_and_weights_of_its_formula(shape: TransformerShape) -> None:
    layers = layers_of(transformer_layers(shape))
    blocks, head = layers[1:-3], layers[-2]
    assert 2 * sum(layer.macs for layer in blocks) == shape.layers * layer_flops(shape, 1)
    assert 2 * head.macs == head_flops(shape, 1)
    assert sum(layer.parameter_bytes for layer in blocks) == 2 * shape.layers * shape.layer_parameters
    assert all(
        layer.work is not None and sum(one.macs for one in layer.work.products) == layer.macs for layer in layers
    )


def test_a_run_is_a_plan_that_keeps_the_rules_of_its_cluster() -> None:
    """Memory aside, which graphs of products say nothing of."""
    training = MEGATRON_TABLE_1[4].training
    instance, plan = instance_of(training, FOUND), plan_of(training)
    assert (len(plan), sum(stage.group.devices for stage in plan.stages)) == (2, 512)
    assert {stage.group.tensor_parallel_degree for stage in plan.stages} == {8}
    assert {one.rule for one in evaluate(instance, plan).violations} <= {"memory", "devices"}


def test_chunks_of_a_rank_have_its_devices() -> None:
    plan = plan_of(MEGATRON_TABLE_1[5].training)
    assert len(plan) == 12
    assert [stage.group for stage in plan.stages[:4]] == [stage.group for stage in plan.stages[4:8]]


@pytest.mark.slow
def test_two_rows_give_two_constants_and_come_out() -> None:
    narrow, wide = MEGATRON_TABLE_1[0], MEGATRON_TABLE_1[3]
    constants = fitted(narrow, wide)
    assert step_s(narrow.training, constants) <= narrow.iteration_s
    assert step_s(narrow.training, replace(constants, largest=constants.largest - 1)) > narrow.iteration_s
    assert step_s(wide.training, constants) <= wide.iteration_s
    assert (constants.near, constants.memory) == (FOUND.near, FOUND.memory)
    assert fitted(narrow, wide, data_sheet()).near == 300


@pytest.mark.slow
def test_what_is_found_is_the_default_of_the_roofline_and_describes_the_rest() -> None:
    """No row may get worse than this by a change of the cost model without the documents saying so."""
    assert MEGATRON.fitted() == FOUND
    assert replace(FOUND.roofline, update=Fraction(1)) == Roofline()
    rest = [error for at, error in enumerate(errors_of(MEGATRON, FOUND)) if at not in MEGATRON.ends]
    other = errors_of(KORTHIKANTI, FOUND)
    assert (mean_absolute(rest) < 3.1, mean_absolute(other) < 3.1) == (True, True)
    assert max(map(abs, [*rest, *other])) < 8


def test_sequence_parallelism_leaves_rows_between_products_and_computes_cores_again() -> None:
    full, divided = (row.training for row in ITERATION_TIMES[:2])
    stages = [plan_of(one).stages[0] for one in (full, divided)]
    assert {*stages[0].forms} == {0, 1, 2, 7}
    assert {*stages[1].forms} == {0, 2, 3, 4, 7}
    assert [one.group.mode.recompute for one in stages] == ["layers", "layers"]
    instance = instance_of(divided, FOUND)
    again = {instance.layers[at].operator for at in instance.demands.recompute_layers}
    assert again == {"core"}
    whole = instance_of(full, FOUND)
    once = {row.name for at, row in enumerate(whole.layers) if at not in whole.demands.recompute_layers}
    assert once == {"embedding", "norm", "head", "loss"}
    forms = dict(zip((row.name for row in whole.layers), stages[0].forms, strict=True))
    assert (forms["head"], forms["loss"]) == (2, 7)
    assert {one.rule for one in evaluate(instance, plan_of(divided)).violations} <= {"memory", "devices"}


def test_every_row_is_there_and_those_that_gave_constants_are_marked() -> None:
    short = replace(MEGATRON, rows=MEGATRON.rows[:3], ends=(0, 2))
    table, rest = steps_table(short, FOUND, short.ends)
    assert [row[0] for row in table.rows] == [row.name for row in short.rows]
    assert [row[6][0] == "(" for row in table.rows] == [True, False, True]
    assert len(rest) == 1


def test_better_machines_take_less() -> None:
    training = ITERATION_TIMES[0].training
    least = step_s(training, FOUND)
    for worse in (
        replace(FOUND, largest=800),
        replace(FOUND, size=200),
        replace(FOUND, near=200),
        replace(FOUND, memory=Fraction(4, 5)),
    ):
        assert step_s(training, worse) > least


def test_cells_of_amoebanet_have_the_products_of_their_flops() -> None:
    for cell in amoebanet_d(6, 128)[:-1]:
        assert 2 * sum(one.macs for one in cell.work.products) == cell.flops
        moved = sum(one.read_bytes + one.written_bytes for one in cell.work.products)
        pooled = cell.work.read_bytes - 2 * (cell.work.read_bytes - cell.work.written_bytes)
        assert moved + pooled == cell.kept_elements


def test_every_entry_of_gpipes_tables_is_there() -> None:
    table, means = speed_table()
    entries = [
        (one.network, many, count) for one in SPEED_TABLES for many, row in one.speeds.items() for count in row
    ]
    assert [(row[1], int(row[2]), int(row[3])) for row in table.rows] == entries
    assert sum(row[6] == "unit" for row in table.rows) == len(SPEED_TABLES)
    for name, prefix in (("transformer", "Transformer"), ("amoebanet", "AmoebaNet")):
        errors = [
            abs(float(r[6].split()[0]))
            for r in table.rows
            if r[1].startswith(prefix) and r[2] == "32" and r[6] != "unit"
        ]
        assert means[name].executed == pytest.approx(sum(errors) / len(errors), abs=0.1)


@pytest.mark.slow
def test_activation_memory_of_all_models_and_configurations() -> None:
    table = memory_table()
    assert len(table.rows) == len(MODELS) * len(LAYOUTS) == 24
    assert all(row[4] == row[6] for row in table.rows), "the executed schedule keeps what eq. (5) says"
    shares = {row[0]: row for row in statements_table().rows}
    assert shares["175B"][5:] == ("70.2 %", "0.9 %", "2.7 %")
    assert shares["530B"][5:] == ("65.3 %", "0.5 %", "1.6 %")
