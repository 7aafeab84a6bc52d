"""Every study by name: the explicit table behind ``pipecut study``. Importing it imports no study."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from planners.studies.study import Study, StudyInputs

    Run = Callable[[StudyInputs], Study]

__all__ = ["STUDIES", "find_study", "study_names"]


class StudyEntry(NamedTuple):
    """A study: its name, one line about it, the document that holds its result, and a function that loads it."""

    name: str
    summary: str
    document: str
    load: Callable[[], Run]


def _from(module: str) -> Callable[[], Run]:
    """Return a function that imports a study when it is called."""
    return lambda: importlib.import_module(f"planners.{module}").run


STUDIES: tuple[StudyEntry, ...] = (
    StudyEntry(
        "accpar", "AccPar's and HyPar's types and speed-ups", "docs/studies/accpar.md", _from("accpar.study")
    ),
    StudyEntry("fidelity", "published times and memories, predicted", "docs/fidelity.md", _from("fidelity.study")),
    StudyEntry(
        "gpipe", "GPipe's Table 1: how large a Transformer fits", "docs/studies/gpipe.md", _from("gpipe.study")
    ),
    StudyEntry(
        "ordering", "fixed schedules against the best order", "docs/studies/ordering.md", _from("studies.orders")
    ),
    StudyEntry(
        "hetpipe", "HetPipe's allocations on unlike GPUs", "docs/studies/hetpipe.md", _from("hetpipe.study")
    ),
    StudyEntry(
        "pipedream", "PipeDream's program and paper", "docs/studies/pipedream.md", _from("pipedream.study")
    ),
    StudyEntry(
        "pipepar", "PipePar's Tables I and II and its Fig. 4", "docs/studies/pipepar.md", _from("pipepar.study")
    ),
    StudyEntry(
        "sailor", "real runs of Sailor on GH200: time and memory", "docs/studies/sailor.md", _from("sailor.study")
    ),
)


def study_names() -> tuple[str, ...]:
    """Return the names of all studies, in the order of the table."""
    return tuple(entry.name for entry in STUDIES)


def find_study(name: str) -> StudyEntry:
    """Return the entry of a study. Raises ValueError with the known names for any other."""
    for entry in STUDIES:
        if entry.name == name:
            return entry
    raise ValueError(f"no study {name!r}; expected one of {', '.join(study_names())}")
