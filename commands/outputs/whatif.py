"""Outputs of ``sensitivity`` and ``sweep``. Every answer has the stages of its plan, as plan files write them."""

from __future__ import annotations

from typing import Any, Literal

from pipecut.commands.outputs.common import GoalClaimPart, Output, Part, ProofName, ScopePart, StagePart


class WhatIfPart(Part):
    """The best plan under one change; without an outcome ``reason`` says why nobody was asked, or answered.

    ``of_a_step`` is the first goal for a whole step, ``effect`` how much more it is than as it is, as a share.
    """

    what: str
    kind: Literal["memory", "servers", "links", "micro_batches", "devices"] | None
    solver: str | None
    proof: ProofName | None
    objective: int | None
    bound: int | None
    gap: float | None
    of_a_step: int | None
    effect: float | None
    micro_batches: int | None
    goals: list[GoalClaimPart]
    seconds: float | None
    notes: list[str]
    reason: str
    stages: list[StagePart]


class SensitivityOutput(Output):
    """``pipecut sensitivity``: the best plan as it is and under every change, what helps most first."""

    scenario: str
    scope: ScopePart
    goal: str
    unit: str
    base: WhatIfPart
    changes: list[WhatIfPart]


class SweepGoalPart(Part):
    """A goal of a plan: value and bound in ``unit``."""

    goal: str
    unit: str
    value: int
    bound: int | None


class SweepStagePart(Part):
    """A stage of a plan in short: its first and last layer, and its devices."""

    first: str
    last: str
    devices: dict[str, int]
    replicas: int
    recompute: bool | Literal["layers"] | list[tuple[str, str]]


class SweepSearchPart(Part):
    """How a point was searched."""

    solver: str
    time_limit_s: float | None
    workers: int
    seed: int
    cross_check: bool


class SweepFoundPart(Part):
    """What was found for a point, as a line of the file of results; without a ``proof`` the ``reason`` says why.

    ``throughput`` is in samples per second, by the executed time where that is minimised and else by a formula;
    prices are in millionths per hour.
    """

    key: str
    settings: dict[str, Any]
    search: SweepSearchPart
    at: int
    proof: ProofName | None
    solver: str | None
    objective: int | None
    bound: int | None
    gap: float | None
    goals: list[SweepGoalPart]
    throughput: float | None
    price_per_hour: int | None
    plan_price_per_hour: int | None
    devices: int | None
    used_devices: int | None
    micro_batches: int | None
    stages: list[SweepStagePart]
    seconds: float
    notes: list[str]
    reason: str


class SweepPointPart(Part):
    """A point of a sweep; ``found`` is null where it was not planned yet."""

    settings: dict[str, Any]
    on_front: bool
    found: SweepFoundPart | None


class SweepOutput(Output):
    """``pipecut sweep``: all points in the order of the sweep file."""

    sweep: str
    scenario: str
    results: str
    kept: int
    searched: int
    points: list[SweepPointPart]
