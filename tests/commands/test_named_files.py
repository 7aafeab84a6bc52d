"""Outputs never replace what is read, nor one another: refused before any work, whatever the file is called."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipecut.commands.main import outputs_of
from pipecut.commands.parser.options import grammar_for, parse
from tests.command_line import Command


def hard_link(path: Path) -> str:
    os.link(path, "hard.link")
    return "hard.link"


def symlink(path: Path) -> str:
    Path("soft.link").symlink_to(path)
    return "soft.link"


def roundabout(path: Path) -> str:
    Path("sub").mkdir()
    return f"./sub/../{os.path.relpath(path)}"


SPELLINGS: list[Callable[[Path], str]] = [str, os.path.relpath, roundabout, symlink, hard_link]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def files(pipecut: Command, scenario: Path) -> Path:
    for name in ("plan.json", "proof.json", "order.csv", "tiny_model.py"):
        Path(name).write_text("{}", encoding="utf-8")
    return scenario


@pytest.mark.parametrize("spell", SPELLINGS)
@pytest.mark.parametrize(
    ("command", "read"),
    [
        (("plan", "tiny.yaml", "--solver", "stuck", "--out"), "tiny.yaml"),
        (("plan", "tiny.yaml", "--solver", "stuck", "--out"), "tiny.json"),
        (("plan", "tiny.yaml", "--solver", "stuck", "--certificate"), "tiny.yaml"),
        (("simulate", "tiny.yaml", "--solver", "stuck", "--out"), "tiny.yaml"),
        (("simulate", "tiny.yaml", "--plan", "plan.json", "--trace"), "plan.json"),
        (("simulate", "tiny.yaml", "--schedule-file", "order.csv", "--out"), "order.csv"),
        (("trace", "tiny_model:build", "--out"), "tiny_model.py"),
    ],
)
def test_what_is_read_is_not_replaced(
    files: Path, pipecut: Command, command: tuple[str, ...], read: str, spell: Callable[[Path], str]
) -> None:
    target = spell(files.parent / read)
    before = content(files.parent)
    ran = pipecut(*command, target)
    assert ran.code == 2 and ran.out == "" and "would replace" in ran.err and command[-1] in ran.err
    assert content(files.parent) == before


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "tiny.yaml", "--solver", "stuck", "--out", "x.json", "--certificate", "x.json"),
        ("plan", "tiny.yaml", "--solver", "stuck", "--out", "x.json", "--certificate", "./sub/../x.json"),
        ("plan", "tiny.yaml", "--solver", "stuck", "--out", "old.json", "--certificate", "older.json"),
        ("simulate", "tiny.yaml", "--solver", "stuck", "--out", "x", "--trace", "x"),
        ("simulate", "tiny.yaml", "--solver", "stuck", "--out", "x", "--svg", "x"),
        ("simulate", "tiny.yaml", "--solver", "stuck", "--out", "sub/plan.svg", "--svg", "sub"),
        ("simulate", "tiny.yaml", "--solver", "stuck", "--trace", "sub/plan.svg", "--svg", "./sub"),
    ],
)
def test_two_outputs_are_two_files(pipecut: Command, scenario: Path, words: tuple[str, ...]) -> None:
    Path("sub").mkdir()
    Path("old.json").write_text("old", encoding="utf-8")
    Path("older.json").symlink_to("old.json")
    before = content(scenario.parent)
    ran = pipecut(*words)
    assert ran.code == 2 and ran.out == "" and "is the same file as" in ran.err
    assert content(scenario.parent) == before


def test_what_may_stand_side_by_side(pipecut: Command, scenario: Path) -> None:
    Path("pictures").mkdir()
    Path("plan.json").write_text("old", encoding="utf-8")
    ran = pipecut("plan", scenario, "--out", "plan.json", "--certificate", "proof.json")
    assert ran.code == 0 and Path("plan.json").read_text(encoding="utf-8") != "old"
    out = ("--out", "pictures/page.html", "--trace", "pictures/trace.json", "--svg", "pictures")
    assert pipecut("simulate", scenario, *out).code == 0
    assert len(list(Path("pictures").iterdir())) == 6


def test_every_argument_that_is_a_file_is_declared() -> None:
    """What the grammar calls a file or a folder is among what its command reads or writes."""
    lines = {
        "plan": ["plan", "x"],
        "compare": ["compare", "x"],
        "evaluate": ["evaluate", "p", "x"],
        "simulate": ["simulate", "x"],
        "trace": ["trace", "a:b", "--out", "o"],
        "verify": ["verify", "c", "x"],
    }
    for command, words in lines.items():
        arguments = parse(words)
        found = {action.dest for action in _actions(command) if action.metavar in FILES}
        assert found == {*arguments.reads, *arguments.writes}, command


FILES = ("FILE", "FOLDER", "DIR", "SCENARIO", "PLAN", "CERTIFICATE", "MODULE:FUNCTION")


def _actions(command: str) -> list[argparse.Action]:
    return grammar_for([command]).of(command)._actions


def test_outputs_are_named_by_their_options() -> None:
    found = list(outputs_of(parse(["simulate", "x", "--out", "a", "--png", "b"])))
    assert [(one.what, str(one.path), one.ending) for one in found] == [("--out", "a", ""), ("--png", "b", ".png")]


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("plan", "tiny.yaml", "--out", "new.json"), "new.json"),
        (("plan", "tiny.yaml", "--certificate", "new.json"), "new.json"),
        (("simulate", "tiny.yaml", "--out", "new.html"), "new.html"),
        (("simulate", "tiny.yaml", "--trace", "new.json"), "new.json"),
        (("simulate", "tiny.yaml", "--svg", "new"), "plan.svg"),
    ],
)
def test_a_full_disk_names_the_file(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], file: str
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = content(scenario.parent)
    monkeypatch.setattr(os, "fsync", full)
    ran = pipecut(*words)
    assert ran.code == 2 and "Traceback" not in ran.err
    (line,) = ran.err.splitlines()
    assert f"{file}: " in line and "No space left on device" in line
    assert content(scenario.parent) == before
