"""Answers to what-if questions as plain data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commands.parts.task import Task
from commands.whatif.lines import effect, ordered
from ingest.plans.plan_file import stage_to_dict
from report.claims import goals_to_list, scope_to_dict
from solvers.whatif.answers import ChangedAnswer


def answers_to_dict(task: Task, found: Sequence[ChangedAnswer]) -> dict[str, Any]:
    """Return the answers: the scenario as it is, and the changes, what helps most first."""
    base = found[0]
    goal = task.instance.goals[0]
    return {
        "scenario": task.scenario.name,
        "scope": scope_to_dict(task.instance if base.instance is None else base.instance),
        "goal": str(goal),
        "unit": goal.unit,
        "base": _row(base, base),
        "changes": [_row(base, one) for one in ordered(found)],
    }


def _row(base: ChangedAnswer, answer: ChangedAnswer) -> dict[str, Any]:
    outcome, instance = answer.outcome, answer.instance
    stages = []
    if outcome is not None and outcome.plan is not None and instance is not None:
        stages = [stage_to_dict(instance, stage) for stage in outcome.plan.stages]
    return {
        "what": answer.variant.what,
        "kind": None if answer.variant.kind is None else str(answer.variant.kind),
        "solver": None if outcome is None else outcome.solver,
        "proof": None if outcome is None else str(outcome.proof),
        "objective": None if outcome is None else outcome.objective,
        "bound": None if outcome is None else outcome.bound,
        "gap": None if outcome is None else outcome.gap,
        "of_a_step": answer.of_a_step,
        "effect": effect(base, answer),
        "micro_batches": None if instance is None else instance.training.micro_batches,
        "goals": [] if outcome is None else goals_to_list(outcome),
        "seconds": None if outcome is None else outcome.seconds,
        "notes": [] if outcome is None else list(outcome.notes),
        "reason": answer.reason,
        "stages": stages,
    }
