"""The one exception base for everything that can go wrong between a model and its layer graph."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path


class ModelError(ValueError):
    """A model could not be turned into a layer graph; the message is one readable sentence per problem."""


class TraceError(ModelError):
    """A torch module could not be traced, or one of its operators could not be costed."""


class GraphFileError(ModelError):
    """A layer-graph file could not be read or written."""


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place(error: BaseException) -> str:
    """Return `` (at file:line)`` for the innermost frame of an error in the user's own code, or nothing."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" (at {error.filename}:{error.lineno})"
    foreign = ("<", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    here = str(Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(foreign) and not frame.filename.startswith(here):
            return f" (at {frame.filename}:{frame.lineno})"
    return ""
