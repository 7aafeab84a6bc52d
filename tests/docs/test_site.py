"""The documents as a site: what is made from the code is complete, commands run, pictures are the program's."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

import pipecut as public
from tests.command_line import Command
from tests.test_map import MADE

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FIRST = (DOCS / "first-model.md").read_text(encoding="utf-8")
SECONDS = re.compile(r" *\d+\.\d\d s$", re.MULTILINE)
PICTURES = "simulate scenarios/pipepar/vgg16.yaml --solver line_dp --svg docs/pictures"


def hook() -> ModuleType:
    """The module that makes pages while the site is built."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "making" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_made_from_the_code_leave_nothing_out() -> None:
    pages = hook().pages()
    assert set(pages) == MADE
    names = re.findall(r"^## `(\w+)`$", pages["reference/python.md"], re.MULTILINE)
    assert names == public.__all__
    for page, schema in (("scenario", "scenario"), ("json", "output")):
        parts = json.loads((ROOT / f"scenarios/{schema}.schema.json").read_text(encoding="utf-8"))
        text = pages[f"reference/{page}.md"]
        for name, part in parts["$defs"].items():
            section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
            assert section.strip(), name
            assert {key for key in part.get("properties", {}) if f"| `{key}` |" not in section} == set()


@pytest.mark.slow
def test_a_first_model_is_planned_in_ten_minutes(
    pipecut: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name, content in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.+?)```", FIRST, re.DOTALL):
        Path(name).write_text(content, encoding="utf-8")
    outputs = dict(re.findall(r"<!-- output: (.+?) -->\n```text\n(.+?)```", FIRST, re.DOTALL))
    commands = re.findall(r"^    pipecut (.+)$", FIRST, re.MULTILINE)
    assert [line.split()[0] for line in commands] == ["trace", "plan", "explain", "plan", "simulate", "validate"]
    for line in commands:
        ran = pipecut(*shlex.split(line))
        assert ran.code == 0, f"{line}: {ran.err}"
        if line in outputs:
            assert SECONDS.sub("", ran.out) == SECONDS.sub("", outputs.pop(line))
    assert outputs == {} and Path("page.html").exists()


@pytest.mark.slow
def test_the_pictures_are_those_of_the_program(
    pipecut: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    assert PICTURES in " ".join((DOCS / "page.md").read_text(encoding="utf-8").split())
    monkeypatch.chdir(ROOT)
    folder = tmp_path / "pictures"
    assert pipecut(*shlex.split(PICTURES)[:-1], folder).code == 0
    assert shapes(folder) == shapes(DOCS / "pictures")


def shapes(folder: Path) -> dict[str, str]:
    """The pictures of a folder without their style, which has the rules of all pictures."""
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    return {name: re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL) for name, text in found.items()}
