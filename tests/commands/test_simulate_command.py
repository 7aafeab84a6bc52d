from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pipecut.commands.main import main
from pipecut.solvers import catalogue
from tests.command_line import Command
from tests.commands.fakes import ROOT, broken, empty_handed, instead_of, wrong_proof
from tests.commands.test_evaluate_command import LAYERS, write_plan
from tests.report.test_page import Page

DOCUMENT = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")


@pytest.fixture
def few_solvers(pipecut: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes that never end would make every comparison long."""
    chosen = ("cpsat", "line_dp", "one_stage", "picky")
    monkeypatch.setattr(catalogue, "SOLVERS", tuple(one for one in catalogue.SOLVERS if one.name in chosen))
    monkeypatch.setattr(catalogue, "all_solvers", lambda: catalogue.SOLVERS)


def test_the_tables_show_timeline_and_formula(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("simulate", scenario)
    assert ran.code == 0 and ran.err == ""
    assert "\none_f_one_b, 1 micro-batch, 1 stage\n" in ran.out and ran.out.startswith("objective  ")
    for words in ("makespan of one step", "period", "bubble", "busy, timeline", "peak, formula", "866.4 us"):
        assert words in ran.out, words


@pytest.mark.usefixtures("few_solvers")
def test_json_page_trace_and_pictures_agree(pipecut: Command, scenario: Path) -> None:
    files = ("--out", "page.html", "--trace", "trace.json", "--svg", "pictures")
    ran = pipecut("simulate", scenario, "--json", "--compare", *files, "--set", "training.micro_batches=4")
    assert ran.code == 0, ran.err
    page = Page(Path("page.html").read_text(encoding="utf-8"))
    assert page.json == ran.json
    assert ran.json["claim"]["proof"] == "optimal" and ran.json["micro_batches_run"] == 4
    solvers = [row["solver"] for row in ran.json["comparison"]["solvers"]]
    assert solvers == ["cpsat", "line_dp", "picky", "one_stage"]
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
    ran = pipecut("simulate", scenario, "--json", "--out", "page.html")
    assert ran.json["comparison"] is None
    assert "Other solvers" not in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("few_solvers")
def test_a_given_plan(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node0": 1}))
    ran = pipecut("simulate", scenario, "--plan", plan, "--json", "--compare")
    claim = ran.json["claim"]
    assert ran.code == 0 and claim["solver"] is None and claim["proof"] is None
    assert claim["bound"] == 866_400 and 0 < claim["gap"] < 1
    text = pipecut("simulate", scenario, "--plan", plan).out
    assert "the plan keeps every rule" in text


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "one_f_one_b", "async_one_f_one_b", "double_buffered"])
def test_every_schedule(pipecut: Command, scenario: Path, schedule: str) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node1": 1}))
    more = ("--set", "training.micro_batches=4", "--schedule", schedule, "--json")
    found = pipecut("simulate", scenario, "--plan", plan, *more).json
    assert found["schedule"] == schedule
    assert found["micro_batches_run"] == (16 if schedule in ("async_one_f_one_b", "double_buffered") else 4)


def test_a_plan_that_breaks_a_rule_is_drawn_and_said(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS[:3], {"node1": 3}), (LAYERS[3:], {"node0": 1}))
    ran = pipecut("simulate", scenario, "--plan", plan, "--out", "page.html")
    assert ran.code == 1 and "breaks     devices: stages take 3 devices" in ran.out
    assert "breaks rules" in Path("page.html").read_text(encoding="utf-8")


def test_what_is_no_plan_cannot_be_run(pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}))
    ran = pipecut("simulate", scenario, "--plan", plan, "--out", "page.html", "--json")
    assert ran.code == 1 and "cover: the last stage ends" in ran.json["claim"]["broken_rules"][0]
    assert not Path("page.html").exists() and "page.html: not written" in ran.err
    assert "breaks     cover" in pipecut("simulate", scenario, "--plan", plan).out
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", empty_handed))
    ran = pipecut("simulate", scenario, "--solver", "cpsat")
    assert ran.code == 3 and "no plan found" in ran.out


@pytest.mark.usefixtures("few_solvers")
def test_a_plan_that_beats_a_proof_refutes_it(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipecut("plan", scenario, "--out", "best.json")
    kept = tuple(entry for entry in instead_of("cpsat", wrong_proof) if entry.name == "cpsat")
    monkeypatch.setattr(catalogue, "SOLVERS", kept)
    ran = pipecut("simulate", scenario, "--plan", "best.json", "--json", "--compare")
    assert (
        ran.code == 4
        and set(ran.json) == {"error"}
        and "the plan file has a plan of 866.4 us (866,400 ns)" in ran.err
    )


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
        (("--png", "tiny.yaml"), "not a directory"),
        (("--chunks", "2"), "--chunks: only with --schedule interleaved"),
        (("--chunks", "0", "--schedule", "interleaved"), "expected a whole number from 1"),
        (("--schedule", "interleaved"), "--schedule interleaved: needs --chunks V"),
        (("--schedule", "zero_bubble_h1", "--chunks", "2"), "schedule zero_bubble_h1 has no chunks"),
        (("--schedule", "best", "--chunks", "2"), "schedule best has no chunks"),
        (("--schedule", "interleaved", "--chunks", "2"), "needs --plan FILE with stages that share devices"),
        (("--schedule-file", "none.csv"), "none.csv: No such file"),
        (("--schedule-file", "tiny.yaml"), "is no action"),
        (("--schedule-file", "x.csv", "--schedule", "interleaved"), "cannot be together"),
    ],
)
def test_bad_input(pipecut: Command, scenario: Path, arguments: tuple[str, ...], message: str) -> None:
    ran = pipecut("simulate", scenario, *arguments)
    assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err and ran.out == ""


def test_other_orders(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node1": 1}))
    given = ("--plan", plan, "--json", "--set", "training.micro_batches=4")
    found = pipecut("simulate", scenario, *given, "--schedule", "zero_bubble_h1").json
    assert found["schedule"] == "zero_bubble_h1" and {row[0] for row in found["timeline"]["events"]} >= {
        "F",
        "I",
        "W",
    }
    assert found["ranks"][1]["peak_bytes"] == found["ranks"][1]["peak_bytes_formula"]
    Path("mine.csv").write_text("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n", "utf-8")
    found = pipecut("simulate", scenario, *given, "--schedule-file", "mine.csv").json
    assert found["schedule"] == "mine.csv" and found["makespan_ns"] > 0
    ran = pipecut("simulate", scenario, *given, "--schedule", "interleaved", "--chunks", "2")
    assert ran.code == 2 and "stages 0 and 1 share rank 0, but run on 1 x node0 and 1 x node1" in ran.err
    ran = pipecut("simulate", scenario, *given, "--schedule", "interleaved", "--chunks", "3")
    assert ran.code == 2 and "the plan has 2 stages, no multiple of its 3 chunks" in ran.err


def test_longer_warm_ups(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node1": 1}))
    given = ("training.micro_batches=4", "objective=step_time", "constraints.placement=free")
    given = tuple(word for one in given for word in ("--set", one))
    classic = pipecut("simulate", scenario, "--plan", plan, "--json", *given).json
    eager = pipecut("simulate", scenario, "--plan", plan, "--json", *given, "--set", "training.warm_up=eager").json
    assert [one["warm_up"] for one in eager["stages"]] == [None, None]
    assert eager["claim"]["objective"] == eager["makespan_ns"] <= classic["makespan_ns"]
    assert eager["ranks"][0]["peak_bytes"] == eager["ranks"][0]["peak_bytes_formula"]
    assert eager["ranks"][0]["peak_bytes"] > classic["ranks"][0]["peak_bytes"]
    bounds = [{one["source"][:11] for one in ran["measures"]} for ran in (classic, eager)]
    assert "upper bound" in bounds[0] and "upper bound" not in bounds[1]
    whole = json.loads(Path(plan).read_text(encoding="utf-8"))
    for stage, many in zip(whole["stages"], (3, 1), strict=True):
        stage["warm_up"] = many
    Path("mine.json").write_text(json.dumps(whole), encoding="utf-8")
    chosen = ("--set", "training.warm_up=choose")
    found = pipecut("simulate", scenario, "--plan", "mine.json", "--json", *given, *chosen).json
    assert found["timeline"] == eager["timeline"] and [one["warm_up"] for one in found["stages"]] == [3, 1]
    said = pipecut("evaluate", "mine.json", scenario, "--no-optimum", *given, *chosen)
    assert said.code == 0 and "warm-up 3" in said.out
    said = pipecut("evaluate", "mine.json", scenario, "--no-optimum", *given)
    assert said.code == 1 and "expected 2 of 4 micro-batches with training.warm_up classic" in said.out
    ran = pipecut("diff", plan, "mine.json", scenario, *given, *chosen)
    assert ran.code == 0 and "2 1 forward passes before the first backward pass, now 3 1" in ran.out


def test_a_plan_beside_another(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node1": 1}))
    ran = pipecut("simulate", scenario, "--against", plan, "--out", "page.html", "--json")
    assert ran.code == 0, ran.err
    assert ran.json == Page(Path("page.html").read_text(encoding="utf-8")).json
    other = ran.json["against"]
    assert (ran.json["plan"], other["plan"]) == (None, Path(plan).name) and len(other["stages"]) == 2
    assert (
        other["claim"]["objective"]
        == pipecut("simulate", scenario, "--plan", plan, "--json").json["claim"]["objective"]
    )
    said = pipecut("simulate", scenario, "--against", plan).out
    assert Path(plan).name in said and "largest peak memory" in said
    Path("broken.json").write_text("{}", encoding="utf-8")
    ran = pipecut("simulate", scenario, "--against", "broken.json", "--out", "no.html")
    assert ran.code == 2 and "broken.json" in ran.err and not Path("no.html").exists()
    ran = pipecut("simulate", scenario, "--against", plan, "--out", plan)
    assert ran.code == 2 and "would replace" in ran.err


def test_interleaved_on_shared_devices(pipecut: Command, scenario: Path) -> None:
    parts = (LAYERS[:1], LAYERS[1:2], LAYERS[2:4], LAYERS[4:])
    plan = write_plan(*((layers, {f"node{at % 2}": 2}) for at, layers in enumerate(parts)))
    more = ("--plan", plan, "--schedule", "interleaved", "--chunks", "2", "--set", "training.micro_batches=4")
    ran = pipecut("simulate", scenario, *more, "--out", "page.html")
    assert ran.code == 0, ran.out + ran.err
    assert "\ninterleaved, 4 micro-batches, 4 stages on 2 ranks\n" in ran.out and "0, 2" in ran.out
    found = Page(Path("page.html").read_text(encoding="utf-8")).json
    assert [rank["stages"] for rank in found["ranks"]] == [[0, 2], [1, 3]]
    more = (*more[:-1], "training.micro_batches=1")
    ran = pipecut("simulate", scenario, *more)
    assert ran.code == 2 and "needs a multiple of 2 micro-batches, got 1" in ran.err


def test_png(pipecut: Command, scenario: Path) -> None:
    pytest.importorskip("resvg_py")
    ran = pipecut("simulate", scenario, "--png", "pictures")
    assert ran.code == 0, ran.err
    for name in ("plan", "timeline", "memory", "time"):
        image = Path("pictures", f"{name}.png").read_bytes()
        assert image.startswith(b"\x89PNG\r\n\x1a\n") and int.from_bytes(image[16:20]) == 2 * 1140
    assert not list(Path("pictures").glob(".*.part"))


def test_png_without_its_package_is_refused_before_the_search(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", broken))
    ran = pipecut("simulate", scenario, "--png", "pictures")
    assert ran.code == 2 and ran.err.strip() == "writing PNG needs resvg: pip install 'pipecut[png]'"
    assert not Path("pictures").exists()


def test_png_without_a_font_is_refused(pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resvg_py")
    monkeypatch.setattr("pipecut.commands.parts.drawing.FAMILIES", ("No Such Font",))
    ran = pipecut("simulate", scenario, "--png", "pictures")
    assert ran.code == 2 and "needs a font for the labels, none of No Such Font is installed" in ran.err


def test_a_page_that_cannot_be_written_is_said_after_the_numbers(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("pipecut.commands.parts.drawing.atomic_write", full)
    ran = pipecut("simulate", scenario, "--out", "page.html")
    assert ran.code == 2 and "page.html: not written: No space left on device" in ran.err
    assert "makespan" in ran.out


def test_the_document_names_every_option_and_key(
    pipecut: Command, scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    main(["simulate", "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert {option for option in options if option not in DOCUMENT} == set()
    found = pipecut("simulate", scenario, "--json").json
    keys = {*found, *found["claim"], *found["measures"][0], *found["stages"][0], *found["ranks"][0]}
    keys |= {*found["timeline"]}
    assert {key for key in keys if f"`{key}`" not in DOCUMENT} == set()
