"""Outcomes as lines for people: the result first, then what was done for it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from commands.tables.key_lines import GOOD, KEYS, OPEN, WRONG, KeyLines, Row
from commands.tables.stage_lines import StageLines
from commands.terminal import human
from commands.terminal.judged import goal_name
from formulation.constraints.violation import told
from formulation.costs.amounts import goal_amount
from formulation.outcome import GoalClaim, Outcome, Proof, Status
from formulation.problem.options import Compute
from formulation.scope import scope_of, scope_parts
from solvers.explain.loosening import left_out, openings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from formulation.evaluate import Evaluation
    from formulation.problem.instance import Instance

PROOFS: dict[Proof, str] = {
    Proof.OPTIMAL: "optimal, proved: no plan is better",
    Proof.FEASIBLE: "not proved: a better plan may exist",
    Proof.INFEASIBLE: "infeasible, proved: no plan exists in this scope",
    Proof.UNKNOWN: "unknown: no plan found that keeps every rule, none excluded",
}
COLOURS: dict[Proof, str] = {
    Proof.OPTIMAL: GOOD,
    Proof.FEASIBLE: OPEN,
    Proof.INFEASIBLE: WRONG,
    Proof.UNKNOWN: OPEN,
}

TIMES: dict[Compute, str] = {
    Compute.PEAK: "multiply-accumulates over the peak (cost.compute: peak)",
    Compute.ROOFLINE: "sizes, bytes and kernels of layers (cost.compute: roofline)",
}
"""By which model layers take so long, where nobody measured them."""


def outcome_parts(
    instance: Instance, outcome: Outcome, evaluation: Evaluation | None, why: Sequence[tuple[str, str]] = ()
) -> tuple[RenderableType, ...]:
    """Return what was found, the stages of its plan, and what was done for it; without a plan, what says why."""
    found = KeyLines([*result_rows(instance, outcome, evaluation), *why])
    done = KeyLines(search_rows(instance, outcome, evaluation))
    if outcome.plan is None or evaluation is None:
        return (found, "", done)
    return found, "", StageLines(instance, outcome.plan, evaluation), "", done


def result_rows(instance: Instance, outcome: Outcome, evaluation: Evaluation | None) -> list[Row]:
    """Return what was found and how strongly it is held: objective, other goals, bound and gap, proof, rules."""
    rows: list[Row] = []
    if outcome.objective is not None:
        rows.append(("objective", objective_text(instance, outcome.objective)))
    rows += [("and then", further_text(instance, claim)) for claim in outcome.further]
    broken = violation_rows(evaluation)
    if outcome.bound is not None and outcome.bound != outcome.objective:
        rows.append(("bound", goal_amount(instance.goals[0], outcome.bound)))
    if outcome.gap and not broken:
        opened = [str(claim.goal) for claim in outcome.further if claim.status is Status.OPEN]
        rows.append(("gap", human.gap(outcome.gap) + (f" of {opened[0]}" if opened else "")))
    rows.append(("proof", Text(proof_text(outcome), style=COLOURS[outcome.proof])))
    rows += left_out_rows(instance, outcome)
    rows += [("", Text(line, style=WRONG)) for line in _unlimited(evaluation)]
    return [*rows, *any_order_rows(outcome), *broken]


def search_rows(instance: Instance, outcome: Outcome, evaluation: Evaluation | None) -> list[Row]:
    """Return what was done: among which plans was searched, by whom, how long, and what there is to know of it."""
    rows: list[Row] = [
        *scope_rows(instance),
        ("times", _times_text(instance)),
        ("solver", f"{outcome.solver}, {outcome.seconds:.2f} s"),
    ]
    said = {message for _, message in told(evaluation.violations)} if evaluation else set()
    notes = (*instance.model.notes, *outcome.notes)
    return rows + [("note", human.printable(note)) for note in notes if note not in said]


def _times_text(instance: Instance) -> str:
    """Say by which model layers take so long, and on which devices they were measured instead."""
    first = instance.layers[0]
    measured = [one.name for one in instance.device_classes if first.measured_on(one.name)]
    if not measured:
        return TIMES[instance.cost.compute]
    rest = len(measured) < len(instance.device_classes)
    words = f"measured on {human.printable(', '.join(measured))}"
    return f"{words}; else {TIMES[instance.cost.compute]}" if rest else words


def proof_text(outcome: Outcome) -> str:
    """Say how strongly an outcome is held; of several goals that are not all proved, which are."""
    claims = outcome.claims
    if outcome.proof is not Proof.FEASIBLE or claims[1:] == () or claims[0].status is not Status.PROVED:
        return PROOFS[outcome.proof]
    return "not proved in full: " + ", ".join(f"{claim.goal} {claim.status}" for claim in claims)


def left_out_rows(instance: Instance, outcome: Outcome) -> list[tuple[str, str]]:
    """Say which choices the scope leaves out that a plan may be had with, where none exists in it."""
    words = left_out(openings(instance)) if outcome.proof is Proof.INFEASIBLE else ()
    if not words:
        return []
    *first, last = words
    return [("", f"which leaves out {', '.join(first)} and {last}" if first else f"which leaves out {last}")]


def any_order_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Say what is known of other orders of the layers than the one that the claim is about."""
    limit, value = outcome.any_order_bound, outcome.objective
    if limit is None or value is None:
        return []
    if limit >= value:
        return [("any order", "no order of the layers has a better plan")]
    gap = human.gap((value - limit) / value)
    return [("any order", f"no order of the layers is below {outcome.amount(limit)}, gap {gap}")]


