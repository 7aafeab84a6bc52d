"""Outputs about plans that were run by processes, or written for others: ``run``, ``validate``, ``export``."""

from __future__ import annotations

from typing import Literal

from pipecut.commands.outputs.common import Output, Part


class StepPart(Part):
    """A step: the loss before the weights changed (null: no finite number), and its time on this machine.

    ``snapshot`` is the folder of a snapshot that was written behind it.
    """

    step: int
    loss: float | None
    time_ns: int
    snapshot: str | None


class RunOutput(Output):
    """What ``pipecut run --json`` writes; ``predicted_step_ns`` is for the devices of the scenario."""

    scenario: str
    plan: str
    schedule: str
    processes: int
    steps: list[StepPart]
    predicted_step_ns: int | None


class DifferencePart(Part):
    """The value of a stage's losses, gradients and buffers that differs most from the unsplit model's.

    ``step`` counts from 1. Null: no finite number. Where ``tolerance`` is that of 16 bits, the values are norms.
    """

    stage: int
    parameter: str
    step: int
    found: float | None
    expected: float | None
    relative_difference: float | None
    tolerance: float


class MeasuredStagePart(Part):
    """Mean times of a stage's passes: on its slowest process, and predicted for its devices (null: no price)."""

    stage: int
    forward_ns: int
    backward_ns: int
    predicted_forward_ns: int | None
    predicted_backward_ns: int | None


class MeasuredProcessPart(Part):
    """The most bytes that the tensors of a process held, and what is predicted without the optimiser's state."""

    process: int
    stages: list[int]
    peak_bytes: int
    predicted_peak_bytes: int | None


class MeasuredRunPart(Part):
    """Measured steps. ``timeline_of_measured_ns`` is the step by the timeline from the measured times of passes.

    ``schedule_error`` holds that against the measured step, ``layers_error`` the predicted step against that.
    ``machine`` is how much longer a small computation took around the steps (``probe_ns``) than when the profile
    was measured (``profile_probe_ns``), as a share: 0.1 is a slower machine. ``layers_error_left`` is the error of
    layers without it: ``(1 + layers_error) * (1 + machine) - 1``. All but ``probe_ns`` are null without a profile
    of this processor that says its probe.
    """

    steps: int
    measured_step_ns: int
    timeline_of_measured_ns: int
    predicted_step_ns: int | None
    schedule_error: float
    layers_error: float | None
    probe_ns: int
    profile_probe_ns: int | None
    machine: float | None
    layers_error_left: float | None
    stages: list[MeasuredStagePart]
    processes: list[MeasuredProcessPart]


class ValidateOutput(Output):
    """What ``pipecut validate --json`` writes: whether all that was ``compared`` is equal within its tolerance.

    ``faults`` says in words what differs otherwise. ``measured`` is null with ``--steps 0``, and under torchrun in
    all processes but the first.
    """

    scenario: str
    plan: str
    equal: bool
    compared: int
    faults: list[str]
    stages: list[DifferencePart]
    measured: MeasuredRunPart | None


class ProfiledSizePart(Part):
    """Times for micro-batches of ``samples``: sums over layers, and the whole, timed without a stop inside.

    ``probe_ns`` is how long the same small computation took meanwhile: how fast the machine was.
    """

    samples: int
    sum_forward_ns: int
    sum_backward_ns: int
    whole_forward_ns: int
    whole_backward_ns: int
    spread: float
    probe_ns: int | None


class ProfiledLayerPart(Part):
    """A layer's measured times for the scenario's micro-batch, and those predicted for the device class."""

    layer: str
    forward_ns: int
    backward_ns: int
    predicted_forward_ns: int
    predicted_backward_ns: int


class ProfileOutput(Output):
    """What ``pipecut profile --json`` writes beside the file."""

    scenario: str
    out: str
    device_class: str
    machine: str
    torch: str
    threads: int
    at_once: int
    link_latency_ns: int
    link_bits_per_second: int
    sizes: list[ProfiledSizePart]
    layers: list[ProfiledLayerPart]


class ExportOutput(Output):
    """What ``pipecut export --json`` writes; ``out`` is null where no file was asked for.

    ``objective`` is the plan's value of the first goal, ``runs`` that of what the target runs: which has peaks of
    ``memory_bytes``, and ``divided_otherwise`` layers in other forms. ``notes`` say so in words.
    """

    scenario: str
    plan: str
    to: Literal["torchtitan", "megatron", "deepspeed", "script"]
    out: str | None
    text: str
    objective: int
    runs: int
    memory_bytes: int
    divided_otherwise: int
    notes: list[str]
