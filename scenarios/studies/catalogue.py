"""Every study by name: the explicit table behind ``pipecut study``. Importing it imports no study."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scenarios.studies.study import Study, StudyInputs

    Run = Callable[[StudyInputs], Study]


class StudyEntry(NamedTuple):
    """A study: its name, one line about it, the document that holds its result, and a function that loads it."""

    name: str
    summary: str
    document: str
    load: Callable[[], Run]


STUDIES: tuple[StudyEntry, ...] = ()


def study_names() -> tuple[str, ...]:
    """Return the names of all studies, in the order of the table."""
    return tuple(entry.name for entry in STUDIES)


def find_study(name: str) -> StudyEntry:
    """Return the entry of a study. Raises ValueError with the known names for any other."""
    for entry in STUDIES:
        if entry.name == name:
            return entry
    raise ValueError(f"no study {name!r}; expected one of {', '.join(study_names())}")
