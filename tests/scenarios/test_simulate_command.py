from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.cli import main
from solvers import catalogue
from tests.report.test_page import Page
from tests.scenarios.conftest import Command
from tests.scenarios.fakes import ROOT, empty_handed, instead_of, wrong_proof
from tests.scenarios.test_evaluate_command import LAYERS, write_plan

DOCUMENT = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")


@pytest.fixture
def few_solvers(pipecut: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes that never end would make every comparison long."""
    chosen = ("cpsat", "line_dp", "data_parallel", "picky")
    monkeypatch.setattr(catalogue, "SOLVERS", tuple(entry for entry in catalogue.SOLVERS if entry.name in chosen))


def test_the_tables_show_timeline_and_formula(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("simulate", scenario)
    assert ran.code == 0 and ran.err == ""
    assert ran.out.startswith("one_f_one_b, 1 micro-batch, 1 stage\n")
    for words in ("makespan of one step", "period", "bubble", "busy, timeline", "peak, formula", "866.4 us"):
        assert words in ran.out, words


@pytest.mark.usefixtures("few_solvers")
def test_json_page_trace_and_pictures_agree(pipecut: Command, scenario: Path) -> None:
    files = ("--out", "page.html", "--trace", "trace.json", "--svg", "pictures")
    ran = pipecut("simulate", scenario, "--json", *files, "--set", "training.micro_batches=4")
    assert ran.code == 0, ran.err
    page = Page(Path("page.html").read_text(encoding="utf-8"))
    assert page.json == ran.json
    assert ran.json["claim"]["proof"] == "optimal" and ran.json["micro_batches_run"] == 4
    solvers = [row["solver"] for row in ran.json["comparison"]["solvers"]]
    assert solvers == ["cpsat", "line_dp", "data_parallel", "picky"]
    assert ran.json["comparison"]["solvers"][0]["gap"] == 0
    trace = json.loads(Path("trace.json").read_text(encoding="utf-8"))
    assert {row["ph"] for row in trace["traceEvents"]} >= {"M", "X"}
    assert {path.name for path in Path("pictures").iterdir()} == {
        "plan.svg",
        "timeline.svg",
        "memory.svg",
        "time.svg",
    }
    assert not list(Path().glob(".*.part"))


@pytest.mark.usefixtures("few_solvers")
def test_without_a_comparison(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("simulate", scenario, "--json", "--no-compare", "--out", "page.html")
    assert ran.json["comparison"] is None
    assert "Other solvers" not in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("few_solvers")
def test_a_given_plan(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node0": 1}))
    ran = pipecut("simulate", scenario, "--plan", plan, "--json")
    claim = ran.json["claim"]
    assert ran.code == 0 and claim["solver"] is None and claim["proof"] is None
    assert claim["bound"] == 866_400 and 0 < claim["gap"] < 1
    text = pipecut("simulate", scenario, "--plan", plan).out
    assert "the plan keeps every rule" in text


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "one_f_one_b", "async_one_f_one_b"])
def test_every_schedule(pipecut: Command, scenario: Path, schedule: str) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node1": 1}))
    more = ("--set", "training.micro_batches=4", "--schedule", schedule, "--json", "--no-compare")
    found = pipecut("simulate", scenario, "--plan", plan, *more).json
    assert found["schedule"] == schedule
    assert found["micro_batches_run"] == (16 if schedule.startswith("async") else 4)


def test_a_plan_that_breaks_a_rule_is_drawn_and_said(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS[:3], {"node1": 3}), (LAYERS[3:], {"node0": 1}))
    ran = pipecut("simulate", scenario, "--plan", plan, "--out", "page.html", "--no-compare")
    assert ran.code == 1 and "breaks     devices: stages take 3 devices" in ran.out
    assert "breaks rules" in Path("page.html").read_text(encoding="utf-8")


def test_what_is_no_plan_cannot_be_run(pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}))
    ran = pipecut("simulate", scenario, "--plan", plan, "--out", "page.html", "--json")
    assert ran.code == 1 and "cover: the last stage ends" in ran.json["claim"]["broken_rules"][0]
    assert not Path("page.html").exists() and "page.html: not written" in ran.err
    assert "breaks     cover" in pipecut("simulate", scenario, "--plan", plan).out
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", empty_handed))
    ran = pipecut("simulate", scenario)
    assert ran.code == 3 and "no plan found" in ran.out


@pytest.mark.usefixtures("few_solvers")
def test_a_plan_that_beats_a_proof_refutes_it(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipecut("plan", scenario, "--out", "best.json")
    kept = tuple(entry for entry in instead_of("cpsat", wrong_proof) if entry.name == "cpsat")
    monkeypatch.setattr(catalogue, "SOLVERS", kept)
    ran = pipecut("simulate", scenario, "--plan", "best.json", "--json")
    assert ran.code == 4 and ran.out == "" and "the plan file has a plan of 866400 ns" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "none/page.html"), "there is no directory"),
        (("--trace", "."), "is a directory"),
        (("--svg", "tiny.yaml"), "not a directory"),
        (("--svg", "none/pictures"), "there is no directory"),
        (("--plan", "none.json"), "none.json: No such file"),
        (("--schedule", "slow"), "no schedule 'slow'; expected one of naive, gpipe"),
        (("--micro-batches-shown", "1"), "expected a whole number from 2"),
    ],
)
def test_bad_input(pipecut: Command, scenario: Path, arguments: tuple[str, ...], message: str) -> None:
    ran = pipecut("simulate", scenario, *arguments)
    assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err and ran.out == ""


def test_a_page_that_cannot_be_written_is_said_after_the_numbers(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("scenarios.commands.simulate.atomic_write", full)
    ran = pipecut("simulate", scenario, "--out", "page.html", "--no-compare")
    assert ran.code == 2 and "page.html: not written: No space left on device" in ran.err
    assert "makespan" in ran.out


def test_the_document_names_every_option_and_key(
    pipecut: Command, scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    main(["simulate", "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert {option for option in options if option not in DOCUMENT} == set()
    found = pipecut("simulate", scenario, "--json", "--no-compare").json
    keys = {*found, *found["claim"], *found["measures"][0], *found["stages"][0], *found["timeline"]}
    assert {key for key in keys if f"`{key}`" not in DOCUMENT} == set()
