"""``pipecut compare --all``: the gap table on stdout and in a document."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipecut.commands.parts.comparison import problems_of
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, output_path
from pipecut.commands.terminal.interrupt import run_stoppable
from pipecut.formulation.outcome import Limits
from pipecut.solvers.catalogue import all_names
from pipecut_literature.gaps.cases import every_series, number_of_cases
from pipecut_literature.gaps.document import NOTHING, document, summary_table, to_dict
from pipecut_literature.gaps.solve import CaseResult, GapTableSearch, run_series
from pipecut_literature.studies.command import drawn
from pipecut_literature.studies.study import write_document

if TYPE_CHECKING:
    from rich.table import Table

TIME_LIMIT_S = 20.0
"""Longest time of each search, if the command line gives none."""


def run(arguments: argparse.Namespace) -> int:
    """Run every solver on every case, show the summary, write the document, and return the exit code.

    After a first Ctrl-C what is finished is shown, nothing is written, and the exit code is that of no proof.
    """
    path = output_path(arguments.out)
    search = GapTableSearch(arguments.solvers, _limits(arguments), tuple(arguments.overrides), arguments.quiet)
    series = every_series(arguments.overrides)
    results = run_stoppable(partial(run_series, series, search), search.stop)
    content = to_dict(results, number_of_cases(series))
    stopped = search.stop.is_set()
    if arguments.json:
        failed = [f"{one.case.name}: {problem}" for one in results for problem in problems_of(one.rows)]
        arguments.reply.put(content, failed)
    else:
        output.show(_table(content), "", _worst(content))
    if stopped:
        where = "" if path is None else f"; {arguments.out} is not written"
        output.remark(f"stopped after {len(results)} of {content['planned']} cases{where}")
    elif path is not None:
        write_document(path, document(content), _command(arguments))
    return _exit_code(results, stopped=stopped)


def _limits(arguments: argparse.Namespace) -> Limits:
    given = {"workers": arguments.workers, "seed": arguments.seed}
    known = {key: value for key, value in given.items() if value is not None}
    return replace(Limits(time_limit_s=arguments.time_limit or TIME_LIMIT_S), **known)


def _command(arguments: argparse.Namespace) -> str:
    """Return what a reader types to have the document written again."""
    words = ["pipecut", "compare", "--all", "--out", arguments.out]
    if arguments.time_limit is not None:
        words += ["--time-limit", f"{arguments.time_limit:g}"]
    for text in arguments.overrides:
        words += ["--set", text]
    if arguments.solvers != all_names():
        words += ["--solvers", ",".join(arguments.solvers)]
    return shlex.join(words)


def _exit_code(results: list[CaseResult], *, stopped: bool) -> ExitCode:
    failures = [row.failure for result in results for row in result.rows if row.failure is not None]
    if failures:
        return min(failures)
    return ExitCode.NOT_PROVED if stopped else ExitCode.DONE


def _table(content: dict[str, Any]) -> Table:
    """Return the summary but for its last column, which is too wide for a terminal."""
    from rich.table import Column

    found = summary_table(content)
    numbers = (Column(one, justify="right") for one in found.columns[1:-1])
    return drawn([Column(found.columns[0], no_wrap=True), *numbers], (row[:-1] for row in found.rows))


def _worst(content: dict[str, Any]) -> str:
    """Return a line for each planner: where it is worst."""
    found = summary_table(content)
    return "\n".join(f"{row[0]}: worst in {row[-1]}" for row in found.rows if row[-1] != NOTHING)
