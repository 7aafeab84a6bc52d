"""``pipecut study sailor``: what it predicts of the public runs, and what it says of wrong data."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipecut_literature.sailor.study import run
from pipecut_literature.sailor.tables import short_names
from pipecut_literature.studies.catalogue import STUDIES
from pipecut_literature.studies.study import StudyInputs, to_markdown
from tests.command_line import Command
from tests.commands.fakes import ROOT

PUBLIC = Path(os.environ.get("PIPECUT_DATA", Path(__file__).parents[4] / "shared" / "data")) / "sailor"
SIZES = {
    f"{kind}_{unit}": 1000 * number
    for number, kind in enumerate(("params", "act_input", "act_output", "act_mem"), 1)
    for unit in ("floats", "bytes")
}
FIT = [[0.0, 0.0, 1.0], 1e9]
PLAN: dict[str, Any] = {
    "pipeline_list": [
        {
            "num_stages": 2,
            "layers_per_stage": [[0, 1], [2, 3]],
            "tmp_per_stage": [[[[["A", 1, "z"]], 1]], [[[["B", 2, "z"]], 2]]],
            "dp": [1, 1],
        }
    ],
    "mbs": 1,
    "gbs": 8,
}


def layer_times(scale: float) -> dict[str, Any]:
    rows = {str(layer): [0.01 * scale, 0.02 * scale, 0.003] for layer in range(4)}
    return {"1": {"1": rows, "2": rows}}


def write(path: Path, data: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A small folder with two cards, B half as fast, and one measured plan."""
    folder = tmp_path / "data"
    layers = {str(layer): SIZES for layer in range(4)}
    write(folder / "layer_sizes.json", {"OPT": {"1": layers, "2": layers}})
    write(folder / "network_coeffs_x.json", {"inter": {card: {"1": FIT} for card in "AB"}, "intra": {}})
    write(folder / "profiles" / "OPT" / "A.json", layer_times(1))
    write(folder / "profiles" / "OPT" / "B.json", layer_times(2))
    write(folder / "measured" / "x" / "plan_1.json", PLAN | {"real": 1.2, "max_mem": 5 * 2**30})
    return folder


def changed(where: tuple[str | int, ...], value: object) -> dict[str, Any]:
    plan = copy.deepcopy(PLAN)
    target: Any = plan
    for step in where[:-1]:
        target = target[step]
    target[where[-1]] = value
    return plan


PIPELINE = ("pipeline_list", 0)


# --- what it predicts ---


def test_a_folder_of_mixed_cards_is_predicted(pipecut: Command, data: Path) -> None:
    ran = pipecut("study", "sailor", "--data", data, "--json")
    assert ran.code == 0
    figures = ran.json["figures"]
    # Eight micro-batches on the slower second stage, 120 ms each, the first stage's first and last pass (20 and
    # 40 ms), two messages of 1 ms for each; then the update of two layers where one was profiled (the others are
    # copies), 6 ms, and copies of 24 bytes where it moves 28.
    expected_ms = 8 * 120 + 20 + 40 + 8 * 2 + 6 + 6 * 24 / 28
    assert figures["plan_1: iteration_ns"] / 1e6 == pytest.approx(expected_ms)
    assert figures["time_error_percent"] == pytest.approx(
        100 * (1.2 - figures["plan_1: iteration_ns"] / 1e9) / 1.2
    )
    # Its own run is left out, so the share that the planner reserves stands in for the machine's.
    assert figures["plan_1: peak_memory_bytes"] == pytest.approx(3e9, rel=0.001)


def test_plans_of_another_folder(pipecut: Command, data: Path, tmp_path: Path) -> None:
    write(tmp_path / "plans" / "deep" / "mine_a.json", PLAN)
    write(tmp_path / "plans" / "mine_b.json", PLAN | {"mbs": 3, "gbs": 24, "real": 2.0})
    ran = pipecut("study", "sailor", "--data", data, "--plans", tmp_path / "plans", "--json")
    assert ran.code == 0
    figures = ran.json["figures"]
    assert figures["runs"] == 2
    assert figures["deep/mine_a: iteration_ns"] * 2 < figures["mine_b: iteration_ns"]
    # The plan that was measured elsewhere serves the one of another size, not the same one.
    assert figures["mine_b: peak_memory_bytes"] > 4.9 * 2**30 > 3.1e9 > figures["deep/mine_a: peak_memory_bytes"]
    ran = pipecut("study", "sailor", "--data", data, "--plans", tmp_path / "plans")
    assert ran.code == 0
    assert "red_grads" in ran.out and "mine_b" in ran.out


def test_plans_without_any_measurement(pipecut: Command, data: Path, tmp_path: Path) -> None:
    write(tmp_path / "plans" / "one.json", PLAN)
    ran = pipecut("study", "sailor", "--data", data, "--plans", tmp_path / "plans", "--json")
    assert ran.code == 0
    assert ran.json["figures"]["time_error_percent"] is None
    assert ran.json["figures"]["one: iteration_ns"] > 10**9


def test_the_measured_values_of_a_plan_do_not_change_its_own_prediction(data: Path, tmp_path: Path) -> None:
    figures = []
    for real, peak in ((1.2, 5 * 2**30), (99.0, 50 * 2**30)):
        write(tmp_path / "plans" / "one.json", PLAN | {"real": real, "red_grads": real / 9, "max_mem": peak})
        study = run(StudyInputs(data, tmp_path / "plans"))
        figures.append([study.figures[f"one: {key}"] for key in ("iteration_ns", "peak_memory_bytes")])
    assert figures[0] == figures[1]


