"""Reasons and differences as plain data for JSON: every statement with the plan that it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from formulation.constraints.violation import Violation
from formulation.costs.memory import capacity_bytes
from formulation.evaluate import evaluate
from formulation.outcome import Outcome
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from formulation.problem.units import Link
from ingest.plans.plan_file import stage_to_dict
from report.claims import goals_to_list
from solvers.reasons.choices import Neighbour, Neighbours
from solvers.reasons.cuts import CutReason
from solvers.reasons.differences import PlanDifference
from solvers.reasons.idle import IdleReason
from solvers.reasons.reasons import Reasons


def claim_to_dict(outcome: Outcome) -> dict[str, Any]:
    """Return what a search claims, without its plan."""
    return {
        "solver": outcome.solver,
        "proof": str(outcome.proof),
        "objective": outcome.objective,
        "bound": outcome.bound,
        "goals": goals_to_list(outcome),
        "seconds": outcome.seconds,
        "notes": list(outcome.notes),
    }


def reasons_to_dict(found: Reasons) -> dict[str, Any]:
    """Return reasons as plain data: times in ns, sizes in bytes, values in the units of their goals."""
    instance = found.instance
    better = found.better
    return {
        "goals": [{"goal": str(goal), "unit": goal.unit} for goal in instance.goals],
        "values": list(found.priced.values),
        "memory_bytes": found.priced.memory_bytes,
        "stages": [stage_to_dict(instance, stage) for stage in found.priced.plan.stages],
        "broken_rules": rules_to_list(found.priced.violations),
        "terms": [
            {
                "of": str(term.of),
                "stage": term.stage,
                "value": term.value,
                "times": term.times,
                "binding": term.binding,
                "link": _link(term.link),
            }
            for term in found.terms
        ],
        "memory": _memory(instance, found.priced.plan),
        "cuts": [_cut(instance, cut) for cut in found.cuts],
        "choices": [
            {
                "stage": stage.stage,
                "devices": _sort(instance, stage.devices),
                "mode": _sort(instance, stage.mode),
                "form": _sort(instance, stage.form),
            }
            for stage in found.stages
        ],
        "idle": None if found.idle is None else _idle(instance, found.idle),
        "chain": [asdict(part) for part in found.chain],
        "better": None if better is None else neighbour_to_dict(instance, better),
        "notes": list(found.notes),
    }


def difference_to_dict(found: PlanDifference) -> dict[str, Any]:
    """Return the steps from one plan to another as plain data; values are in the order of the measures."""
    return {
        "measures": [{"goal": str(goal), "unit": goal.unit} for goal in found.measures],
        "before": list(found.before),
        "after": list(found.after),
        "changes": [
            {
                "of": change.of,
                "stage": change.stage,
                "what": change.what,
                "values": list(change.values),
                "effects": list(change.effects),
                "broken_rules": rules_to_list(change.violations),
                "stages": [stage_to_dict(found.instance, stage) for stage in change.plan.stages],
            }
            for change in found.changes
        ],
    }


def rules_to_list(violations: Iterable[Violation]) -> list[dict[str, Any]]:
    """Return broken rules as plain data."""
    return [asdict(one) for one in violations]


def neighbour_to_dict(instance: Instance, one: Neighbour) -> dict[str, Any]:
    """Return a plan one move away: its values, what it costs more, the rules that it breaks, and its stages."""
    return {
        "what": one.what,
        "values": list(one.priced.values),
        "costs": list(one.costs),
        "memory_bytes": one.priced.memory_bytes,
        "broken_rules": rules_to_list(one.priced.violations),
        "stages": [stage_to_dict(instance, stage) for stage in one.priced.plan.stages],
    }


def _maybe(instance: Instance, one: Neighbour | None) -> dict[str, Any] | None:
    return None if one is None else neighbour_to_dict(instance, one)


def _sort(instance: Instance, found: Neighbours) -> dict[str, Any]:
    return {
        "best": _maybe(instance, found.best),
        "looked_at": found.looked_at,
        "complete": found.complete,
    }


def _cut(instance: Instance, cut: CutReason) -> dict[str, Any]:
    return {
        "stage": cut.stage,
        "layer": instance.layers[cut.place].name,
        "left": _maybe(instance, cut.left),
        "right": _maybe(instance, cut.right),
        "nearest_left": _maybe(instance, cut.nearest_left),
        "nearest_right": _maybe(instance, cut.nearest_right),
        "elsewhere": _sort(instance, cut.elsewhere),
        "without": _sort(instance, cut.without),
    }


def _idle(instance: Instance, idle: IdleReason) -> dict[str, Any]:
    outcome = idle.outcome
    return {
        "used": idle.used,
        "servers": [
            {
                "server": instance.servers[one.server].name,
                "idle": one.idle,
                "link": _link(one.link),
                "moves": _sort(instance, one.moves),
                "joins": _sort(instance, one.joins),
            }
            for one in idle.servers
        ],
        "best": None
        if outcome is None
        else claim_to_dict(outcome)
        | {"stages": [stage_to_dict(instance, stage) for stage in outcome.plan.stages] if outcome.plan else []},
        "note": idle.note,
    }


def _memory(instance: Instance, plan: Plan) -> list[dict[str, int]]:
    costs = evaluate(instance, plan).stages
    return [
        {"needed_bytes": cost.memory_bytes, "capacity_bytes": capacity_bytes(instance, stage.group)}
        for stage, cost in zip(plan.stages, costs, strict=True)
    ]


def _link(link: Link | None) -> dict[str, int] | None:
    return None if link is None else {"bits_per_second": link.bits_per_second, "latency_ns": link.latency_ns}
