"""Whatever a user gets wrong: exit code 2, a message on stderr that names the culprit, nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import pipecut as face
from pipecut.formulation.problem.options import CostModel
from pipecut.ingest.scenario.load import load_scenario
from tests.command_line import Command, Ran
from tests.commands.fakes import ROOT

needs_permissions = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read and write everything"
)


def refused(ran: Ran, *words: str) -> None:
    assert ran.code == 2 and ran.out == ""
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_scenario_files_that_cannot_be_read(pipecut: Command, scenario: Path, command: str) -> None:
    refused(pipecut(command, "absent.yaml"), "absent.yaml", "No such file")
    refused(pipecut(command, scenario.parent), str(scenario.parent), "directory")
    scenario.write_bytes(b"name: \xff\xfe")
    refused(pipecut(command, scenario), "tiny.yaml")
    scenario.write_bytes(b"")
    refused(pipecut(command, scenario), "tiny.yaml")
    scenario.write_text("[" * 10_000, encoding="utf-8")
    refused(pipecut(command, scenario), "tiny.yaml")
    refused(pipecut(command, "a\0b"), "a")
    refused(pipecut(command, "a" * 5000), "aaa")
    refused(pipecut(command, ""))


@needs_permissions
def test_files_without_permission(pipecut: Command, scenario: Path) -> None:
    folder = scenario.parent / "closed"
    folder.mkdir(mode=0o500)
    refused(pipecut("plan", scenario, "--out", folder / "plan.json"), "no permission")
    scenario.chmod(0)
    refused(pipecut("plan", scenario), "ermission denied")


def test_every_mistake_of_a_scenario_with_its_line(pipecut: Command, scenario: Path) -> None:
    text = (
        scenario.read_text(encoding="utf-8").replace("1 TFLOP/s", "1 TFLOPS").replace("devices: 2", "devices: two")
    )
    scenario.write_text(text, encoding="utf-8")
    ran = pipecut("plan", scenario)
    refused(ran, "tiny.yaml:6:", "tiny.yaml:8:", "TFLOP/s")
    assert len(ran.err.splitlines()) == 2


def test_overrides(pipecut: Command, scenario: Path) -> None:
    refused(pipecut("plan", scenario, "--set", "training.nothing=1"), "training.nothing=1")
    refused(pipecut("plan", scenario, "--set", "training.global_batch"), "training.global_batch")
    refused(pipecut("plan", scenario, "--set", "training.global_batch=0"), "global_batch")
    refused(pipecut("plan", scenario, "--set", "solver.name=magic"), "magic", "expected one of auto, cpsat")


LARGE = "--set=cost.backward_factor=999999999999999999999999"


@pytest.mark.parametrize("command", ["plan", "compare", "evaluate", "simulate", "verify"])
def test_numbers_that_nothing_can_count_with(pipecut: Command, scenario: Path, command: str) -> None:
    """Refused before any solver starts, whatever is asked."""
    assert pipecut("plan", scenario, "--out", "plan.json", "--certificate", "proof.json").code == 0
    file = {"evaluate": "plan.json", "verify": "proof.json"}.get(command)
    words = ("tiny.yaml: one micro-batch can take", " ns can be counted; layer ", "check operations")
    refused(pipecut(command, *([file] if file else []), scenario, LARGE), *words)


def test_programs_are_refused_as_well(scenario: Path) -> None:
    small = load_scenario(scenario)
    with pytest.raises(ValueError, match="one micro-batch can take"):
        face.load(scenario, [LARGE.removeprefix("--set=")])
    with pytest.raises(ValueError, match="one micro-batch can take"):
        face.plan(replace(small.load(), cost=CostModel(backward_factor=Fraction(10**24))))


def test_models(pipecut: Command, scenario: Path) -> None:
    refused(pipecut("plan", scenario, "--set", "model.graph=absent.json"), "absent.json")
    (scenario.parent / "tiny.json").write_text("{", encoding="utf-8")
    refused(pipecut("plan", scenario), "tiny.json")


def test_a_solver_that_cannot_take_the_instance(pipecut: Command, scenario: Path) -> None:
    refused(pipecut("plan", scenario, "--solver", "picky"), "picky cannot take this instance: more layers")


def test_plan_files(pipecut: Command, scenario: Path) -> None:
    refused(pipecut("evaluate", "absent.json", scenario), "absent.json", "No such file")
    refused(pipecut("evaluate", scenario.parent, scenario), "directory")
    plan = Path("plan.json")
    for text in ("", "{", "[]", "{}", '{"stages": [{}]}', '{"stages": [{"layers": ["x"], "devices": {"y": 1}}]}'):
        plan.write_text(text, encoding="utf-8")
        refused(pipecut("evaluate", plan, scenario), "plan.json")
    plan.write_text("[" * 100_000, encoding="utf-8")
    refused(pipecut("evaluate", plan, scenario), "plan.json", "nested too deeply")
    plan.write_text(json.dumps({"stages": [{"layers": ["conv9"], "devices": {"node0": 1}}]}), encoding="utf-8")
    refused(pipecut("evaluate", plan, scenario), "stages[0].layers[0]", "did you mean 'conv")


def test_output_paths_are_refused_before_the_search(pipecut: Command, scenario: Path) -> None:
    def out(path: str | Path) -> Ran:
        return pipecut("plan", scenario, "--solver", "stuck", "--out", path)

    refused(out("absent/plan.json"), "absent/plan.json", "no directory")
    refused(out(scenario.parent), "is a directory")
    refused(out(os.devnull), "not a regular file")
    refused(out(scenario / "plan.json"), "tiny.yaml")
    refused(out("a\0b"))
    refused(out("a" * 5000))


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["fly"],
        ["plan", "x", "--solver", "magic"],
        ["plan", "x", "--workers", "0"],
        ["plan", "x", "--workers", "1e3"],
        ["plan", "x", "--seed", "-1"],
        ["plan", "x", "--seed", "9" * 30],
        ["plan", "x", "--time-limit", "0"],
        ["plan", "x", "--time-limit", "-1 s"],
        ["plan", "x", "--time-limit", "nan"],
        ["plan", "x", "--time-limit", "soon"],
        ["plan", "x", "--time-limit", "5 GB"],
        ["plan", "x", "--time", "5"],
        ["compare", "x", "--solvers", "cpsat,,magic"],
        ["evaluate", "x"],
        ["trace", "a:b"],
        ["trace"],
    ],
)
def test_the_command_line(pipecut: Command, arguments: list[str]) -> None:
    refused(pipecut(*arguments), "usage: pipecut")


@pytest.mark.parametrize(
    ("text", "expected"), [("60", 60), ("60 s", 60), ("0.5", 0.5), ("2 min", 120), ("10ms", 0.01)]
)
def test_time_limits(text: str, expected: float) -> None:
    from pipecut.commands.parser.options import parse

    assert parse(["plan", "x", "--time-limit", text]).time_limit == expected


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise OSError(2, 'No such dataset')", ["No such dataset"]),
        ("import absent_package", ["absent_package"]),
        ("def build(): raise KeyError('lost')", ["KeyError", "lost"]),
        ("def build(): return 5", ["returned int"]),
        ("x = (", ["own_model"]),
        ("import sys; sys.exit(3)", ["SystemExit"]),
    ],
)
def test_models_whose_own_code_fails(pipecut: Command, scenario: Path, code: str, words: list[str]) -> None:
    pytest.importorskip("torch")
    (scenario.parent / "own_model.py").write_text(code + "\n", encoding="utf-8")
    refused(pipecut("trace", "own_model:build", "--out", "graph.json"), "own_model", *words)
    assert not Path("graph.json").exists()


def test_what_a_model_prints_does_not_reach_stdout(pipecut: Command, scenario: Path) -> None:
    pytest.importorskip("torch")
    code = """\
