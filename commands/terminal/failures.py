"""Failures that end a command, and where they come from.

Only what reads a user's input is wrapped in :func:`reading`, which turns the errors of that phase into one
:class:`InputError`; the same exception out of a search is a defect and keeps its traceback.

Exit codes of the command line: one table, shown by ``--help`` and in ``docs/cli.md``.

A failed claim on file: all that is needed to see it again, as JSON where the user runs pipecut.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import os
import platform
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecut.formulation.outcome import Limits

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


@dataclass(frozen=True, slots=True)
class Problem:
    """One line of a message, and where it is known the place in a file that it speaks of, counted from 1."""

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None


class InputError(Exception):
    """The user's input is at fault; the message is printed as it is, and the exit code is 2.

    ``problems`` says the same line by line, each with its place.
    """

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems) or lines_of(message)


class UsageError(InputError):
    """The command line is at fault. ``usage`` says how it is written; the message is what is wrong with it."""

    def __init__(self, usage: str, message: str) -> None:
        super().__init__(usage + message, lines_of(message))


class OutOfTimeError(Exception):
    """The time limit was over before there was anything to show; the exit code is 3.

    Commands that reply in JSON put a claim of ``solver``, which knows nothing after ``seconds``.
    """

    def __init__(self, message: str, solver: str, seconds: float) -> None:
        super().__init__(message)
        self.solver, self.seconds = solver, seconds


class ClaimFailedError(Exception):
    """A claim of a solver failed its check; the message names the reproducer, and the exit code is 4."""


@contextlib.contextmanager
def reading(subject: str | Path) -> Iterator[None]:
    """Read ``subject`` (named in messages that do not name it themselves). Raises InputError.

    A model's own code may print while it is built; that goes to stderr, so that stdout holds the result only.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except OSError as error:
        raise InputError(f"{error.filename or subject}: {error.strerror or error}") from error
    except (RecursionError, ImportError) as error:
        reason = "nested too deeply to be read" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"{subject}: {reason}") from error
    except ValueError as error:
        # Errors of ingest name file and line; those of formulation do not know of files, nor do Python's own.
        nameless = type(error).__module__.startswith(("builtins", "pipecut.formulation"))
        raise InputError(f"{subject}: {error}" if nameless else str(error), _places(error)) from error


def lines_of(message: str) -> tuple[Problem, ...]:
    """Return a message line by line, without places."""
    return tuple(Problem(line) for line in message.splitlines() if line.strip())


def _places(error: ValueError) -> list[Problem]:
    """Return the mistakes of a scenario file with their places, or nothing for any other error."""
    from pipecut.ingest.mistakes import ScenarioError

    if not isinstance(error, ScenarioError):
        return []
    return [
        Problem(str(one), one.place.source, one.place.line, one.place.column or None)
        if one.place.line
        else Problem(str(one))
        for one in error.mistakes
    ]


def output_path(text: str | None) -> Path | None:
    """Return where to write, links followed, or None for None; refuse what cannot be written before any work.

    Raises InputError.
    """
    if text is None:
        return None
    if not text.strip():
        raise InputError("expected the name of a file to write, got nothing")
    try:
        path = Path(text).resolve()
        folder = path.parent
        if path.is_dir():
            raise InputError(f"{text}: is a directory, expected a file to write")
        if path.exists() and not path.is_file():
            raise InputError(f"{text}: is not a regular file")
        if not folder.is_dir():
            raise InputError(f"{text}: there is no directory {folder}")
        if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
            raise InputError(f"{text}: no permission to write it")
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # names that are no path: too long, a zero byte, a link loop
        raise InputError(f"{text!r}: {getattr(error, 'strerror', None) or error}") from error
    return path


PACKAGES = ("pipecut", "ortools", "networkx", "numpy", "pydantic", "torch")


def write_reproducer(
    scenario: str | Path,
    overrides: Sequence[str],
    solver: str,
    limits: Limits,
    message: str,
    details: Mapping[str, Any] | None = None,
) -> Path:
    """Write the reproducer into the working directory and return its path. Raises OSError.

    ``details`` is more that belongs to this failure, such as the route that disagrees and its counter-plan.

    The name follows from the content, so the same failure overwrites its own file and no other.
    """
    from pipecut.ingest.files import atomic_write

    content: dict[str, Any] = {
        "claim": message,
        "scenario": str(scenario),
        "overrides": list(overrides),
        "solver": solver,
        "seed": limits.seed,
        "workers": limits.workers,
        "time_limit_s": limits.time_limit_s,
        "versions": versions(),
        "platform": platform.platform(),
        **(details or {}),
    }
    text = json.dumps(content, indent=2) + "\n"
    path = Path(f"pipecut-false-claim-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json")
    atomic_write(path, text)
    return path


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that a plan depends on (None: not installed)."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
