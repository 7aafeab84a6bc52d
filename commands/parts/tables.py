"""Outcomes as lines for people: the result first, then what was done for it.

Lines ``key  value``, as wide as the terminal: broken between words, with the values under one another.

What a run was like, as tables for people: numbers of the timeline beside those of formulas.

The stages of a plan as lines for people: numbers that add up, and in words what each stage is.

A narrow terminal shows what a stage is below its numbers, a wide one beside them; names are never cut.

What the goals measure, in words; their values are written by ``formulation.costs.amounts``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.text import Text

from pipecut.commands.terminal import terminal as human
from pipecut.commands.terminal.terminal import WIDTH
from pipecut.formulation.constraints.constraint import devices_of, told
from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.costs.prices import updates_ns
from pipecut.formulation.outcome import GoalClaim, Outcome, Proof, Status
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Combine, Compute, StageTime
from pipecut.formulation.scope import scope_of, scope_parts
from pipecut.formulation.searched import keeps_order, not_searched, searched
from pipecut.report.claims import boundaries_paid, slowest, slowest_in_words, split_in_words
from pipecut.report.measures import Relation
from pipecut.report.page import two_plans
from pipecut.solvers.explain import left_out, openings

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

    from pipecut.formulation.costs.prices import StageCost
    from pipecut.formulation.evaluate import Evaluation
    from pipecut.formulation.problem.plan import Plan

KEYS = 11
"""Columns of the keys at the left."""
WIDEST = 110
"""Longer lines are hard to read, however wide the terminal is."""
GOOD, OPEN, WRONG = "green", "yellow", "bold red"
"""Colours of what is proved, of what is open, and of what breaks a rule."""

Row = tuple[str, str | Text]


class KeyLines:
    """Pairs of key and value as lines; a program that reads them gets every value in one line.

    ``str`` of it is what such a program gets.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)

    def __str__(self) -> str:
        """Return the lines whole, without colours."""
        return "\n".join(f"{key:<{KEYS}}{value}" for key, value in self.rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield a line for each value, or as many as it needs."""
        room = max(1, min(options.max_width, WIDEST) - KEYS)
        for key, value in self.rows:
            text = value if isinstance(value, Text) else Text(value)
            lines = [text] if options.no_wrap else text.wrap(console, room)
            for at, line in enumerate(lines):
                yield Text.assemble((("" if at else key).ljust(KEYS), "bold")) + line


NOTHING = "-"
INDENT = "  "
NAMES, NUMBERS = 38, 12
"""Columns of the name of a measure, and of a number."""
WORTH = 26
"""Columns of the name of a throughput."""


def run_name(content: dict[str, Any]) -> str:
    """Return what was run: ``one_f_one_b, 8 micro-batches, 2 stages``."""
    many, stages = len(content["ranks"]), sum(len(rank["stages"]) for rank in content["ranks"])
    parts = [content["schedule"], human.count(content["micro_batches_run"], "micro-batch")]
    parts.append(human.count(stages, "stage"))
    return ", ".join(parts) + (f" on {human.count(many, 'rank')}" if many < stages else "")


def measure_lines(content: dict[str, Any]) -> Iterator[str]:
    """Yield makespan, period and bubble, each with every formula that speaks of it below; 80 columns hold them."""
    before = None
    yield f"{'':<{NAMES}}{'timeline':>{NUMBERS}}"
    for row in content["measures"]:
        timeline, formula = (_number(row[key], row["unit"]) for key in ("timeline", "formula"))
        if row["name"] != before:
            yield f"{row['name']:<{NAMES}}{timeline:>{NUMBERS}}"
        before = row["name"]
        sign = "" if row["relation"] == Relation.RELATED else row["relation"]
        if row["source"]:
            start = f"{INDENT}{sign:<{len(INDENT)}}{formula:>{NUMBERS}}{INDENT}"
            (first, *more) = textwrap.wrap(row["source"], WIDTH - len(start))
            yield start + first
            yield from (" " * len(start) + rest for rest in more)
    yield from _throughput_lines(content["throughput"])


def _throughput_lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield what the run is worth in numbers that people know."""
    known = {key: value for key, value in row.items() if value is not None}
    rates = [
        f"{known[f'{one}_per_second']:,.4g} {one}/s"
        for one in ("samples", "tokens")
        if f"{one}_per_second" in known
    ]
    if rates:
        yield f"{'throughput':<{WORTH}}{', '.join(rates)}"
        yield (
            f"{'model FLOPs':<{WORTH}}{known['tflops_per_device']:,.4g} TFLOP/s a device,"
            f" {100 * known['model_flops_utilisation']:.1f} % of the peak"
        )
    if "price_of_step" in known:
        yield f"{'price of a step':<{WORTH}}{known['price_of_step']:,.4g}"


def rank_table(content: dict[str, Any]) -> Table:
    """Return how busy every rank is, and its peak memory; without sharing, a rank is a stage."""
    ranks = content["ranks"]
    shared = any(len(rank["stages"]) > 1 for rank in ranks)
    titles = ("busy, timeline", "busy, formula", "peak, timeline", "peak, formula", "limit")
    names = (("rank", "right"), ("stages", "left")) if shared else (("stage", "right"),)
    table = plain_table(*names, *((title, "right") for title in titles))
    sizes = ("peak_bytes", "peak_bytes_formula", "capacity_bytes")
    for index, rank in enumerate(ranks):
        held = ", ".join(map(str, rank["stages"]))
        busy = (_number(rank[key], "share") for key in ("utilisation", "utilisation_formula"))
        cells = (NOTHING if rank[key] is None else human.amount(rank[key]) for key in sizes)
        table.add_row(*([str(index), held] if shared else [held]), *busy, *cells)
    return table


def beside_table(content: dict[str, Any]) -> Table:
    """Return the numbers of a plan and of the one beside it, and what the other one takes more."""
    other = human.printable(content["against"]["plan"])
    table = plain_table(("", "left"), ("this plan", "right"), (other, "right"), ("the other takes", "right"))
    for row in two_plans(content):
        numbers = (text.replace("µs", "us") for text in (row.this, row.other, row.more))
        table.add_row(row.name, *numbers)
    return table


def plain_table(*columns: tuple[str, str]) -> Table:
    """Return an empty table with these columns: title, and the side that its cells stand on."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title, side in columns:
        table.add_column(title, justify="right" if side == "right" else "left", overflow="fold")
    return table


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return NOTHING
    return f"{100 * value:.1f} %" if unit == "share" else human.duration(round(value))


OPTIMISER = "optimiser"
HEADS = ("stage", "compute", "communication", OPTIMISER, "time", "", "memory")
LEFT = ("", "memory")
"""Columns that stand at the left; the others are numbers."""
MARK = "*"

BETWEEN = "  "


@dataclass(frozen=True, slots=True)
class StageLine:
    """A stage, or the boundary between two: its cells, what it is in words, and whether anything is wrong."""

    cells: tuple[str, ...]
    words: str = ""
    slowest: bool = False
    wrong: bool = False


class StageLines:
    """The stages of a plan, and the boundaries between them where links pay for them.

    The largest time is marked; where the objective is the sum of all times, the last line is that sum.
    """

    fits_width = True
    """Like a table it is fitted to the width also for whoever reads it by program."""

    def __init__(self, instance: Instance, plan: Plan, evaluation: Evaluation) -> None:
        self.instance = instance
        lines, shown = tuple(_lines(instance, plan, evaluation.stages)), range(len(HEADS))
        if not any(line.cells[HEADS.index(OPTIMISER)] for line in lines):
            shown = [at for at in shown if HEADS[at] != OPTIMISER]
        self.heads = tuple(HEADS[at] for at in shown)
        self.lines = tuple(replace(line, cells=tuple(line.cells[at] for at in shown)) for line in lines)
        self.notes = tuple(_legend(instance, self.lines))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines."""
        table = (self.heads, *(line.cells for line in self.lines))
        wide = [max(len(row[at]) for row in table) for at in range(len(self.heads))]
        beside = sum(wide) + len(BETWEEN) * len(self.heads)
        longest = max(len(line.words) for line in self.lines)
        own_line = beside + longest > options.max_width
        yield Text(_row(self.heads, self.heads, wide) + ("" if own_line else BETWEEN + "what it is"), style="bold")
        for line in self.lines:
            numbers = Text(_row(self.heads, line.cells, wide), style=_style(line))
            if not own_line:
                yield Text.assemble(numbers, BETWEEN, line.words)
                continue
            yield numbers
            if not line.words:
                continue
            indent = wide[0] + len(BETWEEN)
            for words in Text(line.words).wrap(console, max(20, options.max_width - indent)):
                yield Text(" " * indent + words.plain)
        for note in self.notes:
            yield from Text(note, style="dim").wrap(console, options.max_width)


def _row(heads: Sequence[str], cells: Sequence[str], wide: Sequence[int]) -> str:
    shown = (
        cell.ljust(width) if head in LEFT else cell.rjust(width)
        for head, cell, width in zip(heads, cells, wide, strict=True)
    )
    return BETWEEN.join(shown)


def _style(line: StageLine) -> str:
    return WRONG if line.wrong else "bold yellow" if line.slowest else ""


def _lines(instance: Instance, plan: Plan, costs: Sequence[StageCost]) -> Iterator[StageLine]:
    paid, (stages, boundaries) = boundaries_paid(instance), slowest(instance, costs)
    summed = instance.cost.combine is Combine.SUM
    for index in range(len(plan.stages)):
        words = human.printable(stage_in_words(instance, plan, index))
        if not costs:
            yield StageLine((str(index), NOTHING, NOTHING, "", NOTHING, "", NOTHING), words)
            continue
        cost, update = costs[index], updates_ns(instance, plan.stages[index])[1]
        if index and paid:
            most, name = boundaries[index], f"{index - 1} > {index}"
            yield StageLine((name, "", "", "", human.duration(cost.boundary_ns), MARK * most, ""), slowest=most)
        most, over = stages[index], cost.memory_bytes > cost.capacity_bytes
        spent = [human.duration(one) for one in (cost.compute_ns, cost.communication_ns - update)]
        spent.append(human.duration(update) if update else "")
        held = f"{human.amount(cost.memory_bytes)} of {human.amount(cost.capacity_bytes)}{' !' * over}"
        cells = (str(index), *spent, human.duration(cost.total_ns), MARK * most, held)
        yield StageLine(cells, words, most, over)
    if costs and summed:
        total = sum(cost.total_ns + paid * cost.boundary_ns for cost in costs)
        yield StageLine(("sum", "", "", "", human.duration(total), "", ""))


def _legend(instance: Instance, lines: Sequence[StageLine]) -> Iterator[str]:
    if any(line.slowest for line in lines):
        yield f"{MARK} {slowest_in_words(instance)[1]}"
    if any(">" in line.cells[0] for line in lines):
        yield "0 > 1: the tensors between stages 0 and 1, forward and back"
    if instance.cost.stage_time is StageTime.OVERLAP:
        yield "time: the longer of compute and communication, which overlap"


def stage_in_words(instance: Instance, plan: Plan, index: int) -> str:
    """Say which devices hold a stage, alone or with others, how they share it, and which layers it has."""
    stage, training = plan.stages[index], instance.training
    group = training.chunk_in_words(index, len(plan)) if training.ranks(len(plan)) else ""
    devices = devices_of(instance, stage.group.counts)
    shared = (stage.shared_in_words, split_in_words(instance, stage))
    names = [instance.layers[layer].name for layer in stage.span.layers if layer < len(instance.layers)]
    ends = " to ".join(dict.fromkeys((names[0], names[-1]))) if names else "none"
    many = human.count(len(names), "layer")
    return f"{', '.join(one for one in (group, devices, *shared) if one)}: {ends} ({many})"


def goal_name(instance: Instance, goal: Goal) -> str:
    """Say what a goal measures."""
    if goal is Goal.BOTTLENECK:
        largest = instance.cost.combine is Combine.MAX
        which = "the slowest stage or boundary" if largest else "the sum of all stages and boundaries"
        return f"{which} for one micro-batch"
    return NAMES_JUDGED[goal]


NAMES_JUDGED = {
    Goal.ITERATION_TIME: "one optimiser step by the formula",
    Goal.STEP_TIME: "one optimiser step as executed, links without queues",
    Goal.PERIOD: "one micro-batch in the steady state as executed, links without queues",
    Goal.COST: "all devices that stages take",
    Goal.MEMORY: "the largest peak of a device",
    Goal.DEVICES: "that stages take",
    Goal.STAGES: "of the pipeline",
}


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
    instance: Instance,
    outcome: Outcome,
    evaluation: Evaluation | None,
    why: Sequence[tuple[str, str]] = (),
    *,
    verbose: bool = False,
    left: Sequence[str] | None = None,
) -> tuple[RenderableType, ...]:
    """Return what was found, the stages of its plan, and what was done for it; without a plan, what says why.

    ``left`` is what the scope leaves out, in words, where that is known.
    """
    found = KeyLines([*result_rows(instance, outcome, evaluation, left), *why])
    done = KeyLines(search_rows(instance, outcome, evaluation, verbose=verbose))
    if outcome.plan is None or evaluation is None:
        return (found, "", done)
    return found, "", StageLines(instance, outcome.plan, evaluation), "", done


