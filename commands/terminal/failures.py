"""Failures that end a command, and where they come from.

Only what reads a user's input is wrapped in :func:`reading`, which turns the errors of that phase into one
:class:`InputError`; the same exception out of a search is a defect and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


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
        nameless = type(error).__module__.partition(".")[0] in ("builtins", "formulation")
        raise InputError(f"{subject}: {error}" if nameless else str(error), _places(error)) from error


def lines_of(message: str) -> tuple[Problem, ...]:
    """Return a message line by line, without places."""
    return tuple(Problem(line) for line in message.splitlines() if line.strip())


def _places(error: ValueError) -> list[Problem]:
    """Return the mistakes of a scenario file with their places, or nothing for any other error."""
    from ingest.mistakes import ScenarioError

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
