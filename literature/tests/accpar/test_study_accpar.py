"""The study of AccPar: the program's types to the letter, and the papers' model against sums made by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pipecut.formulation.problem.units import Link
from pipecut_literature.accpar.code import HYPAR, optimise
from pipecut_literature.accpar.levels import Planner, array, chain_graph, equal_parts, step
from pipecut_literature.accpar.published import ALEXNET, BATCH, BYTES_PER_ELEMENT, PROGRAM_TYPES
from pipecut_literature.accpar.study import run, types_table
from pipecut_literature.common.halves import Halves, bisected
from pipecut_literature.studies.catalogue import STUDIES
from pipecut_literature.studies.study import StudyInputs, to_markdown
from tests.commands.fakes import ROOT

GBIT = Link(10**9)
NS_A_BYTE = 8


@pytest.fixture(scope="module")
def study():
    return run(StudyInputs())


def alexnet(*counts):
    return array(chain_graph("alexnet", ALEXNET), GBIT, counts)


def test_all_types_come_out_to_the_letter():
    table, equal = types_table()
    assert equal == 14
    assert {row[-1] for row in table.rows} == {"yes"}
    assert [row[2] for row in table.rows] == [row[3] for row in table.rows]
    assert PROGRAM_TYPES["AccPar"][5] == "00021212"


def test_data_parallelism_sums_all_weights_at_every_level():
    instance = alexnet(("one", 8, 10**12))
    weights = sum(row.inputs * row.outputs * row.kernel for row in ALEXNET) * BYTES_PER_ELEMENT
    macs = sum(row.inputs * row.outputs * row.kernel * row.outputs_map for row in ALEXNET)
    found = step(instance, Planner.DATA_PARALLEL)
    assert found.total_ns - found.compute_ns == 3 * weights * NS_A_BYTE
    # 6 FLOP for each multiply-accumulate of the batch, on 8 devices; each layer's time is rounded up to 1 ns.
    assert found.compute_ns == pytest.approx(6 * macs * BATCH / 8 / 10**12 * 1e9, abs=len(ALEXNET))


def test_hypars_communication_is_that_of_the_program():
    """On equal devices the longest way through the levels moves what the program counts a pair, level by level."""
    found = step(alexnet(("one", 128, 10**15)), Planner.HYPAR)
    moved = sum(optimise(ALEXNET, types=HYPAR).elements)
    assert found.total_ns - found.compute_ns == moved * BYTES_PER_ELEMENT * NS_A_BYTE


def test_accpars_communication_is_that_of_the_program_on_equal_devices():
    found = step(alexnet(("one", 128, 10**15)), Planner.ACCPAR)
    moved = sum(optimise(ALEXNET).elements)
    assert found.total_ns - found.compute_ns == moved * BYTES_PER_ELEMENT * NS_A_BYTE


def test_only_accpar_gives_the_faster_half_more_work():
    instance = alexnet(("slow", 2, 10**9), ("fast", 2, 3 * 10**9))
    equal, by_speed = (step(instance, one).compute_ns for one in (Planner.ACCPAR_EQUAL, Planner.ACCPAR))
    # A slow device computes 1/4 of all with equal shares, 1/8 with shares by speed: half the time.
    assert equal / by_speed == pytest.approx(2)


def test_equal_parts_at_every_level():
    machine = bisected(alexnet(("slow", 3, 10**9), ("fast", 2, 3 * 10**9)))
    assert isinstance(machine, Halves)
    assert machine.part == Fraction(1, 3)
    halved = equal_parts(machine)
    assert isinstance(halved, Halves) and isinstance(halved.first, Halves)
    assert (halved.part, halved.first.part) == (Fraction(1, 2), Fraction(1, 2))


@pytest.mark.slow
def test_its_document_is_what_it_writes(study):
    written = (ROOT / STUDIES["accpar"].document).read_text(encoding="utf-8").splitlines()
    again = to_markdown(study, "", "").splitlines()
    assert written[:2] + written[3:] == again[:2] + again[3:], "written again by pipecut study accpar"


@pytest.mark.slow
def test_the_published_order_at_every_bandwidth_and_honest_sizes(study):
    published, *ours = study.tables[2].rows
    assert published[1:] == ("2.98", "3.78", "-", "6.30")
    for row in ours:
        owt, hypar, _, accpar = map(float, row[1:])
        assert 1 < owt < hypar < accpar
    assert study.figures["type_rows_equal"] == study.figures["type_rows"] == 14


@pytest.mark.slow
def test_what_one_type_a_layer_loses(study):
    losses = [float(row[at].rstrip("%")) for row in study.tables[3].rows for at in (3, 6)]
    assert len(losses) == 12
    assert all(10 < loss < 60 for loss in losses)
