"""Plans and outcomes as tables for people."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from formulation.layers import Split
from formulation.modes import in_words
from formulation.outcome import Outcome, Proof
from scenarios import human
from scenarios.judged import exact_goal_text, goal_name

if TYPE_CHECKING:
    from formulation.evaluate import Evaluation, StageCost
    from formulation.instance import Instance
    from formulation.plan import Plan, Stage

NOTHING = "-"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
FORM_SEPARATOR = "\N{MIDDLE DOT}"
OVER = "bold red"

PROOFS: dict[Proof, str] = {
    Proof.OPTIMAL: "optimal, proved: no plan is better",
    Proof.FEASIBLE: "not proved: a better plan may exist",
    Proof.INFEASIBLE: "infeasible, proved: no plan exists",
    Proof.UNKNOWN: "unknown: no plan found that keeps every rule, none excluded",
}


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
    """Return objective, bound, gap, proof, solver, seconds and notes, one line each."""
    rows: list[tuple[str, str]] = []
    if outcome.objective is not None:
        rows.append(("objective", objective_text(instance, outcome.objective)))
    if outcome.bound is not None:
        rows.append(("bound", exact_goal_text(instance.goals[0], outcome.bound)))
    for claim in outcome.further:
        proved = "proved" if claim.bound == claim.value else "not proved"
        text = f"{exact_goal_text(claim.goal, claim.value)}, {goal_name(instance, claim.goal)}, {proved}"
        rows.append(("and then", text))
    broken = violation_rows(evaluation)
    if outcome.gap is not None and not broken:
        rows.append(("gap", human.gap(outcome.gap)))
    rows.append(("proof", PROOFS[outcome.proof]))
    rows.append(("solver", f"{outcome.solver}, {outcome.seconds:.2f} s"))
    said = {violation.message for violation in evaluation.violations} if evaluation else set()
    rows += [("note", human.printable(note)) for note in outcome.notes if note not in said]
    rows += broken
    rows += [("note", note) for note in over_capacity(evaluation)]
    return key_lines(rows)


def violation_rows(evaluation: Evaluation | None) -> list[tuple[str, str]]:
    """Say each broken rule in words."""
    found = evaluation.violations if evaluation else ()
    return [("breaks", f"{one.rule}: {human.printable(one.message)}") for one in found]


def key_lines(rows: Sequence[tuple[str, str]]) -> Text:
    """Return lines ``key  value`` with the values under one another."""
    text = Text()
    for at, (key, value) in enumerate(rows):
        text.append("\n" if at else "")
        text.append(f"{key:<11}", style="bold")
        text.append(value)
    return text


def objective_text(instance: Instance, value: int) -> str:
    """Return a value of the first goal, and in words what it is."""
    return f"{exact_goal_text(instance.goals[0], value)}, {goal_name(instance, instance.goals[0])}"


def over_capacity(evaluation: Evaluation | None) -> list[str]:
    """Name the stages that need more memory than their smallest device has, unless a broken rule says so."""
    if evaluation and any(violation.rule == "memory" for violation in evaluation.violations):
        return []
    return [
        f"stage {index} needs {human.amount(cost.memory_bytes)} on a device of"
        f" {human.amount(cost.capacity_bytes)}: it does not fit"
        for index, cost in enumerate(evaluation.stages if evaluation else ())
        if cost.memory_bytes > cost.capacity_bytes
    ]


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
