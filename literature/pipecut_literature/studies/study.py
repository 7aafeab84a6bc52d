"""What a study returns: tables of text with the reading that was taken, ready for a terminal or a document."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StudyTable:
    """One table. Every row has as many cells as there are ``columns``."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()
    """Sentences below the table: what cannot be reproduced, and why."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: {len(row)} cells, expected {len(self.columns)}: {row}")


@dataclass(frozen=True, slots=True)
class Study:
    """What a study found. ``reading`` tells how the published source was read; ``figures`` are for programs."""

    title: str
    reading: tuple[str, ...]
    tables: tuple[StudyTable, ...]
    figures: dict[str, float | int | str | None] = field(default_factory=dict)
    """Named results, such as a mean absolute error in percent (``time_error_percent``), for ``--json``."""


@dataclass(frozen=True, slots=True)
class StudyInputs:
    """What a study may use: a folder of public data, a folder of plans, a time limit for each search."""

    data: Path | None = None
    plans: Path | None = None
    time_limit_s: float | None = None


class StudyInputError(ValueError):
    """The user's data or plans are missing or wrong; the message names the file."""