def test_public_runs_come_out_better_than_published() -> None:
    if not PUBLIC.is_dir():
        pytest.skip("no sailor in the data folder")
    study = run(StudyInputs(PUBLIC))
    errors = [study.figures[f"{name}_error_percent"] for name in ("time", "memory")]
    bare = study.figures["time_error_without_runs_percent"]
    assert study.figures["runs"] == 15
    assert all(isinstance(error, float) for error in (*errors, bare))
    # The published simulator has 8.9 % and 5.9 %.
    assert float(str(errors[0])) < 5
    assert float(str(errors[1])) < 4
    assert float(str(bare)) < 5


@pytest.mark.slow
def test_its_document_is_what_it_writes() -> None:
    if not PUBLIC.is_dir():
        pytest.skip("no sailor in the data folder")
    written = (ROOT / STUDIES["sailor"].document).read_text(encoding="utf-8").splitlines()
    again = to_markdown(run(StudyInputs(PUBLIC)), "", "").splitlines()
    assert written[:2] + written[3:] == again[:2] + again[3:], "written again by pipecut study sailor --data DIR"


def test_public_cards_can_be_mixed(tmp_path: Path) -> None:
    if not PUBLIC.is_dir():
        pytest.skip("no sailor in the data folder")
    plan = changed((*PIPELINE, "layers_per_stage"), [list(range(20)), list(range(20, 26))])
    plan["pipeline_list"][0]["tmp_per_stage"] = [[[[["GH-96", 4, "z"]], 4]], [[[["RTX-3090", 8, "z"]], 2]]]
    write(tmp_path / "one.json", plan)
    found = run(StudyInputs(PUBLIC, tmp_path)).figures["one: iteration_ns"]
    # The boundary of 8 MiB passes the slower network, at 0.1126 GB/s, twice for each micro-batch.
    assert isinstance(found, int) and found > 8 * 2 * 74_000_000


def test_short_names() -> None:
    assert short_names(["x/plan_config_N1_D1", "x/plan_config_N16_D4"]) == {
        "x/plan_config_N1_D1": "N1_D1",
        "x/plan_config_N16_D4": "N16_D4",
    }
    assert list(short_names(["a/one"]).values()) == ["one"]
    assert list(short_names(["one", "two"]).values()) == ["one", "two"]
    assert list(short_names(["plan_1", "plan_1_b"]).values()) == ["1", "1_b"]


# --- what it refuses ---


def test_without_data(pipecut: Command) -> None:
    ran = pipecut("study", "sailor")
    assert (ran.code, ran.out) == (2, "")
    assert "--data DIR" in ran.err


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("layer_sizes.json", "layer_sizes.json: found no such file"),
        ("network_coeffs_x.json", "network_coeffs_*.json: found no such file"),
        ("measured/x/plan_1.json", "measured: found no plan"),
        ("profiles/OPT/B.json", "plan_1.json: card B: no profile; there are profiles of A"),
    ],
)
def test_missing_files(pipecut: Command, data: Path, gone: str, said: str) -> None:
    (data / gone).unlink()
    ran = pipecut("study", "sailor", "--data", data)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err and "Traceback" not in ran.err


def test_a_wrong_folder_and_a_wrong_file(pipecut: Command, data: Path, tmp_path: Path) -> None:
    ran = pipecut("study", "sailor", "--data", tmp_path)
    assert ran.code == 2 and "layer_sizes.json: found no such file" in ran.err
    ran = pipecut("study", "sailor", "--data", data, "--plans", data / "profiles")
    assert ran.code == 2 and "A.json: pipeline_list: found nothing" in ran.err
    (data / "profiles" / "OPT" / "A.json").write_text("[", encoding="utf-8")
    ran = pipecut("study", "sailor", "--data", data)
    assert ran.code == 2 and "A.json:1:2: not JSON" in ran.err


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (changed((*PIPELINE, "layers_per_stage"), [[0, 1], [3]]), "layers_per_stage: expected layers 0, 1, ..."),
        (
            changed((*PIPELINE, "layers_per_stage"), [[0, 1], [2]]),
            "pipeline 0 has layers 0 to 2, expected 0 to 3, as profiled",
        ),
        (
            changed((*PIPELINE, "tmp_per_stage", 0, 0), [[["C", 1, "z"]], 1]),
            "card C: no profile; there are profiles of A, B",
        ),
        (
            changed((*PIPELINE, "tmp_per_stage", 0, 0), [[["A", 4, "z"]], 4]),
            "no layer sizes for tensor-parallel degree 4, only for 1, 2",
        ),
        (changed(("gbs",), 10**9), "2000000000 passes of micro-batches, at most 1000000"),
    ],
)
def test_plans_that_do_not_fit(pipecut: Command, data: Path, tmp_path: Path, plan: object, said: str) -> None:
    path = write(tmp_path / "plans" / "bad.json", plan)
    ran = pipecut("study", "sailor", "--data", data, "--plans", path.parent)
    assert (ran.code, ran.out) == (2, "")
    assert "bad.json" in ran.err and said in ran.err and "Traceback" not in ran.err
