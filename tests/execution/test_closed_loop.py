"""The closed loop with stand-ins for the machine: which try counts, and what is said of it. Nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.running import closed_loop
from benchmarks.running.closed_loop import HEADS, TRIES, Failed, document, measure

NAME = next(iter(closed_loop.MODELS))
Plays = Callable[..., list[int]]


def found(machine: float, layers: float = 0.0) -> dict[str, Any]:
    """Return what ``pipecut validate`` would say of a run on a machine that moved so."""
    step = 10**8
    return {
        "predicted_step_ns": round(step * (1 + layers)),
        "measured_step_ns": step,
        "layers_error": layers,
        "schedule_error": 0.0,
        "machine": machine,
        "layers_error_left": (1 + layers) * (1 + machine) - 1,
    }


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> Plays:
    """Return what lets the tries of a loop be these, in order, and notes which were asked for."""

    def play(*tries: dict[str, Any] | Failed) -> list[int]:
        asked: list[int] = []
        coming: Iterator[dict[str, Any] | Failed] = iter(tries)

        def measured(name: str, steps: int) -> dict[str, Any]:
            assert name == NAME
            asked.append(steps)
            one = next(coming)
            if isinstance(one, Failed):
                raise one
            return one

        monkeypatch.setattr(closed_loop, "measured", measured)
        return asked

    return play


def test_a_steady_machine_is_measured_once(plays: Plays) -> None:
    asked = plays(found(-0.05, layers=-0.5))
    row = measure(NAME, 7)
    assert asked == [7] and tuple(row) == HEADS
    assert (row["machine"], row["layers"], row["left"], row["tries"]) == ("-5.0%", "-50.0%", "-52.5%", "-5.0%")


def test_a_machine_that_moved_is_measured_again_until_it_is_steady(plays: Plays) -> None:
    asked = plays(found(0.85, layers=0.0), found(0.02, layers=0.3), found(0.0))
    row = measure(NAME, 7)
    assert len(asked) == 2, "the second try was steady"
    assert (row["step"], row["machine"], row["tries"]) == ("+30.0%", "+2.0%", "+85.0%, +2.0%")


@pytest.mark.parametrize("errors", [(0.0, 0.9, 0.0), (0.9, 0.0, 0.9)])
def test_the_steadiest_try_counts_whatever_its_errors_are(plays: Plays, errors: tuple[float, ...]) -> None:
    machines = (0.4, -0.06, 0.07)
    asked = plays(*(found(*both) for both in zip(machines, errors, strict=True)), found(0.0))
    row = measure(NAME, 7)
    assert len(asked) == TRIES
    assert (row["machine"], row["layers"]) == ("-6.0%", f"{errors[1]:+.1%}")
    assert row["tries"] == "+40.0%, -6.0%, +7.0%"


def test_a_loop_that_is_refused_is_said(plays: Plays) -> None:
    asked = plays(Failed("too unsteady"))
    assert measure(NAME, 7) == {"model": NAME, "predicted": "refused: too unsteady"} and len(asked) == 1
    plays(found(0.4), Failed("too unsteady"), found(0.3))
    row = measure(NAME, 7)
    assert (row["machine"], row["tries"]) == ("+30.0%", "+40.0%, refused, +30.0%")


def test_the_document_explains_every_column(plays: Plays) -> None:
    plays(found(0.01))
    text = document([measure(NAME, 7), {"model": "another", "predicted": "refused: why"}], Path("x.md"), 7)
    assert "| model | predicted | measured | step | layers | schedule | machine | left | tries |" in text
    assert all(f"*{head.capitalize()}*" in text for head in HEADS[1:])
    assert (
        "further than 5% from zero" in text and "3 times in all at most" in text and "in 7 measured steps" in text
    )
    assert "| another | refused: why |  |" in text and "{" not in text
