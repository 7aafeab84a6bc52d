"""Failures that end a command, and where they come from.

Only what reads a user's input is wrapped in :func:`reading`, which turns the errors of that phase into one
:class:`InputError`; the same exception out of a search is a defect and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


class InputError(Exception):
    """The user's input is at fault; the message is printed as it is, and the exit code is 2."""


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
    except RecursionError as error:
        raise InputError(f"{subject}: nested too deeply to be read") from error
    except ImportError as error:
        raise InputError(f"{subject}: {error}") from error
    except ValueError as error:
        # Errors of ingest name file and line; those of formulation do not know of files.
        plain = type(error) is ValueError or isinstance(error, UnicodeError)
        raise InputError(f"{subject}: {error}" if plain else str(error)) from error


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
