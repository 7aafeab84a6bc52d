"""Answers to what-if questions as lines and a table for people: what helps most first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commands.tables.display import PROOFS, objective_text, scope_rows
from commands.tables.key_lines import GOOD, OPEN, WRONG, KeyLines, Row
from commands.terminal import human
from formulation.costs.amounts import goal_text
from formulation.outcome import Proof
from formulation.problem.constraints import Goal
from solvers.whatif.answers import ChangedAnswer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NOTHING = "-"


def effect(base: ChangedAnswer, answer: ChangedAnswer) -> float | None:
    """Return how much larger the first goal is for a whole step, as a share of that of the scenario as it is."""
    before, after = base.of_a_step, answer.of_a_step
    if before is None or after is None:
        return None
    return (after - before) / before if before else float(after > 0)


def effect_text(base: ChangedAnswer, answer: ChangedAnswer) -> str:
    """Say how much better or worse a variant is: ``12.3 % less``; of what is not proved, at least or at most."""
    share = effect(base, answer)
    if share is None:
        return NOTHING
    if base.of_a_step == answer.of_a_step:
        return "as good" if answer.proved or answer is base else "no better so far"
    words = f"{human.gap(abs(share))} {'more' if share > 0 else 'less'}"
    return words if answer.proved else f"{words} so far"


def claim_text(answer: ChangedAnswer) -> str:
    """Say how strongly an answer is held."""
    outcome = answer.outcome
    if outcome is None:
        return "not asked"
    if outcome.proof is Proof.OPTIMAL:
        return "proved"
    if outcome.proof is Proof.INFEASIBLE:
        return "no plan, proved"
    if outcome.objective is None or outcome.gap is None:
        return "no plan found" if outcome.objective is None else "no proof"
    return f"gap {human.gap(outcome.gap)}"


def answer_line(base: ChangedAnswer, answer: ChangedAnswer) -> str:
    """Return an answer as one line: what is changed, the best plan, how it compares, and how it is held."""
    if answer.outcome is None:
        return human.printable(f"{answer.variant.what}: not asked: {answer.reason.removeprefix('not asked: ')}")
    said = [claim_text(answer)]
    if answer.outcome.objective is not None and answer.instance is not None:
        amount = goal_text(answer.instance.goals[0], answer.outcome.objective)
        said = [amount, *([] if answer is base else [effect_text(base, answer)]), *said]
    return human.printable(f"{answer.variant.what}: {', '.join(said)}")


def ordered(found: Sequence[ChangedAnswer]) -> list[ChangedAnswer]:
    """Return the answers about changes: what helps most first; those without a plan or an answer last."""
    base = found[0]

    def place(answer: ChangedAnswer) -> tuple[int, float]:
        share = effect(base, answer)
        if share is not None:
            return 0, share
        return (2 if answer.outcome is None else 1), 0.0

    return sorted(found[1:], key=place)


def sensitivity_parts(found: Sequence[ChangedAnswer]) -> tuple[RenderableType, ...]:
    """Return the best plan as it is, the table of changes, and what there is to know of them."""
    base, rows = found[0], ordered(found)
    return (_head(base), "", _table(base, rows), "", KeyLines(_notes(base, rows)))


def _head(base: ChangedAnswer) -> KeyLines:
    from rich.text import Text

    outcome, rows = base.outcome, list[Row]()
    if outcome is None or base.instance is None:
        return KeyLines([("as it is", base.reason)])
    if outcome.objective is not None:
        rows.append(("as it is", objective_text(base.instance, outcome.objective)))
    style = {Proof.OPTIMAL: GOOD, Proof.INFEASIBLE: WRONG}.get(outcome.proof, OPEN)
    rows.append(("proof", Text(PROOFS[outcome.proof], style=style)))
    return KeyLines(rows)


def _table(base: ChangedAnswer, rows: Sequence[ChangedAnswer]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("if there were", overflow="fold")
    for title in ("best plan", "for a step"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("claim", no_wrap=True)
    for answer in rows:
        outcome = answer.outcome
        if outcome is None and answer.late:
            continue
        amount = NOTHING
        if outcome is not None and outcome.objective is not None and answer.instance is not None:
            amount = goal_text(answer.instance.goals[0], outcome.objective)
        claim = Text(claim_text(answer), style=GOOD if answer.proved else OPEN if outcome else "dim")
        table.add_row(human.printable(answer.variant.what), amount, effect_text(base, answer), claim)
    return table


def _notes(base: ChangedAnswer, rows: Sequence[ChangedAnswer]) -> list[Row]:
    """Say what the numbers are, what was not asked and why, and among which plans the claims hold."""
    said: list[Row] = []
    goal = None if base.instance is None else base.instance.goals[0]
    if goal in (Goal.BOTTLENECK, Goal.PERIOD):
        said.append(("for a step", "the time of a micro-batch times their number, against the plan as it is"))
    late = [answer for answer in rows if answer.late]
    if late:
        held = sum(answer.outcome is not None for answer in late)
        of_others = f"; {held} of them show the plan of another line, which keeps their rules" if held else ""
        many = "1 change" if len(late) == 1 else f"{len(late)} changes"
        said.append(("not asked", f"{many}, as no time was left{of_others} (--time-limit, --only)"))
    for answer in rows:
        if answer.outcome is None and not answer.late:
            said.append(("not asked", human.printable(f"{answer.variant.what}: {answer.reason}")))
    return said + ([] if base.instance is None else scope_rows(base.instance))
