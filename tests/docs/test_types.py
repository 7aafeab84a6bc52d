"""The page about types of stages shows what the command shows, and names every family of the model."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pipecut.solvers.cpsat.on_types.type_model import FAMILIES
from pipecut.solvers.cpsat.on_types.type_words import VARIABLES
from tests.command_line import Command

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "types.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_shows_what_the_command_writes(pipecut: Command) -> None:
    pytest.importorskip("torch")
    shown = re.findall(r"<!-- output: (.+?) -->\n```text\n(.+?)```", PAGE, re.DOTALL)
    assert shown and all(f"    pipecut {words}\n" in PAGE for words, _ in shown)
    for words, text in shown:
        ran = pipecut(*shlex.split(words))
        assert ran.code == 0 and text in ran.out


def test_the_page_names_every_family() -> None:
    assert {f"| {name} |" for name in FAMILIES} <= set(re.findall(r"^\| \w+ \|", PAGE, re.MULTILINE))
    named = set(
        re.findall(r"`(\w+)(?:\[[^`]*\])?`[,| ]", PAGE.partition("## Variables")[2].partition("## Objective")[0])
    )
    assert named - {"step_time"} == set(VARIABLES)
