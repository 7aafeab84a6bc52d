"""The study of GPipe's Table 1: what it reports, and that its document says the same."""

from __future__ import annotations

import pytest

from pipecut_literature.gpipe.published import TRANSFORMER_ROWS
from pipecut_literature.gpipe.study import estimated_micro_batches, run
from pipecut_literature.studies.catalogue import STUDIES
from pipecut_literature.studies.study import Study, StudyInputs, to_markdown
from tests.commands.fakes import ROOT


@pytest.fixture(scope="module")
def study() -> Study:
    return run(StudyInputs())


def test_its_document_is_what_it_writes(study: Study) -> None:
    path = ROOT / STUDIES["gpipe"].document
    written = path.read_text(encoding="utf-8").splitlines()
    again = to_markdown(study, "", "").splitlines()
    assert written[:2] + written[3:] == again[:2] + again[3:], "written again by pipecut study gpipe"


def test_every_published_row_is_there(study: Study) -> None:
    table = study.tables[0]
    assert [row[0] for row in table.rows] == [row.name for row in TRANSFORMER_ROWS]
    assert [row[7] for row in table.rows][1:] == [row.activation_g for row in TRANSFORMER_ROWS][1:]


def test_the_swapped_column_stands_corrected_and_is_named(study: Study) -> None:
    naive = study.tables[0].rows[0]
    assert (naive[4], naive[7]) == ("3.15", "11.7")
    assert "two memories swapped" in study.tables[0].remarks[0]


def test_errors_are_those_of_the_cells(study: Study) -> None:
    for row in study.tables[0].rows:
        for published, ours, error in (row[4:7], row[7:10]):
            assert float(error.split()[0]) == pytest.approx((float(ours) / float(published) - 1) * 100, abs=0.2)


def test_the_number_of_micro_batches_comes_from_one_row() -> None:
    assert estimated_micro_batches() == 8