def result_rows(
    instance: Instance, outcome: Outcome, evaluation: Evaluation | None, left: Sequence[str] | None = None
) -> list[Row]:
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
    rows.append(("proof", Text(proof_text(instance, outcome), style=COLOURS[outcome.proof])))
    rows += left_out_rows(instance, outcome, left)
    rows += [("", Text(line, style=WRONG)) for line in _unlimited(evaluation)]
    return [*rows, *any_order_rows(outcome), *broken]


MOST_NOTES = 4
"""So many notes are shown where nobody asks for all."""
COUNTED = re.compile(
    r"(\w+: )?(asked (once|\d+ times) |\d+ (questions|suffixes of plans) |looked through \d|settled )"
)
"""What searches say of how much they looked at: of use for whoever works on them."""


def search_rows(
    instance: Instance, outcome: Outcome, evaluation: Evaluation | None, *, verbose: bool = False
) -> list[Row]:
    """Return what was done: among which plans was searched, by whom, how long, and what there is to know of it.

    Notes that something can be made of, what to try first; all with ``verbose``. Last what others made of it.
    """
    rows: list[Row] = [
        *scope_rows(instance),
        ("searched", ", ".join(searched(instance))),
        ("unsearched", _in_a_line(not_searched(instance))),
        ("times", _times_text(instance)),
        ("solver", f"{outcome.solver}, {outcome.seconds:.2f} s"),
    ]
    said = {message for _, message in told(evaluation.violations)} if evaluation else set()
    notes = [one for one in (*instance.model.notes, *outcome.notes) if one not in said]
    if not verbose:
        of_use = sorted((one for one in notes if not COUNTED.match(one)), key=lambda one: "to try" not in one)
        more = len(of_use) - MOST_NOTES + 1
        notes = of_use if more <= 1 else [*of_use[: MOST_NOTES - 1], f"{more} more with --verbose"]
    return [*rows, *(("note", human.printable(note)) for note in notes), *check_rows(outcome)]


