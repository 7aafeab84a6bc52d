"""What README.md and docs/cli.md say is what the program does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from pipecut.commands.main import main
from pipecut.commands.outputs.schema import OUTPUTS
from pipecut.commands.parser.grammar import COMMANDS as BROUGHT
from pipecut.commands.terminal.failures import MEANINGS
from pipecut.solvers.installed import PLANNERS, registered
from tests.commands.fakes import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
FACE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
COMMANDS = sorted(OUTPUTS)
OUTPUT = re.compile(r"<!-- output: (.+?) -->\n```text\n(.+?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.+?)```", re.DOTALL)
SECONDS = re.compile(r" *\d+\.\d\d s$|^check +(certificate|.*priced by).*$", re.MULTILINE)
"""What depends on how fast the machine is."""


@pytest.mark.parametrize("text", [README, CLI], ids=["README.md", "docs/cli.md"])
def test_the_exit_codes(text: str) -> None:
    rows = {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)}
    assert rows == {int(code): meaning for code, meaning in MEANINGS.items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_described(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert {option for option in options if option not in CLI} == set()


@pytest.mark.skipif(not registered(BROUGHT), reason="they also describe what pipecut-literature adds")
def test_every_described_option_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        main([command, "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) | {"--version"}
    assert set(re.findall(r"--[a-z-]+[a-z]", README + CLI)) <= known


def test_links_and_folders_exist() -> None:
    for name, text in (("README.md", README), ("docs/cli.md", CLI), ("docs/python.md", FACE)):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (ROOT / name).parent.joinpath(target).exists(), target
    for folder in re.findall(r"^\| `(.+?)` \|", README.split("## Layout")[1], re.MULTILINE):
        assert (ROOT / folder).exists(), folder


def test_every_command_is_described() -> None:
    assert "plan" in COMMANDS
    for command in COMMANDS:
        assert f"\n    pipecut {command} " in README and f"\n## pipecut {command}\n" in CLI


def test_the_readme_gives_the_two_commands() -> None:
    assert "    python3 bootstrap.py plan " in README and "    python3 bootstrap.py test " in README


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "shown"), OUTPUT.findall(README))
def test_the_output_is_real(
    arguments: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    if "data_parallel" in arguments and not registered(PLANNERS):
        pytest.skip("it compares with planners of pipecut-literature")
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(shlex.split(arguments)) == 0
    assert SECONDS.sub("", capsys.readouterr().out) == SECONDS.sub("", shown)


@pytest.mark.slow
def test_the_python_examples_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    first, _, simulated, listing = PYTHON.findall(README)
    exec(first, {})  # noqa: S102 (our own README)
    shown = capsys.readouterr().out
    assert shown.startswith("optimal 4868") and "\nproof      optimal, proved" in shown
    exec(simulated.replace('"page.html"', repr(str(tmp_path / "page.html"))), {})  # noqa: S102
    assert capsys.readouterr().out.startswith("makespan of one step ")
    assert "zero_bubble_h1" in (tmp_path / "page.html").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    exec(listing, names)  # noqa: S102
    assert names["time_ns"] == 266_979_046
    assert isinstance(names["makespan_ns"], int) and names["makespan_ns"] > 266_979_046


@pytest.mark.slow
def test_the_examples_of_the_page_about_python_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    whole, with_solver = PYTHON.findall((ROOT / "docs" / "python.md").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(whole.replace('"plan.json"', repr(str(tmp_path / "plan.json"))), names)  # noqa: S102 (our own page)
    assert str(names["outcome"].proof) == "optimal" and (tmp_path / "plan.json").exists()
    exec(with_solver, names)  # noqa: S102
    assert names["scenario"].solver.limits().time_limit_s == 5.0


def test_a_problem_is_said_in_fifteen_lines(capsys: pytest.CaptureFixture[str]) -> None:
    said = PYTHON.findall(README)[1]
    statements = said.replace("\n\n", "\n").strip().splitlines()
    assert len(statements) <= 16  # with the import
    assert re.findall(r"^(?:import|from) (\w+)", said, re.MULTILINE) == ["pipecut"]
    names: dict[str, Any] = {}
    exec(said, names)  # noqa: S102 (our own README)
    outcome = names["outcome"]
    assert capsys.readouterr().out == f"{outcome}\n"
    assert str(outcome.proof) == "optimal" and len(outcome.plan) > 1


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^(#+ .+)$", text, re.MULTILINE)
    assert headings[:3] == ["# Changelog", "## [Unreleased]", "### Added"]


def test_no_document_is_left_with_a_placeholder() -> None:
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *Path(ROOT / "docs").rglob("*.md")]:
        assert not re.search(r"\b(TODO|FIXME|PLACEHOLDER)\b", path.read_text(encoding="utf-8")), path
