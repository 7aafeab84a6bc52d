"""Exit codes of the command line: one table, shown by ``--help`` and in ``docs/cli.md``."""

from __future__ import annotations

import enum


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
    return "exit codes:\n" + "\n".join(f"  {code:<4d}{meaning}" for code, meaning in MEANINGS.items())