def further_text(instance: Instance, claim: GoalClaim) -> str:
    """Say what is claimed of a goal after the first."""
    words = f"{goal_amount(claim.goal, claim.value)}, {goal_name(instance, claim.goal)}, {claim.status}"
    if claim.status is not Status.OPEN or claim.bound is None or claim.gap is None:
        return words
    return f"{words}: not below {goal_amount(claim.goal, claim.bound)}, gap {human.gap(claim.gap)}"


def scope_rows(instance: Instance) -> list[Row]:
    """Say among which plans a claim holds, in lines that fit a narrow terminal."""
    lines = textwrap.wrap(human.printable("; ".join(scope_parts(scope_of(instance)))), human.WIDTH - KEYS)
    return [("" if at else "scope", line) for at, line in enumerate(lines)]


def rules_rows(evaluation: Evaluation) -> list[Row]:
    """Say which rules a plan breaks, or that it keeps all that are asked for, and what is not asked for."""
    kept: Row = ("rules", Text("the plan keeps every rule", style=GOOD))
    unlimited: list[Row] = [("", Text(line, style=WRONG)) for line in _unlimited(evaluation)]
    return violation_rows(evaluation) or [kept, *unlimited]


def violation_rows(evaluation: Evaluation | None) -> list[Row]:
    """Say in words which rules are broken, grouped by rule and stage."""
    found = told(evaluation.violations) if evaluation else []
    return [("breaks", Text(f"{rule}: {human.printable(message)}", style=WRONG)) for rule, message in found]


def objective_text(instance: Instance, value: int) -> str:
    """Return a value of the first goal, and in words what it is."""
    return f"{goal_amount(instance.goals[0], value)}, {goal_name(instance, instance.goals[0])}"


def _unlimited(evaluation: Evaluation | None) -> list[str]:
    """Name the stages that need more memory than their smallest device has where no rule limits it."""
    if evaluation is None or any(violation.rule == "memory" for violation in evaluation.violations):
        return []
    over = [
        f"stage {index} needs {human.amount(cost.memory_bytes)} on a device of {human.amount(cost.capacity_bytes)}"
        for index, cost in enumerate(evaluation.stages)
        if cost.memory_bytes > cost.capacity_bytes
    ]
    return ["but memory is not limited (constraints.memory), and the plan does not fit:", *over] if over else []
