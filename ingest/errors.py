"""The one exception base for everything that can go wrong between a model and its layer graph.

Operators without a formula: what is said of them, and the error that they are where none is wanted.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from pipecut.formulation.costs.amounts import plural

if TYPE_CHECKING:  # mistakes in a scenario are told before it is imported
    import networkx as nx

_LIBRARY = sysconfig.get_path("stdlib")
_MOST_CAUSES = 4


class ModelError(ValueError):
    """A model could not be turned into a layer graph; the message is one readable sentence per problem."""


class TraceError(ModelError):
    """A torch module could not be traced, or one of its operators could not be costed."""


class GraphFileError(ModelError):
    """A layer-graph file could not be read or written."""


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message, and the next one where that leads to it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    text = text.rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def with_causes(error: BaseException) -> str:
    """Return :func:`first_line` of an error and of those that led to it."""
    told = [first_line(error)]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None and len(told) < _MOST_CAUSES:
        told.append(first_line(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return ", because of ".join(dict.fromkeys(told))


def place(error: BaseException) -> str:
    """Return `` (at file:line)`` for the innermost frame of an error in the user's own code, or nothing."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" (at {error.filename}:{error.lineno})"
    here = str(Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not is_foreign(frame.filename) and not frame.filename.startswith(here):
            return f" (at {frame.filename}:{frame.lineno})"
    return ""


def is_foreign(file: str) -> bool:
    """Tell whether a file is Python's own or an installed package's, or none at all."""
    installed = any(f"{os.sep}{folder}{os.sep}" in file for folder in ("site-packages", "dist-packages"))
    return installed or file.startswith(("<", _LIBRARY))


def told_of_unpriced(graph: nx.DiGraph, *, strict: bool = False) -> nx.DiGraph:
    """Return a layer graph with a note about its operators without a formula. Raises ModelError if ``strict``."""
    found: tuple[str, ...] = graph.graph.get("unpriced", ())
    if not found:
        return graph
    number = f"{len(found)} {plural(len(found), 'operator')} without a formula"
    listed = ", ".join(found)
    if strict:
        raise ModelError(
            f"model {graph.graph['name']}: {number}: {listed}; name a known operator that counts the same in "
            "model.operators, or leave out --strict"
        )
    noted = graph.copy()
    note = f"{number} counted as the bytes that they read and write: {listed}"
    noted.graph["notes"] = (*graph.graph.get("notes", ()), note)
    return noted
