"""Outputs about one plan or model: ``plan``, ``evaluate``, ``verify``, ``trace`` and ``study``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipecut.commands.outputs.common import GoalClaimPart, Output, Part, ProofName, ScopePart, StagePart
from pipecut.commands.outputs.runs import SummaryPart


class RoutePart(Part):
    """What one route of ``--double-check`` answered."""

    route: str
    goal: str
    verdict: Literal["agreed", "inconclusive", "not applicable", "out of time"]
    seconds: float
    reason: str
    independent: bool
    shares: list[str]
    common_ground: list[str]


class LimitPart(Part):
    """A limit that takes part in a clash."""

    path: str
    words: str


class WayOutPart(Part):
    """A least change that helps; ``amount`` is null where a limit is left out."""

    paths: list[str]
    words: str
    amount: int | None
    least: int | None
    unit: str


class ClashPart(Part):
    """Limits that cannot hold together."""

    minimal: bool
    limits: list[LimitPart]
    ways_out: list[WayOutPart]


class OpenedPart(Part):
    """What to write in the scenario, which leaves it out, and a plan that then is one."""

    set: list[str]
    micro_batches: int
    proof: ProofName
    objective: int | None
    bound: int | None
    stages: list[StagePart]


class ExplanationPart(Part):
    """Why no plan exists: what the scenario leaves out and which plans that costs, and which limits clash.

    ``hopeless``: proved that there is no plan with all that is left out either.
    """

    complete: bool
    seconds: float
    notes: list[str]
    left_out: list[str]
    hopeless: bool
    opened: list[OpenedPart]
    clashes: list[ClashPart]


class PlainGridPart(Part):
    """The best plan of equal groups in one mode: the value of the first goal, and how it divides devices."""

    objective: int
    tensor_parallel_degree: int
    stages: int
    replicas: int
    sharded: str
    recompute: bool | str
    micro_batches: int


class PlanOutput(Output):
    """``pipecut plan``: a plan as in a plan file (``stages`` is empty without one), and the solver's claim.

    ``scope`` is null where the time was over before the model was read.
    """

    format: Literal["pipecut plan"] | None = None
    version: Literal[1] | None = None
    model: str | None = None
    schedule: str | None = None
    chunks: int | None = None
    micro_batches: int | None = None
    violations: list[str] = Field(default_factory=list)
    stages: list[StagePart]
    scenario: str
    solver: str
    proof: ProofName
    objective: int | None
    bound: int | None
    any_order_bound: int | None
    gap: float | None
    seconds: float
    goals: list[GoalClaimPart]
    scope: ScopePart | None
    notes: list[str]
    double_check: list[RoutePart] = Field(default_factory=list)
    explanation: ExplanationPart | None = None
    plain_grid: PlainGridPart | None = None


class BrokenRulePart(Part):
    """A rule that a plan breaks: both numbers and their unit."""

    rule: str
    where: str
    found: int
    limit: int
    unit: str
    message: str


class OptimumPart(Part):
    """What the search for the optimum found."""

    solver: str
    proof: ProofName
    objective: int | None
    bound: int | None
    goals: list[GoalClaimPart]
    seconds: float
    notes: list[str]


class EvaluateOutput(Output):
    """``pipecut evaluate``: a given plan, its price, the rules it breaks, and how far it is from the optimum."""

    format: Literal["pipecut plan"]
    version: Literal[1]
    model: str
    schedule: str | None = None
    chunks: int | None = None
    micro_batches: int | None = None
    objective: int | None
    violations: list[str]
    stages: list[StagePart]
    scenario: str
    plan: str
    feasible: bool
    scope: ScopePart
    broken_rules: list[BrokenRulePart]
    gap: float | None
    optimum: OptimumPart | None
    timeline: SummaryPart | None


class VerifyOutput(Output):
    """``pipecut verify``: what a certificate proves."""

    scenario: str
    holds: bool
    optimal: bool
    reason: str | None
    objective: int
    bound: int
    labels: int
    paths: int
    seconds: float


class TraceOutput(Output):
    """``pipecut trace``: what was written."""

    model: str
    out: str
    layers: int = Field(ge=1)
    edges: int
    parameter_bytes: int


class StudyOutput(Output):
    """``pipecut study``: its figures, by name."""

    study: str
    title: str
    figures: dict[str, int | float | str | bool | None]
