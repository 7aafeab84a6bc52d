"""Outputs about several solvers: ``compare``, and its gap table with ``--all``."""

from __future__ import annotations

from pipecut.commands.outputs.common import GoalClaimPart, Output, Part, ProofName, ScopePart, StagePart


class SolverRowPart(Part):
    """What became of one solver; without an outcome ``reason`` says why."""

    solver: str
    proof: ProofName | None
    objective: int | None
    bound: int | None
    gap: float | None
    goals: list[GoalClaimPart]
    feasible: bool | None
    violations: list[str]
    stages: int | None
    seconds: float | None
    notes: list[str]
    reason: str


class ComparisonPart(Part):
    """All solvers on one scenario, and the bound that gaps are measured to."""

    scenario: str
    optimum: int | None
    bound: int | None
    scope: ScopePart
    solvers: list[SolverRowPart]


class ComparedPlanPart(Part):
    """A plan, the solvers that have it, and the rules that it breaks; plans are listed best first."""

    solvers: list[str]
    objective: int | None
    gap: float | None
    violations: list[str]
    stages: list[StagePart]


class CompareOutput(ComparisonPart, Output):
    """``pipecut compare``."""

    plans: list[ComparedPlanPart]


class PlannerOnCasePart(Part):
    """What one planner did with one case."""

    solver: str
    status: str
    objective: int | None
    gap: float | None
    violations: list[str]
    reason: str


class GapCasePart(Part):
    """A shipped scenario in one variant."""

    case: str
    scenario: str
    variant: str
    family: str
    memory_percent: int | None
    goal: str
    proved: bool
    impossible: bool
    bound: int | None
    best_known: int | None
    proved_by: str | None
    planners: list[PlannerOnCasePart]
    provers: list[str]


class PlannerSummaryPart(Part):
    """One planner over the cases of a family (or of ``all``)."""

    solver: str
    family: str
    run: int
    breaks_rules: int
    no_plan: int
    unproved: int
    refused: int
    failed: int
    impossible: int
    optimal: int
    known: int
    median_gap: float | None
    worst_gap: float | None
    worst_case: str | None


class ProverPart(Part):
    """A solver that gave bounds."""

    solver: str
    run: int
    proved: int
    seconds: float
    refused: int
    failed: int


class GapTableOutput(Output):
    """``pipecut compare --all``."""

    planned: int
    cases: list[GapCasePart]
    planners: list[PlannerSummaryPart]
    provers: list[ProverPart]
