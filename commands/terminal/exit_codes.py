"""Exit codes of the command line: one table, shown by ``--help`` and in ``docs/cli.md``."""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Sequence

WIDTH = 79
"""Columns of lines for a narrow terminal."""


class ExitCode(enum.IntEnum):
    """What a run of ``pipecut`` tells a script."""

    DONE = 0
    NO_PLAN = 1
    BAD_INPUT = 2
    NOT_PROVED = 3
    FALSE_CLAIM = 4
    DEFECT = 70
    ABORTED = 130
    BROKEN_PIPE = 141


MEANINGS: dict[ExitCode, str] = {
    ExitCode.DONE: "done; a plan that was asked for is proved optimal",
    ExitCode.NO_PLAN: "proved: no plan exists (evaluate: the plan breaks a rule; validate: a gradient differs)",
    ExitCode.BAD_INPUT: "bad input: scenario, plan file, model, or command line",
    ExitCode.NOT_PROVED: "no proof of all that was asked: stopped early, or a solver that proves nothing",
    ExitCode.FALSE_CLAIM: "a solver's claim failed its check (a defect; a reproducer is written)",
    ExitCode.DEFECT: "a defect in pipecut itself, with a traceback",
    ExitCode.ABORTED: "aborted by a second Ctrl-C",
}
"""One line for each code; BROKEN_PIPE only ends the command quietly when its reader has gone."""


def table() -> str:
    """Return the codes as lines of text, for ``--help``."""
    return listed("exit codes", [(str(int(code)), meaning) for code, meaning in MEANINGS.items()])


def listed(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Return names with what they mean under a title, in lines that fit a narrow terminal."""
    left = 2 + max(len(name) for name, _ in rows) + 2
    lines = (
        textwrap.fill(meaning, WIDTH, initial_indent=f"  {name}".ljust(left), subsequent_indent=" " * left)
        for name, meaning in rows
    )
    return "\n".join((f"{title}:", *lines))
