"""What README.md and docs/cli.md say is what the program does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from commands.main import main
from commands.terminal.exit_codes import MEANINGS
from tests.commands.fakes import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS = sorted({path.stem for path in (ROOT / "commands").glob("[a-z]*.py")} - {"entry", "main"})
OUTPUT = re.compile(r"<!-- output: (.+?) -->\n```text\n(.+?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.+?)```", re.DOTALL)
SECONDS = re.compile(r" *\d+\.\d\d s$", re.MULTILINE)


@pytest.mark.parametrize("text", [README, CLI], ids=["README.md", "docs/cli.md"])
def test_the_exit_codes(text: str) -> None:
    rows = {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)}
    assert rows == {int(code): meaning for code, meaning in MEANINGS.items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_described(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert {option for option in options if option not in CLI} == set()


def test_every_described_option_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        main([command, "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) | {"--version"}
    assert set(re.findall(r"--[a-z-]+[a-z]", README + CLI)) <= known


def test_links_and_folders_exist() -> None:
    for name, text in (("README.md", README), ("docs/cli.md", CLI)):
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
    first, second, third = PYTHON.findall(README)
    exec(first, {})  # noqa: S102 (our own README)
    assert capsys.readouterr().out.startswith("optimal 4868")
    names: dict[str, object] = {}
    exec(second, names)  # noqa: S102
    assert names["time_ns"] == 266_979_046
    assert isinstance(names["makespan_ns"], int) and names["makespan_ns"] > 266_979_046
    exec(third.replace('"page.html"', repr(str(tmp_path / "page.html"))), {})  # noqa: S102
    assert capsys.readouterr().out.startswith("makespan of one step ")
    assert "zero_bubble_h1" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^(#+ .+)$", text, re.MULTILINE)
    assert headings[:3] == ["# Changelog", "## [Unreleased]", "### Added"]


def test_no_document_is_left_with_a_placeholder() -> None:
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *Path(ROOT / "docs").rglob("*.md")]:
        assert not re.search(r"\b(TODO|FIXME|PLACEHOLDER)\b", path.read_text(encoding="utf-8")), path
