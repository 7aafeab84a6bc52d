"""bootstrap.py with every program that it would start replaced by a note of the call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bootstrap

Calls = list[list[str]]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A project of its own, and the list of programs that were run for it."""
    (tmp_path / bootstrap.BESIDE).mkdir()
    for name in ("pyproject.toml", f"{bootstrap.BESIDE}/pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    venv = tmp_path / ".venv"
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", venv)
    monkeypatch.setattr(bootstrap, "PYTHON", venv / "bin" / "python")
    monkeypatch.setattr(bootstrap, "STAMP", venv / "stamp")
    monkeypatch.setattr(bootstrap, "STARTED", venv / "started")
    made: Calls = []
    monkeypatch.setattr(bootstrap.subprocess, "run", runner(made, lambda _: None))
    monkeypatch.setattr(bootstrap, "_run", lambda command: made.append(command) or 0)
    return made


def runner(made: Calls, pip: Callable[[list[str]], None]) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        made.append(command)
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
        if "pip" in command:
            pip(command)
        return subprocess.CompletedProcess(command, 0)

    return run


def installs(calls: Calls) -> list[str]:
    """What pipecut was installed with each time; the distribution beside it is installed with it."""
    made = [command for command in calls if "--editable" in command]
    named = [[one[at + 1] for at, word in enumerate(one) if word == "--editable"] for one in made]
    assert [rest for _, *rest in named] == [[bootstrap.BESIDE]] * len(made)
    return [first for first, *_ in named]


def environments(calls: Calls) -> int:
    return sum("venv" in command for command in calls)


def test_plan_sets_up_and_plans(calls: Calls) -> None:
    assert bootstrap.main(["plan", "--json"]) == 0
    assert environments(calls) == 1 and installs(calls) == [".[torch]"]
    assert calls[-1][1:] == ["plan", bootstrap.SCENARIO, "--json"]
    assert (Path(__file__).resolve().parents[1] / bootstrap.SCENARIO).is_file()


def test_the_tests_take_all_cores_where_nothing_is_said() -> None:
    assert bootstrap.command_line("test", [])[-4:] == ["-n", "auto", "--dist", "worksteal"]
    assert bootstrap.command_line("test", ["-m", "alone"])[-2:] == ["-m", "alone"]


def test_nothing_is_installed_twice(calls: Calls) -> None:
    for command in ("test", "plan", "test", "plan"):
        bootstrap.main([command, "-k", "x"])
    assert environments(calls) == 1 and installs(calls) == [".[dev,docs,notebook,png,torch]"]
    assert [command[-2:] for command in calls[-2:]] == [["-k", "x"], ["-k", "x"]]


def test_the_other_order_adds_what_is_missing(calls: Calls) -> None:
    for command in ("plan", "test", "plan"):
        bootstrap.main([command])
    assert installs(calls) == [".[torch]", ".[dev,docs,notebook,png,torch]"] and calls[-2][1:4] != [
        "-m",
        "pip",
        "install",
    ]


@pytest.mark.parametrize("name", ["pyproject.toml", "literature/pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed(calls: Calls, name: str) -> None:
    bootstrap.main(["test"])
    (bootstrap.ROOT / name).write_text("new", encoding="utf-8")
    bootstrap.main(["plan"])
    assert environments(calls) == 1 and installs(calls) == [".[dev,docs,notebook,png,torch]", ".[torch]"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 5}', '{"key": "x", "extras": []}'])
def test_a_stamp_that_cannot_be_trusted_is_none(calls: Calls, text: str) -> None:
    bootstrap.main(["plan"])
    bootstrap.STAMP.write_text(text, encoding="utf-8")
    bootstrap.main(["plan"])
    assert len(installs(calls)) == 2


def test_an_interrupted_installation_starts_over(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap.subprocess, "run", runner(calls, interrupted))
    assert bootstrap.main(["plan"]) == bootstrap.FAILED and bootstrap.STARTED.exists()
    monkeypatch.setattr(bootstrap.subprocess, "run", runner(calls, lambda _: None))
    assert bootstrap.main(["plan"]) == 0
    assert environments(calls) == 2 and not bootstrap.STARTED.exists()


def test_a_failed_installation_is_tried_again_in_place(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failed(command: list[str]) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(bootstrap.subprocess, "run", runner(calls, failed))
    assert bootstrap.main(["plan"]) == bootstrap.FAILED
    assert "the set-up" in capsys.readouterr().err and not bootstrap.STAMP.exists()
    monkeypatch.setattr(bootstrap.subprocess, "run", runner(calls, lambda _: None))
    assert bootstrap.main(["plan"]) == 0 and environments(calls) == 1


def test_links_for_type_checkers_are_those_of_the_rooms_that_are_there(calls: Calls) -> None:
    for name in ("face", "one", "other"):
        (bootstrap.ROOT / name).mkdir()
        (bootstrap.ROOT / name / "__init__.py").touch()
    links = bootstrap.ROOT / ".links" / "pipecut"
    bootstrap.link_rooms()
    assert {path.name for path in links.iterdir()} == {"__init__.py", "one", "other"}
    (bootstrap.ROOT / "other" / "__init__.py").unlink()
    bootstrap.link_rooms()
    assert {path.name for path in links.iterdir()} == {"__init__.py", "one"}
    assert (links / "one").resolve() == (bootstrap.ROOT / "one").resolve()


def test_an_old_python_is_told_kindly(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 2, "final", 0))
    assert bootstrap.main(["plan"]) == bootstrap.FAILED and calls == []
    assert "needs Python 3.11 or later" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["fly"], ["--help"]])
def test_usage(calls: Calls, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert bootstrap.main(arguments) == bootstrap.FAILED and calls == []
    assert "usage: python3 bootstrap.py {plan,test}" in capsys.readouterr().err


def test_it_needs_the_standard_library_only() -> None:
    import ast

    tree = ast.parse(Path(bootstrap.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names)
