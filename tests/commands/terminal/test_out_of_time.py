"""A time limit that ends while the model is still read: a message, exit code 3, a claim that knows nothing."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipecut.ingest.scenario.load import Scenario
from tests.command_line import Command

LATE = "no plan found in time: the time limit of 0.05 s was over while the model was read"


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reading a model takes until the test ends."""
    ended = threading.Event()
    monkeypatch.setattr(Scenario, "load", lambda _: ended.wait())
    yield
    ended.set()


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_it_says_so(command: str, pipecut: Command, scenario: Path) -> None:
    ran = pipecut(command, scenario, "--time-limit", "50 ms")
    assert ran.code == 3 and ran.out == "" and LATE in ran.err


def test_words_are_not_lost_in_what_a_model_does_with_the_streams(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads the model has put something else in the place of both, and is left so."""
    ended = threading.Event()

    def load(_: Scenario) -> None:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            ended.wait()

    monkeypatch.setattr(Scenario, "load", load)
    ran = pipecut("plan", scenario, "--time-limit", "50 ms")
    assert ran.code == 3 and LATE in ran.err
    ran = pipecut("plan", scenario, "--time-limit", "50 ms", "--json")
    assert ran.code == 3 and LATE in ran.json["notes"][0]
    ended.set()


@pytest.mark.usefixtures("endless")
def test_with_json_it_is_a_claim_that_knows_nothing(pipecut: Command, scenario: Path) -> None:
    planned = pipecut("plan", scenario, "--time-limit", "50 ms", "--json")
    assert planned.code == 3 and planned.json["proof"] == "unknown" and planned.json["stages"] == []
    assert LATE in planned.json["notes"][0]
    ran = pipecut("simulate", scenario, "--time-limit", "50 ms", "--json")
    assert ran.code == 3 and ran.json["claim"]["proof"] == "unknown" and LATE in ran.json["claim"]["notes"][0]
