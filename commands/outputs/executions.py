"""Outputs about plans that were run by processes, or written for others: ``run``, ``validate``, ``export``."""

from __future__ import annotations

from typing import Literal

from commands.outputs.common import Output, Part

__all__: list[str] = []


class StepPart(Part):
    """A step: the loss before the weights changed (null: no finite number), and its time on this machine."""

    step: int
    loss: float | None
    time_ns: int


class RunOutput(Output):
    """What ``pipecut run --json`` writes; ``predicted_step_ns`` is for the devices of the scenario."""

    scenario: str
    plan: str
    schedule: str
    processes: int
    steps: list[StepPart]
    predicted_step_ns: int | None


class DifferencePart(Part):
    """The value of a stage's gradients that differs most from the unsplit model's."""

    stage: int
    parameter: str
    found: float
    expected: float
    relative_difference: float


class ValidateOutput(Output):
    """What ``pipecut validate --json`` writes: whether all gradients are equal within the tolerance."""

    scenario: str
    plan: str
    equal: bool
    tolerance: float
    gradients: int
    stages: list[DifferencePart]


class ExportOutput(Output):
    """What ``pipecut export --json`` writes; ``out`` is null where no file was asked for."""

    scenario: str
    plan: str
    to: Literal["torchtitan", "megatron", "script"]
    out: str | None
    text: str
