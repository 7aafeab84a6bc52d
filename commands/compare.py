"""``pipecut compare``: several solvers on one instance, side by side."""

from __future__ import annotations

import argparse
from dataclasses import replace

from pipecut.commands.parts.comparison import (
    ComparisonRow,
    compared_row,
    comparison_to_dict,
    held_to_the_best,
    plans_to_list,
    problems_of,
    strongest,
)
from pipecut.commands.parts.task import EXIT_CODES, open_task
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode
from pipecut.formulation.outcome import Outcome


def run(arguments: argparse.Namespace) -> int:
    """Run the solvers one after another, show a row for each, and return the exit code."""
    task = open_task(arguments)
    # Each solver is asked alone, about the layers as they were traced: nothing is said of other orders, or grids.
    model, training = replace(task.instance.model, free_order=False), replace(task.instance.training, dealt=())
    task = replace(task, instance=replace(task.instance, model=model, training=training))
    rows = held_to_the_best(task, [compared_row(task, solver) for solver in arguments.solvers])
    best = strongest([row.outcome for row in rows if row.outcome is not None and row.failure is None])
    if arguments.json:
        plans = {"plans": plans_to_list(task.instance, rows, best)}
        arguments.reply.put(comparison_to_dict(task, rows, best) | plans, problems_of(rows))
    else:
        from pipecut.commands.parts.comparison import comparison_parts

        output.show(*comparison_parts(task.instance, rows, best))
    return _exit_code(rows, best)


def _exit_code(rows: list[ComparisonRow], best: Outcome | None) -> ExitCode:
    failures = [row.failure for row in rows if row.failure is not None]
    return min(failures, default=ExitCode.NOT_PROVED if best is None else EXIT_CODES[best.proof])
