"""A study as a document: Markdown with the command that wrote it, the date and the reading taken."""

from __future__ import annotations

from collections.abc import Iterator

from pipecut_literature.studies.study import Study, StudyTable


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
