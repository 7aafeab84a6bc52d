"""The stages of a plan as lines for people: numbers that add up, and in words what each stage is.

A narrow terminal shows what a stage is below its numbers, a wide one beside them; names are never cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.text import Text

from commands.tables.key_lines import WRONG
from commands.terminal import human
from formulation.costs.prices import updates_ns
from formulation.problem.options import Combine, StageTime
from report.stages import boundaries_paid, slowest, slowest_in_words, split_in_words

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

    from formulation.costs.prices import StageCost
    from formulation.evaluate import Evaluation
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Plan

OPTIMISER = "optimiser"
HEADS = ("stage", "compute", "communication", OPTIMISER, "time", "", "memory")
LEFT = ("", "memory")
"""Columns that stand at the left; the others are numbers."""
MARK = "*"
NOTHING = "-"
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
    devices = " + ".join(f"{count} x {instance.servers[server].name}" for server, count in stage.group.counts)
    shared = (stage.shared_in_words, split_in_words(instance, stage))
    names = [instance.layers[layer].name for layer in stage.span.layers if layer < len(instance.layers)]
    ends = " to ".join(dict.fromkeys((names[0], names[-1]))) if names else "none"
    many = human.count(len(names), "layer")
    return f"{', '.join(one for one in (group, devices, *shared) if one)}: {ends} ({many})"
