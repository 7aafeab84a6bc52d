"""The study of PipeDream: every published run comes out to the digit, and what its program loses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipecut_literature.pipedream.code import PipeDreamStage
from pipecut_literature.pipedream.paper import LayerRow
from pipecut_literature.pipedream.study import run, saved
from pipecut_literature.studies.catalogue import STUDIES
from pipecut_literature.studies.study import StudyInputError, StudyInputs, to_markdown
from tests.commands.fakes import ROOT

DATA = Path(os.environ.get("PIPECUT_DATA", Path(__file__).parents[4] / "shared" / "data"))


@pytest.fixture(scope="module")
def study():
    if not (DATA / "pipedream-profiles" / "vgg16" / "graph.txt").exists():
        pytest.skip("no public PipeDream profiles in the data folder")
    return run(StudyInputs(DATA))


@pytest.mark.slow
def test_its_document_is_what_it_writes(study):
    written = (ROOT / STUDIES["pipedream"].document).read_text(encoding="utf-8").splitlines()
    again = to_markdown(study, "", "").splitlines()
    assert written[:2] + written[3:] == again[:2] + again[3:], "written again by pipecut study pipedream"


@pytest.mark.slow
def test_every_run_of_the_program_comes_out_to_the_digit(study):
    assert study.figures["program_rows"] == study.figures["program_rows_equal"] == 40
    charged, free = study.tables[:2]
    assert {row[-1] for row in (*charged.rows, *free.rows)} == {"yes"}
    # "yes" is earned: the cells that it compares stand in the row, published first.
    assert all(row[3:7] == row[7:11] for row in charged.rows)
    assert all(row[3:5] == row[5:7] for row in free.rows)


@pytest.mark.slow
def test_what_the_program_loses_in_its_own_model(study):
    exact = {row[:3]: row for row in study.tables[2].rows}
    assert len(exact) == study.figures["exact_rows"] == 36
    losses = {case: row[-1] for case, row in exact.items() if row[-1] != "-"}
    assert losses == {
        ("resnet18", "4", "25"): "4.71 %",
        ("resnet18", "8", "25"): "6.25 %",
        ("resnet18", "16", "10"): "0.45 %",
        ("gnmt", "16", "25"): "3.69 %",
        ("resnet50", "8", "25"): "1.66 %",
    }
    assert all(float(row[6]) <= float(row[4]) for row in exact.values())
    assert study.figures["exact_rows_better"] == len(losses)


@pytest.mark.slow
def test_the_papers_rows_are_not_bent_to_fit(study):
    rows = study.tables[3].rows
    assert [(row[1], row[6]) for row in rows] == [
        ("2-1-1", "3-1"),
        ("7-1", "7-1"),
        ("9-5-1-1", "15-1"),
        ("7-1", "7-1"),
    ]
    assert any("No rescaling" in remark for remark in study.tables[3].remarks)


def test_communication_saved_by_hand():
    """Weights of 100 and 300 bytes, 10 across the cut. On 4 devices: 1.5 x 400; by 3 - 1: 4/3 x 100 + 2 x 10."""
    layers = LayerRow(("a", "b"), (1.0, 1.0), (100, 300), (10, 0))
    stages = (PipeDreamStage(0, 1, 3), PipeDreamStage(1, 2, 1))
    assert saved(layers, stages, 4) == pytest.approx(1 - (400 / 3 + 20) / 600)
    assert saved(layers, (PipeDreamStage(0, 2, 4),), 4) == 0


def test_profiles_that_are_missing_are_named(tmp_path):
    with pytest.raises(StudyInputError, match="--data: expected the folder"):
        run(StudyInputs())
    with pytest.raises(StudyInputError, match=r"alexnet.graph\.txt: No such file"):
        run(StudyInputs(tmp_path))
    broken = tmp_path / "pipedream-profiles" / "alexnet" / "graph.txt"
    broken.parent.mkdir(parents=True)
    broken.write_text("node1 -- Conv\n", encoding="utf-8")
    with pytest.raises(StudyInputError, match=r"graph\.txt:1: "):
        run(StudyInputs(tmp_path))
