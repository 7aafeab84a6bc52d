"""Probes around measured steps: outside of their times, and in what is told of the run. Nothing is timed."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from pipecut.commands import validate as measuring
from pipecut.commands.validate import write_measured
from pipecut.execution import measuring as steps
from pipecut.execution.measuring import WARM_UP, MeasuredSteps
from pipecut.execution.processes.local import Voice
from pipecut.execution.running.job import RunJob
from pipecut.ingest.graphs.layer_profile import LayerProfile


class Machine:
    """A run of one process whose clock goes on by what each thing takes, and notes what was done when."""

    probe_ns, step_ns, wait_ns = 7, 100, 10

    def __init__(self) -> None:
        self.now_ns, self.done, self.steps = 0, list[str](), 3
        self.layout = SimpleNamespace(processes=[[0]])
        self.times, self.sum_ns, self.crossing_bytes, self.doing = (), 0, (), None
        self.stages, self.parameters = (), {}

    def took(self, what: str, ns: int) -> int:
        self.done.append(what)
        self.now_ns += ns
        return ns

    def built(self) -> tuple[None, tuple[()]]:
        return None, ()

    def pipeline(self, *_: object, **__: object) -> Machine:
        return self

    def optimizer_of(self, _: object) -> None:
        return None

    def batch(self, *_: object) -> tuple[()]:
        self.took("batch", 1000)
        return ()

    def together(self) -> None:
        self.took("together", self.wait_ns)

    def step(self, *_: object) -> None:
        self.took("step", self.step_ns)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    slower = iter(range(1000))
    monkeypatch.setattr(steps, "probe_ns", lambda _: made.took("probe", made.probe_ns + next(slower) // 2))
    monkeypatch.setattr(steps, "device_here", lambda: steps.torch.device("cpu"))
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter_ns=lambda: made.now_ns))
    monkeypatch.setattr(steps, "peak_bytes", lambda *_: 0)
    monkeypatch.setattr(Machine, "precision", None, raising=False)
    return made


def test_probes_are_taken_around_a_step_and_outside_of_its_time(machine: Machine) -> None:
    """All wait for each other between a probe and the step, so no process begins late and no probe is timed."""
    say = cast(Voice, SimpleNamespace(doing=None))
    found = steps._measure(0, say, cast(RunJob, machine))
    of_a_step = ["batch", "probe", "together", "step", "together", "probe"]
    many = WARM_UP + machine.steps
    assert machine.done[: many * len(of_a_step)] == of_a_step * many
    assert Counter(machine.done)["probe"] == 2 * many
    assert found.steps == [machine.step_ns + machine.wait_ns] * machine.steps
    assert found.probes == [machine.probe_ns + at for at in range(WARM_UP, many)], "warm-up counts for nothing"


def measured(process: int, probes: list[int], processor: str = "a core") -> MeasuredSteps:
    return MeasuredSteps(process, {}, [100], [], [], {}, 0, probes, processor)


def profile(probe_ns: int | None) -> LayerProfile:
    times = {"samples": 2, "whole_forward_ns": 1, "whole_backward_ns": 1, "spread": 0.0, "layers": []}
    return LayerProfile.model_validate(
        {
            "model": "m",
            "device_class": "core",
            "machine": "a core",
            "torch": "2",
            "threads": 1,
            "link": {"latency_ns": 1, "bits_per_second": 1},
            "times": [times | {"probe_ns": probe_ns}],
        }
    )


ROWS = [measured(0, [90, 110, 500]), measured(1, [130, 10, 130])]
"""Medians of 110 and 130 ns."""


@pytest.mark.parametrize(
    ("rows", "kept", "then_ns", "machine"),
    [
        (ROWS, profile(100), 100, 0.2),
        (ROWS, profile(240), 240, -0.5),
        (ROWS, profile(None), None, None),
        (ROWS, None, None, None),
        ([ROWS[0], measured(1, [130], "another")], profile(100), None, None),
    ],
)
def test_the_error_of_layers_has_two_parts(
    rows: list[MeasuredSteps], kept: LayerProfile | None, then_ns: int | None, machine: float | None
) -> None:
    """Predicted 80 where the timeline of measured passes takes 100; no machine where a probe is missing."""
    found = measuring.layers_content(rows, 0.8, measuring.profiled_probe_ns(rows, kept, 2))
    assert found["layers_error"] == pytest.approx(-0.2)
    assert (found["probe_ns"], found["profile_probe_ns"]) == (120, then_ns)
    if machine is None:
        assert found["machine"] is None and found["layers_error_left"] is None
    else:
        assert found["machine"] == pytest.approx(machine)
        assert found["layers_error_left"] == pytest.approx(0.8 * (1 + machine) - 1)


def test_a_plan_without_a_price_has_a_machine_and_no_error_of_layers() -> None:
    found = measuring.layers_content(ROWS, None, 100)
    assert found["machine"] == pytest.approx(0.2)
    assert (found["layers_error"], found["layers_error_left"]) == (None, None)


def said(capsys: pytest.CaptureFixture[str], **parts: Any) -> str:
    content = {
        "steps": 1,
        "stages": [],
        "processes": [],
        "predicted_step_ns": 80,
        "measured_step_ns": 100,
        "timeline_of_measured_ns": 100,
        "schedule_error": 0.0,
    }
    write_measured(content | parts)
    return capsys.readouterr().out


def test_people_are_told_how_fast_the_machine_was(capsys: pytest.CaptureFixture[str]) -> None:
    slower = said(capsys, **measuring.layers_content(ROWS, 0.8, 100))
    assert "the layers are off by -20.0 %" in slower
    assert (
        "the machine was 20.0 % slower than when it was profiled (a probe took 100 ns, and now 120 ns)" in slower
    )
    assert "at one speed the layers are off by -4.0 %" in slower
    assert "50.0 % faster" in said(capsys, **measuring.layers_content(ROWS, 0.8, 240))
    assert "machine" not in said(capsys, **measuring.layers_content(ROWS, 0.8, None))
    assert "at one speed" not in said(capsys, **measuring.layers_content(ROWS, None, 100))
