"""Outputs of ``explain`` and ``diff``. Every statement has the stages of its plan, as plan files write them."""

from __future__ import annotations

from typing import Literal

from pipecut.commands.outputs.common import CriticalPart, Output, Part, ScopePart, StagePart
from pipecut.commands.outputs.plans import BrokenRulePart, ExplanationPart, OptimumPart


class MeasuredPart(Part):
    """What a list of values has at the same place: a goal and its unit."""

    goal: str
    unit: str


class LinkPart(Part):
    """A link between devices."""

    bits_per_second: int
    latency_ns: int


class TermPart(Part):
    """A part of the first goal: ``value`` is in it ``times`` times, and these add up to its value."""

    of: Literal["stage", "boundary"]
    stage: int
    value: int
    times: int
    binding: bool
    link: LinkPart | None


class RoomPart(Part):
    """What a stage needs of the memory of its smallest device."""

    needed_bytes: int
    capacity_bytes: int


class NeighbourPart(Part):
    """A plan one move away; ``costs`` is what every goal is more than that of the plan."""

    what: str
    values: list[int]
    costs: list[int]
    memory_bytes: int
    broken_rules: list[BrokenRulePart]
    stages: list[StagePart]


class NeighboursPart(Part):
    """All plans one move of a sort away: the best, how many were priced, and how many keep the rules."""

    best: NeighbourPart | None
    looked_at: int
    complete: bool


class CutPart(Part):
    """Why the cut before a stage is where it is."""

    stage: int
    layer: str
    left: NeighbourPart | None
    right: NeighbourPart | None
    nearest_left: NeighbourPart | None
    nearest_right: NeighbourPart | None
    elsewhere: NeighboursPart
    without: NeighboursPart


class ChoicePart(Part):
    """Why a stage has its devices, its mode and its forms."""

    stage: int
    devices: NeighboursPart
    mode: NeighboursPart
    form: NeighboursPart


class IdleServerPart(Part):
    """A server with idle devices, and the fastest link from these to a device that is used."""

    server: str
    idle: int
    link: LinkPart | None
    moves: NeighboursPart
    joins: NeighboursPart


class MoreDevicesPart(OptimumPart):
    """What a solver claims of the best plan with more devices."""

    stages: list[StagePart]


class IdlePart(Part):
    """Why no more devices are used; ``best`` is null where no solver takes the question, and ``note`` says why."""

    used: int
    servers: list[IdleServerPart]
    best: MoreDevicesPart | None
    note: str


class ReasonsPart(Part):
    """Why a plan is as it is."""

    goals: list[MeasuredPart]
    values: list[int]
    memory_bytes: int
    stages: list[StagePart]
    broken_rules: list[BrokenRulePart]
    terms: list[TermPart]
    memory: list[RoomPart]
    cuts: list[CutPart]
    choices: list[ChoicePart]
    idle: IdlePart | None
    chain: list[CriticalPart]
    better: NeighbourPart | None
    notes: list[str]


class ExplainOutput(Output):
    """``pipecut explain``: reasons of a plan, or why there is none. ``optimum`` is null for a plan from a file."""

    scenario: str
    plan: str | None
    scope: ScopePart
    optimum: OptimumPart | None
    reasons: ReasonsPart | None
    explanation: ExplanationPart | None


class ChangePart(Part):
    """A step from one plan to the other, and what it does to every measure."""

    of: Literal["stages", "cut", "devices", "mode", "recompute", "forms", "warm_up"]
    stage: int
    what: str
    values: list[int]
    effects: list[int]
    broken_rules: list[BrokenRulePart]
    stages: list[StagePart]


class DiffOutput(Output):
    """``pipecut diff``: the effects of all changes add up to ``after`` less ``before``."""

    scenario: str
    plans: list[str]
    measures: list[MeasuredPart]
    before: list[int]
    after: list[int]
    changes: list[ChangePart]
