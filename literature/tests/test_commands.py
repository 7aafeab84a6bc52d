"""What the literature adds to the command line: files that it names, what is hostile, and what it replies."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipecut.commands.parser.options import grammar_for, parse
from tests.command_line import Command
from tests.commands.fakes import ROOT
from tests.commands.terminal.test_reply import error_of
from tests.commands.terminal.test_terminal import EVIL, harmless
from tests.commands.test_named_files import FILES, SPELLINGS, content, hard_link

NUMBERS = "forward_compute_time=1, backward_compute_time=2, activation_size=4, parameter_size=8"
OF_PROFILE = ("--samples", "4", "--device-class", "card")


@pytest.mark.parametrize("spell", SPELLINGS)
@pytest.mark.parametrize(
    ("command", "read"),
    [
        (("trace", "graph.txt", *OF_PROFILE, "--out"), "graph.txt"),
        (("study", "sailor", "--data", "data", "--out"), "data/profile.json"),
    ],
)
def test_what_is_read_is_not_replaced(
    scenario: Path, pipecut: Command, command: tuple[str, ...], read: str, spell: Callable[[Path], str]
) -> None:
    if spell is hard_link and "/" in read:
        pytest.skip("a write replaces the link, and the file of the folder stays as it is")
    Path("data").mkdir()
    Path("data/profile.json").write_text("{}", encoding="utf-8")
    Path("graph.txt").write_text("x", encoding="utf-8")
    target = spell(scenario.parent / read)
    before = content(scenario.parent)
    ran = pipecut(*command, target)
    assert ran.code == 2 and ran.out == "" and "would replace" in ran.err and command[-1] in ran.err
    assert content(scenario.parent) == before


def test_a_study_may_be_written_again_beside_its_data(tmp_path: Path, pipecut: Command) -> None:
    document = tmp_path / "study.md"
    document.write_text("old", encoding="utf-8")
    ran = pipecut("study", "sailor", "--data", tmp_path, "--out", document)
    assert "would replace" not in ran.err


def test_the_gap_table_replaces_no_shipped_scenario(pipecut: Command) -> None:
    target = ROOT / "scenarios" / "pipepar" / "vgg16.yaml"
    before = target.read_bytes()
    ran = pipecut("compare", "--all", "--out", target)
    assert ran.code == 2 and "a shipped scenario" in ran.err and target.read_bytes() == before


@pytest.mark.parametrize(
    "words", [["compare", "x"], ["study", "gpipe"], ["trace", "a:b", "--out", "o"]], ids=lambda words: words[0]
)
def test_every_argument_that_is_a_file_is_declared(words: list[str]) -> None:
    arguments = parse(words)
    found = {one.dest for one in grammar_for(words).of(words[0])._actions if one.metavar in FILES}
    assert found == {*arguments.reads, *arguments.writes}


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("study", "gpipe", "--out", "new.md"), "new.md"),
        (("trace", "profile.txt", *OF_PROFILE, "--out", "new.json"), "new.json"),
    ],
)
def test_a_full_disk_names_the_file(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], file: str
) -> None:
    Path("profile.txt").write_text(f"a -- Linear -- {NUMBERS}\n", encoding="utf-8")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = content(scenario.parent)
    monkeypatch.setattr(os, "fsync", full)
    ran = pipecut(*words)
    assert ran.code == 2 and "Traceback" not in ran.err
    (line,) = ran.err.splitlines()
    assert f"{file}: " in line and "No space left on device" in line
    assert content(scenario.parent) == before


def test_replies_of_trace_and_study(pipecut: Command, scenario: Path) -> None:
    Path("graph.txt").write_text(f"a -- Linear -- {NUMBERS}\nb -- ReLU -- {NUMBERS}\n\ta -- b\n", encoding="utf-8")
    found = pipecut("trace", "graph.txt", *OF_PROFILE, "--out", "graph.json", "--json").json
    expected = {"model": "graph.txt", "out": "graph.json", "layers": 2, "edges": 1, "parameter_bytes": 16}
    assert found == expected
    assert pipecut("study", "gpipe", "--json").json["study"] == "gpipe"
    error = error_of(pipecut("study", "nothing", "--json").out)
    assert (error["code"], error["kind"]) == (2, "bad input")


def test_what_was_meant_is_asked(pipecut: Command) -> None:
    ran = pipecut("study", "pipeper")
    assert ran.code == 2 and ran.err.rstrip().endswith("did you mean 'pipepar'?")


def test_hostile_names(tmp_path: Path, pipecut: Command) -> None:
    harmless(pipecut("study", EVIL))
    harmless(pipecut("study", EVIL, "--json"))
    (tmp_path / EVIL).mkdir()
    harmless(pipecut("study", "sailor", "--data", tmp_path))
    Path("graph.txt").write_text(f"{EVIL} -- {EVIL} -- x\n\t{EVIL} -- {EVIL}\n", encoding="utf-8")
    ran = pipecut("trace", "graph.txt", "--samples", "4", "--device-class", EVIL, "--out", "graph.json")
    assert ran.code == 2
    harmless(ran)


def test_a_plan_in_its_best_order_stands_beside_no_other(pipecut: Command, scenario: Path) -> None:
    pipecut("plan", scenario, "--out", "plan.json")
    ran = pipecut("simulate", scenario, "--against", "plan.json", "--schedule", "best")
    assert ran.code == 2 and "--against: not with --schedule best" in ran.err


def test_the_line_of_a_study_parses() -> None:
    assert parse(["study", "pipepar"]).run == "pipecut_literature.studies.command"
    assert parse(["compare", "--all"]).run == "pipecut_literature.gaps.command"
    assert parse(["compare", "x"]).run == "pipecut.commands.compare"
