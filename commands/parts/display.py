"""Plans and outcomes as tables for people."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from commands.terminal import human
from commands.terminal.judged import goal_name
from formulation.constraints.violation import told
from formulation.costs.amounts import goal_amount
from formulation.outcome import GoalClaim, Outcome, Proof, Status
from formulation.problem.layers import Split
from formulation.problem.modes import in_words
from formulation.scope import scope_of, scope_parts

if TYPE_CHECKING:
    from rich.console import RenderableType

    from formulation.evaluate import Evaluation, StageCost
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Plan, Stage

NOTHING = "-"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
FORM_SEPARATOR = "\N{MIDDLE DOT}"
OVER = "bold red"
KEYS = 11
"""Columns of the keys at the left."""

PROOFS: dict[Proof, str] = {
    Proof.OPTIMAL: "optimal, proved: no plan is better",
    Proof.FEASIBLE: "not proved: a better plan may exist",
    Proof.INFEASIBLE: "infeasible, proved: no plan exists",
    Proof.UNKNOWN: "unknown: no plan found that keeps every rule, none excluded",
}


def outcome_parts(
    instance: Instance, outcome: Outcome, evaluation: Evaluation | None, why: Sequence[tuple[str, str]] = ()
) -> tuple[RenderableType, ...]:
    """Return the stages of an outcome and its claim, and where there is no plan what says why."""
    lines = claim_lines(instance, outcome, evaluation)
    if why:
        lines = lines.append("\n").append(key_lines(why))
    if outcome.plan is None or evaluation is None:
        return (lines,)
    return plan_table(instance, outcome.plan, evaluation), "", lines


def plan_table(instance: Instance, plan: Plan, evaluation: Evaluation) -> Table:
    """Return the stages of a plan, one row each; costs are left out for a plan that has none."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("stage", "layers", "devices", "forms"):
        table.add_column(title, overflow="fold", justify="right" if title == "stage" else "left")
    for title in ("compute", "communication", "boundary", "memory"):
        table.add_column(title, overflow="fold", justify="right")
    costs: Iterable[StageCost | None] = evaluation.stages or itertools.repeat(None)
    for index, (stage, cost) in enumerate(zip(plan.stages, costs, strict=False)):
        table.add_row(str(index), *_stage_cells(instance, stage), *_cost_cells(index, cost))
    return table


def claim_lines(instance: Instance, outcome: Outcome, evaluation: Evaluation | None) -> Text:
    """Return objective, bound, gap, proof, scope, solver, seconds and notes, one line or more each."""
    rows: list[tuple[str, str]] = []
    if outcome.objective is not None:
        rows.append(("objective", objective_text(instance, outcome.objective)))
    if outcome.bound is not None:
        rows.append(("bound", goal_amount(instance.goals[0], outcome.bound)))
    rows += [("and then", further_text(instance, claim)) for claim in outcome.further]
    broken = violation_rows(evaluation)
    if outcome.gap is not None and not broken:
        opened = [str(claim.goal) for claim in outcome.further if claim.status is Status.OPEN]
        rows.append(("gap", human.gap(outcome.gap) + (f" of {opened[0]}" if opened else "")))
    rows.append(("proof", proof_text(outcome)))
    rows += [("", line) for line in _unlimited(evaluation)]
    rows += any_order_rows(outcome)
    rows += scope_rows(instance)
    rows.append(("solver", f"{outcome.solver}, {outcome.seconds:.2f} s"))
    said = {message for _, message in told(evaluation.violations)} if evaluation else set()
    notes = (*instance.model.notes, *outcome.notes)
    rows += [("note", human.printable(note)) for note in notes if note not in said]
    return key_lines(rows + broken)


def proof_text(outcome: Outcome) -> str:
    """Say how strongly an outcome is held; of several goals that are not all proved, which are."""
    claims = outcome.claims
    if outcome.proof is not Proof.FEASIBLE or claims[1:] == () or claims[0].status is not Status.PROVED:
        return PROOFS[outcome.proof]
    return "not proved in full: " + ", ".join(f"{claim.goal} {claim.status}" for claim in claims)


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


def scope_rows(instance: Instance) -> list[tuple[str, str]]:
    """Say among which plans a claim holds, in lines that fit a narrow terminal."""
    lines = textwrap.wrap(human.printable("; ".join(scope_parts(scope_of(instance)))), human.WIDTH - KEYS)
    return [("" if at else "scope", line) for at, line in enumerate(lines)]


def rules_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Say which rules a plan breaks, or that it keeps all that are asked for, and what is not asked for."""
    kept = ("rules", "the plan keeps every rule")
    return violation_rows(evaluation) or [kept, *(("", line) for line in _unlimited(evaluation))]


def violation_rows(evaluation: Evaluation | None) -> list[tuple[str, str]]:
    """Say in words which rules are broken, grouped by rule and stage."""
    found = told(evaluation.violations) if evaluation else []
    return [("breaks", f"{rule}: {human.printable(message)}") for rule, message in found]


def key_lines(rows: Sequence[tuple[str, str]]) -> Text:
    """Return lines ``key  value`` with the values under one another."""
    text = Text()
    for at, (key, value) in enumerate(rows):
        text.append("\n" if at else "")
        text.append(f"{key:<{KEYS}}", style="bold")
        text.append(value)
    return text


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


def compact_forms(instance: Instance, stage: Stage) -> str:
    """Return the forms of the layers that choose one, equal neighbours merged: ``2·1·2``; ``-`` if none does."""
    if stage.group.tensor_parallel_degree == 1:
        return NOTHING
    chosen = [
        form
        for layer, form in zip(stage.span.layers, stage.forms, strict=False)
        if layer < len(instance.layers) and instance.layers[layer].split is not Split.FOLLOW
    ]
    return FORM_SEPARATOR.join(str(form) for form, _ in itertools.groupby(chosen)) or NOTHING


def _stage_cells(instance: Instance, stage: Stage) -> tuple[Text, Text, Text]:
    names = [instance.layers[layer].name for layer in stage.span.layers]
    ends = names if len(names) < 2 else [names[0], ELLIPSIS, names[-1]]
    devices = " + ".join(f"{count} x {instance.servers[server].name}" for server, count in stage.group.counts)
    shared = in_words(stage.group.mode, stage.group.devices)
    devices += f" ({shared})" if shared else ""
    return (
        Text(human.printable(" ".join(ends)) + f" ({len(names)})"),
        Text(human.printable(devices)),
        Text(compact_forms(instance, stage)),
    )


def _cost_cells(index: int, cost: StageCost | None) -> tuple[Text, Text, Text, Text]:
    if cost is None:
        return (Text(NOTHING), Text(NOTHING), Text(NOTHING), Text(NOTHING))
    over = cost.memory_bytes > cost.capacity_bytes
    mark = " !" if over else ""
    return (
        Text(human.duration(cost.compute_ns)),
        Text(human.duration(cost.communication_ns)),
        Text(human.duration(cost.boundary_ns) if index else NOTHING),
        Text(
            f"{human.amount(cost.memory_bytes)} of {human.amount(cost.capacity_bytes)}{mark}",
            style=OVER if over else "",
        ),
    )
