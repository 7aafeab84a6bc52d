"""What a study returns: tables of text with the reading that was taken, ready for a terminal or a document.

Its words lie in a file beside it, and its numbers are written here, as is its document: Markdown with the command
that wrote it, the date and the reading taken.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipecut.ingest.files import atomic_write
from pipecut.ingest.text.yaml_source import Document

GIB = 2**30
WORDS, PUBLISHED = "words.yaml", "published.yaml"
"""Files beside a study: its paragraphs by name, a place for a number written ``{name}``; and published numbers."""


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


def words(module: str, name: str, /, **numbers: object) -> tuple[str, ...]:
    """Return paragraphs of the study of a module (its ``__file__``), numbers in their places.

    Raises KeyError for a name that its file of words does not have, and for a place without a number.
    """
    return tuple(one.format(**numbers) for one in _read(Path(module).with_name(WORDS))[name])


def published(module: str) -> dict[str, Any]:
    """Return the tables of the file of published numbers beside a module (its ``__file__``), by name."""
    return _read(Path(module).with_name(PUBLISHED))


@cache
def _read(path: Path) -> dict[str, Any]:
    found: Any = Document.read(path).data
    return found


def write_document(path: Path, study: Study, command: str) -> None:
    """Write the document of a study, with the date of today. Raises OSError if the file cannot be written."""
    atomic_write(path, to_markdown(study, command, datetime.datetime.now(tz=datetime.UTC).date().isoformat()))


def to_markdown(study: Study, command: str, date: str) -> str:
    """Return the document of a study. ``command`` is what a reader types to write it again."""
    parts = [f"# {study.title}", f"Written by `{command}` on {date}.", *study.reading]
    for table in study.tables:
        parts += [f"## {table.title}", "\n".join(_lines(table)), *table.remarks]
    return "\n\n".join(parts) + "\n"


def _lines(table: StudyTable) -> Iterator[str]:
    yield _row(table.columns)
    yield "|" + "|".join("---:" if _holds_numbers(table, at) else "---" for at in range(len(table.columns))) + "|"
    for row in table.rows:
        yield _row(row)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _holds_numbers(table: StudyTable, at: int) -> bool:
    """Tell whether most cells of a column begin like a number."""
    cells = [row[at] for row in table.rows if row[at] not in ("", "-")]
    return bool(cells) and sum(cell[0] in "+-0123456789<" for cell in cells) * 2 > len(cells)


class Errors(NamedTuple):
    """Mean absolute errors of a published table, in percent: of the executed schedule and of the closed form."""

    executed: float
    closed_form: float


def error_percent(predicted: Fraction | float, published: Fraction | float) -> float:
    """Return how far a prediction is above the published number, in percent of the latter."""
    return float((predicted / published - 1) * 100)


def mean_absolute(errors: Iterable[float]) -> float:
    """Return the mean of absolute values."""
    values = [abs(error) for error in errors]
    return sum(values) / len(values)


def signed(percent: float) -> str:
    """Write an error."""
    return f"{round(percent, 1) + 0.0:+.1f} %"  # + 0.0: no negative zero


def share(value: Fraction | float) -> str:
    """Write a fraction in percent."""
    return f"{float(value) * 100:.1f} %"


def gib(amount_bytes: Fraction | int) -> str:
    """Write bytes in GiB."""
    return f"{float(amount_bytes) / GIB:.2f}"
