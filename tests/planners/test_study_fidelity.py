"""The study of published runs: what it reports, from one efficiency, and that its document says the same."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from planners.fidelity.gpipe import speed_table
from planners.fidelity.machines import A100, estimated
from planners.fidelity.memory import LAYOUTS, memory_table, statements_table
from planners.fidelity.steps import compare, korthikanti_table, layer_table, megatron_table
from planners.fidelity.study import run
from planners.fidelity.terms import efficiency_of_row
from planners.gpipe.published import SPEED_TABLES
from planners.megatron.published import (
    ITERATION_TIMES,
    LAYER_TIMES,
    MEGATRON_TABLE_1,
    MODELS,
)
from planners.megatron.transformer import LayerRecompute, iteration_flops
from planners.studies.catalogue import find_study
from planners.studies.markdown import to_markdown
from planners.studies.study import StudyInputs
from tests.commands.fakes import ROOT


@pytest.mark.slow
def test_its_document_is_what_it_writes() -> None:
    path = ROOT / find_study("fidelity").document
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
    rows = [row for row in ITERATION_TIMES if row.training.setting.sequence_parallel]
    for row in rows:
        training = row.training
        if training.replicas == 1:
            flops = iteration_flops(training.shape, training.global_batch, LayerRecompute.NONE)
            rate = flops / (training.devices * row.iteration_s)
            share = float(rate / A100.peak_flops_per_second * 100)
            assert share == pytest.approx(printed[row.name.split(",")[0]], abs=0.25)


def test_the_efficiency_comes_from_the_first_layer_time_alone() -> None:
    machine = estimated(A100)
    table = layer_table(machine)
    forward, backward = float(table.rows[0][2]), float(table.rows[0][5])
    assert forward + backward == pytest.approx(
        float(LAYER_TIMES[0].forward_ms + LAYER_TIMES[0].backward_ms), abs=0.02
    )
    assert estimated(replace(A100, efficiency=Fraction(1, 3))) == machine, "what it was before does not matter"


def test_every_row_is_predicted_with_that_machine() -> None:
    machine = estimated(A100)
    for rows, (table, means) in (
        (ITERATION_TIMES, korthikanti_table(machine)),
        (MEGATRON_TABLE_1, megatron_table(machine)),
    ):
        found = compare(rows, machine)
        assert [row[0] for row in table.rows] == [row.name for row in rows]
        assert [row[5] for row in table.rows] == [f"{one.error_percent:+.1f} %" for one in found]
        assert means.executed == pytest.approx(sum(abs(one.error_percent) for one in found) / len(found))


def test_a_row_asks_for_the_efficiency_that_reproduces_it() -> None:
    row = ITERATION_TIMES[2]
    machine = replace(A100, efficiency=efficiency_of_row(row, A100))
    assert abs(compare((row,), machine)[0].error_percent) < 0.1


def test_every_entry_of_gpipes_tables_is_there() -> None:
    table, means = speed_table()
    entries = [
        (one.network, row.micro_batches, count) for one in SPEED_TABLES for row in one.rows for count in row.speeds
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


def test_activation_memory_of_all_models_and_configurations() -> None:
    table = memory_table()
    assert len(table.rows) == len(MODELS) * len(LAYOUTS) == 24
    assert all(row[4] == row[6] for row in table.rows), "the executed schedule keeps what eq. (5) says"
    shares = {row[0]: row for row in statements_table().rows}
    assert shares["175B"][5:] == ("70.2 %", "0.9 %", "2.7 %")
    assert shares["530B"][5:] == ("65.3 %", "0.5 %", "1.6 %")