import torch
print("hello")
def build():
    print("building")
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.empty(2, 8),)
"""
    (scenario.parent / "chatty_model.py").write_text(code, encoding="utf-8")
    ran = pipecut("trace", "chatty_model:build", "--out", "graph.json")
    assert ran.code == 0 and ran.out == "graph.json: 2 layers, 1 edge, 288 B of parameters\n"
    assert "hello" in ran.err and "building" in ran.err
    assert pipecut("plan", scenario, "--json", "--set", "model.graph=graph.json").json["proof"] == "optimal"


def in_a_process(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        f"{code}\nimport sys\nfrom pipecut.commands.main import main\nsys.exit(main())",
        *arguments,
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(scenario: Path) -> None:
    code = "import os, sys\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)"
    done = in_a_process("plan", str(scenario), code=code)
    assert done.stderr == "" and done.returncode == 141
    assert in_a_process("--help", code=code).stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_stdout_is_said(scenario: Path) -> None:
    code = "import os, sys\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    done = in_a_process("plan", str(scenario), code=code)
    assert done.returncode == 2 and done.stderr == "standard output: No space left on device\n"


@pytest.mark.slow
def test_a_terminal_without_unicode(scenario: Path) -> None:
    done = in_a_process("plan", str(scenario), code="import sys\nsys.stdout.reconfigure(encoding='ascii')")
    assert done.returncode == 0 and "conv1 to fc[3] (5 layers)" in done.stdout and done.stderr == ""
