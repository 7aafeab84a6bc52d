"""``pipecut scenarios``, and its names in place of files: one, several or none, and files that come first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pipecut as face
from pipecut.commands.parser.options import parse
from pipecut.commands.parts.opening import file_of, open_scenario, shipped_names, shortest
from pipecut.commands.scenarios import title_of
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.scenario.shipped import SHIPPED, scenario_files
from tests.command_line import Command
from tests.commands.fakes import ROOT
from tests.commands.terminal.test_start_up import RUN, heavy_after

COLUMNS = 80
LINE = SHIPPED / "witness" / "line.yaml"
FILES = scenario_files(SHIPPED)
LISTED = "(pipecut scenarios lists them)"


def test_all_that_ship_fit_eighty_columns(pipecut: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    ran = pipecut("scenarios")
    assert ran.code == 0 and ran.err == ""
    lines = ran.out.splitlines()
    assert max(len(line) for line in lines) <= COLUMNS
    names = shipped_names(SHIPPED)
    words = [line.split("  ")[1] for line in lines if line.startswith("  ") and line[2] != " "]
    assert words == [shortest(path, names) for path in FILES]
    assert {"llama7b", "vgg16", "pipepar/vgg19", "hetpipe/vgg19"} <= set(words)
    assert "  vgg16               VGG16 on the cluster of the PipePar paper (CSCWD 2021)" in lines
    assert "vgg16 on 4 x 2 RTX 2080 Ti" in ran.out and "front_heavy.json on 1 unit, 2 unit" in ran.out
    assert "library" not in ran.out and "budget" not in ran.out and "table2" not in ran.out


def test_json_has_every_scenario_by_a_name_that_opens_it(pipecut: Command) -> None:
    rows = pipecut("scenarios", "--json").json["scenarios"]
    assert [Path(row["file"]) for row in rows] == FILES
    for row in rows:
        assert file_of(row["name"]) == row["file"] == file_of(f"{row['folder']}/{Path(row['file']).stem}")
        assert row["devices"] == sum(part["servers"] * part["devices"] for part in row["cluster"])
        assert row["title"] and row["model"] == load_scenario(row["file"]).model
    llama = next(row for row in rows if row["name"] == "llama7b")
    assert llama["cluster"] == [{"servers": 2, "devices": 4, "device": "A100"}] and llama["folder"] == "llama"


def test_a_name_is_planned_as_its_file_is(pipecut: Command) -> None:
    """In a working directory without scenarios; the graph that the scenario names lies beside it."""
    for name in ("line", "witness/line", LINE):
        ran = pipecut("plan", name, "--json", "--solver", "line_dp")
        assert ran.code == 0 and ran.json["scenario"] == "witness-line"
        assert ran.json["objective"] == load_scenario(LINE).expected


def test_every_command_that_takes_a_scenario_takes_a_name(pipecut: Command, tmp_path: Path) -> None:
    plan, proof = tmp_path / "plan.json", tmp_path / "proof.json"
    assert pipecut("plan", "line", "--out", plan, "--certificate", proof).code == 0
    for words in (
        ("evaluate", plan, "line", "--no-optimum"),
        ("explain", plan, "line"),
        ("diff", plan, plan, "witness/line"),
        ("simulate", "line", "--plan", plan),
        ("compare", "line", "--solvers", "line_dp,cpsat"),
        ("verify", proof, "line"),
    ):
        ran = pipecut(*words)
        assert ran.code == 0, ran.err


def test_a_name_of_several_names_all_of_them(pipecut: Command) -> None:
    ran = pipecut("plan", "vgg19")
    assert ran.code == 2 and ran.out == ""
    assert ran.err == (
        "vgg19: 2 of the shipped scenarios have this name; say 'hetpipe/vgg19' or 'pipepar/vgg19'\n"
    )
    told = pipecut("plan", "vgg19", "--json")
    assert told.code == 2 and told.json["error"]["kind"] == "bad input"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lama7b", "did you mean 'llama7b'? "),
        ("pipepar/vgg61", "'pipepar/vgg19'"),
        ("vgg16.yaml", "did you mean 'vgg16' or "),
        ("llama/lama7b.yaml", "did you mean 'llama7b'"),
        ("zzz", f"this name either {LISTED}"),
        ("library/devices/amd", LISTED),
        ("budget", LISTED),
    ],
)
def test_an_unknown_name_tells_what_is_near(pipecut: Command, word: str, meant: str) -> None:
    ran = pipecut("plan", word)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith(f"{word}: cannot read the file: No such file") and meant in ran.err
    assert ran.err.endswith(f"{LISTED}\n")
    (message,) = pipecut("plan", word, "--json").json["error"]["messages"]
    assert message["file"] == word


def test_a_path_that_is_near_nothing_is_told_as_before(pipecut: Command) -> None:
    assert pipecut("plan", "net.yaml").err == "net.yaml: cannot read the file: No such file or directory\n"


def test_a_file_always_comes_first(pipecut: Command, scenario: Path) -> None:
    shutil.copy(scenario, "llama7b")
    assert open_scenario(file_of("llama7b"), ()).name == "tiny"
    assert pipecut("plan", "llama7b", "--solver", "line_dp").code == 0
    Path("vgg19").write_text("name: 5\n", encoding="utf-8")
    assert pipecut("plan", "vgg19").err.startswith("vgg19:1: name: ")
    Path("pipepar").mkdir()
    Path("pipepar", "vgg16").symlink_to("nowhere")
    assert file_of("pipepar/vgg16") == "pipepar/vgg16"


def test_a_folder_is_no_scenario(pipecut: Command) -> None:
    Path("gpt2").mkdir()
    assert Path(file_of("gpt2")) == SHIPPED / "gpt" / "gpt2.yaml"
    Path("mine").mkdir()
    assert pipecut("plan", "mine").err == "mine: cannot read the file: Is a directory\n"


def test_outputs_do_not_replace_a_scenario_that_was_named(pipecut: Command) -> None:
    ran = pipecut("plan", "line", "--out", LINE)
    assert ran.code == 2 and f"would replace the scenario, {LINE}" in ran.err


def test_names_of_other_folders(tmp_path: Path) -> None:
    paths = [tmp_path / "top.yaml", tmp_path / "a" / "b" / "net.yaml", tmp_path / "c" / "net.yaml"]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    names = shipped_names(tmp_path)
    assert names == {"top": [paths[0]], "net": paths[1:], "a/b/net": [paths[1]], "c/net": [paths[2]]}
    assert [shortest(path, names) for path in paths] == ["top", "a/b/net", "c/net"]
    above = tmp_path / "net.yaml"
    above.touch()
    names = shipped_names(tmp_path)
    assert names["net"] == [above] and shortest(above, names) == "net"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (
            "# yaml-language-server: $schema=x\n#\n# Two of\n# Fig.3: cut. More.\n#\n# And\nname: x\n",
            "Two of Fig.3",
        ),
        ("# One\n\n# Another\nname: x\n", "One"),
        ("name: x\n# No head\n", ""),
        ("", ""),
    ],
)
def test_a_title_is_what_a_file_says_first(text: str, title: str) -> None:
    assert title_of(text) == title


def test_a_scenario_that_is_wrong_is_told_with_its_line(pipecut: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own").mkdir()
    Path("own", "net.yaml").write_text("name: 5\n", encoding="utf-8")
    monkeypatch.setattr("pipecut.commands.scenarios.SHIPPED", Path("own").resolve())
    ran = pipecut("scenarios")
    assert ran.code == 2 and "net.yaml:1: name: " in ran.err


@pytest.mark.slow
def test_listing_imports_neither_torch_nor_a_solver() -> None:
    assert heavy_after(RUN, "scenarios", "--json") == {"networkx", "pydantic", "yaml"}
    assert heavy_after(RUN, "plan", "vgg19") == set()


def test_it_runs_from_any_working_directory(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pipecut.commands.entry", "scenarios", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["scenarios"]) == len(FILES)


def test_the_scenario_of_a_mistyped_command_line_is_not_sought() -> None:
    assert parse(["plan", "vgg19"]).scenario == "vgg19"
    with pytest.raises(ScenarioError, match="say 'hetpipe/vgg19' or"):
        file_of("vgg19")


def test_plans_and_sweeps_that_ship_are_found_by_name(pipecut: Command) -> None:
    """Words that a plan is called by are read as it is, and none of them is written over."""
    table = SHIPPED / "pipepar" / "table2.plan.json"
    by_name, by_file = (pipecut("evaluate", plan, "vgg16", "--no-optimum", "--json") for plan in ("table2", table))
    assert by_name.json["objective"] == by_file.json["objective"] and by_name.json["plan"] == "table2"
    ran = pipecut("simulate", "vgg16", "--plan", "table2", "--out", table)
    assert ran.code == 2 and f"would replace the file of --plan, {table}" in ran.err
    wrong = pipecut("diff", "table2", "tabel2", "vgg16")
    assert (
        wrong.code == 2 and "no shipped plan has this name either, did you mean 'table2'? (there is " in wrong.err
    )
    assert pipecut("diff", "table2", "other.json", "vgg16").err == "other.json: No such file or directory\n"


def test_a_sweep_by_name_leaves_its_results_where_it_is_asked_for(
    pipecut: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a shipped file nothing may be written."""
    monkeypatch.setattr("pipecut.commands.sweep.sweep.processes", lambda _: pytest.fail("nothing to plan"))
    for word, near in (("budgte", "did you mean 'budget'?"), ("scale", "(there is budget, pipepar/budget)")):
        ran = pipecut("sweep", word)
        assert ran.code == 2 and near in ran.err and not list(Path().glob("*.jsonl"))
    Path("budget.sweep.results.jsonl").mkdir()
    for word in ("budget", "pipepar/budget"):
        ran = pipecut("sweep", word)
        assert (
            ran.code == 2 and ran.err == "budget.sweep.results.jsonl: is a directory, expected a file to write\n"
        )


@pytest.mark.parametrize(
    "door", [face.load, face.read_scenario, face.listing.load_running_envs], ids=lambda door: door.__name__
)
def test_python_knows_the_names_of_the_command_line(
    door: Callable[[object], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert door("line") == door(Path("witness/line")) == door(LINE) != door("vgg16")
    with pytest.raises(ScenarioError, match=r"^lama7b: .*did you mean 'llama7b'\?"):
        door("lama7b")
    with pytest.raises(ScenarioError, match="say 'hetpipe/vgg19' or"):
        door(Path("vgg19"))
    with pytest.raises(ScenarioError, match=r"^net\.yaml: cannot read the file: No such file or directory$"):
        door("net.yaml")
    Path("line").write_text("name: 5\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"^line:1: name: "):
        door("line")


def test_python_knows_the_names_of_plans() -> None:
    problem = face.load("vgg16")
    table = face.read_plan("table2", problem)
    assert table == face.read_plan(SHIPPED / "pipepar" / "table2.plan.json", problem)
    assert face.evaluate(problem, table).objective is not None
    with pytest.raises(ValueError, match="did you mean 'table2'"):
        face.read_plan("table", problem)
