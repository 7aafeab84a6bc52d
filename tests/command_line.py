"""The command line in this process: fixtures that every room's tests may use."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import TypeAdapter

from pipecut.commands.main import main
from pipecut.commands.outputs.common import Failure
from pipecut.commands.outputs.schema import OUTPUTS
from pipecut.commands.terminal.reply import KINDS
from pipecut.solvers import catalogue
from tests.commands.fakes import entries, write_scenario


class Ran(NamedTuple):
    """What a command returned and wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


Command = Callable[..., Ran]


def check_output(command: str, text: str) -> None:
    """Raise pydantic's ValidationError unless text is one JSON object that a command may write.

    What is no command (the command line is at fault) may write a Failure only.
    """
    any_of: Any = functools.reduce(operator.or_, (*OUTPUTS.get(command, ()), Failure))
    TypeAdapter(any_of).validate_json(text)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Traced models are cached for these tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPECUT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny scenario in a folder that is also the working directory."""
    monkeypatch.chdir(tmp_path)
    return write_scenario(tmp_path)


@pytest.fixture
def pipecut(scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in this process, with the misbehaving solvers in the catalogue.

    Whatever a test asks with ``--json`` is held against the schema of outputs. An explanation that nobody set a
    time for gets as much as it needs: what a test says may not hang on how fast a machine is.
    """
    monkeypatch.setattr(catalogue, "SOLVERS", entries())
    monkeypatch.setattr("pipecut.commands.explain.UNLIMITED_S", 600.0)

    def command(*arguments: str | Path) -> Ran:
        words = [str(argument) for argument in arguments]
        code = main(words)
        captured = capsys.readouterr()
        if "--json" in words:
            check_output(words[0], captured.out)
            assert ("error" in json.loads(captured.out)) == (code in KINDS)
        return Ran(code, captured.out, captured.err)

    return command
