"""Outputs about several solvers: ``compare``, and its gap table with ``--all``."""

from __future__ import annotations

from commands.outputs.common import GoalClaim, Output, Part, ProofName, Scope


class SolverRow(Part):
    """What became of one solver; without an outcome ``reason`` says why."""

    solver: str
    proof: ProofName | None
    objective: int | None
    bound: int | None
    gap: float | None
    goals: list[GoalClaim]
    feasible: bool | None
    violations: list[str]
    stages: int | None
    seconds: float | None
    notes: list[str]
    reason: str


class Comparison(Part):
    """All solvers on one scenario, and the bound that gaps are measured to."""

    scenario: str
    optimum: int | None
    bound: int | None
    scope: Scope
    solvers: list[SolverRow]


class CompareOutput(Comparison, Output):
    """``pipecut compare``."""


class PlannerOnCase(Part):
    """What one planner did with one case."""

    solver: str
    status: str
    objective: int | None
    gap: float | None
    violations: list[str]
    reason: str


class GapCase(Part):
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
    planners: list[PlannerOnCase]
    provers: list[str]


class PlannerSummary(Part):
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


class Prover(Part):
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
    cases: list[GapCase]
    planners: list[PlannerSummary]
    provers: list[Prover]