def check_rows(outcome: Outcome) -> list[Row]:
    """Return what others made of what is proved."""
    return [("check", human.printable(said)) for said in outcome.checks]


def _in_a_line(words: Sequence[str]) -> str:
    """Say as many words, the first ones first, as stand in a line of a narrow terminal, and how many more."""
    for said in range(len(words), 0, -1):
        more = f", {len(words) - said} more" if said < len(words) else ""
        line = ", ".join(words[:said]) + more
        if len(line) <= human.WIDTH - KEYS:
            return line
    return "nothing that might pay"


def _times_text(instance: Instance) -> str:
    """Say by which model layers take so long, and on which devices they were measured instead."""
    first = instance.layers[0]
    measured = [one.name for one in instance.device_classes if first.measured_on(one.name)]
    if not measured:
        return TIMES[instance.cost.compute]
    rest = len(measured) < len(instance.device_classes)
    words = f"measured on {human.printable(', '.join(measured))}"
    return f"{words}; else {TIMES[instance.cost.compute]}" if rest else words


def proof_text(instance: Instance, outcome: Outcome) -> str:
    """Say how strongly an outcome is held; of several goals that are not all proved, which are."""
    claims = outcome.claims
    if outcome.proof is Proof.OPTIMAL and keeps_order(instance):
        return f"{PROOFS[outcome.proof]} with servers in this order"
    if outcome.proof is not Proof.FEASIBLE or claims[1:] == () or claims[0].status is not Status.PROVED:
        return PROOFS[outcome.proof]
    return "not proved in full: " + ", ".join(f"{claim.goal} {claim.status}" for claim in claims)


def left_out_rows(
    instance: Instance, outcome: Outcome, left: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    """Say which choices the scope leaves out that a plan may be had with, where none exists in it, or is found.

    Where none is found they are said as they are to be written, since nobody has tried them. To try takes long of
    a large model, so whoever has done it gives what is ``left`` out.
    """
    unknown = outcome.proof is Proof.UNKNOWN and outcome.plan is None
    asked = left is None and (unknown or outcome.proof is Proof.INFEASIBLE)
    off = openings(instance, tried=not unknown) if asked else ()
    *first, last = left or left_out(off) or ("",)
    if not last:
        return []
    said = ("", f"which leaves out {', '.join(first)} and {last}" if first else f"which leaves out {last}")
    lines = {one.key: one.line for one in off}  # of one key the later opens more
    return [said, *(("to try", line) for line in lines.values() if unknown)]


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
