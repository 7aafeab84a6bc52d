"""``pipecut study``: published numbers beside what pipecut computes."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError, output_path
from pipecut_literature.studies.catalogue import STUDIES
from pipecut_literature.studies.study import Study, StudyInputError, StudyInputs, write_document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Column, Table


def run(arguments: argparse.Namespace) -> int:
    """Run a study, show its tables, and write its document if a file is named. Exit code 2 for wrong data."""
    path = output_path(arguments.out)
    try:
        inputs = StudyInputs(_folder(arguments.data), _folder(arguments.plans), arguments.time_limit)
        study = STUDIES[arguments.study].load()(inputs)
    except StudyInputError as error:
        raise InputError(str(error)) from error
    if path is not None:
        write_document(path, study, _command(arguments))
    if arguments.json:
        arguments.reply.put({"study": arguments.study, "title": study.title, "figures": study.figures})
    else:
        output.show(*_parts(study))
    return ExitCode.DONE


def _folder(text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text)
    if not path.is_dir():
        raise StudyInputError(f"{text}: no such directory")
    return path


def _command(arguments: argparse.Namespace) -> str:
    """Return what a reader types; folders of data stand as names, since every reader has their own."""
    words = ["pipecut", "study", arguments.study]
    words += ["--data", "DIR"] if arguments.data else []
    words += ["--plans", "DIR"] if arguments.plans else []
    return shlex.join([*words, "--out", arguments.out])


def _parts(study: Study) -> list[str | Table]:
    parts: list[str | Table] = [study.title, "", *study.reading]
    for content in study.tables:
        parts += ["", content.title, "", drawn(content.columns, content.rows), "", *content.remarks]
    return parts


def drawn(columns: Iterable[str | Column], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table for the terminal."""
    from rich import box
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*row)
    return table
