"""What a command says: text and tables on stdout, remarks on stderr; all through ``terminal.terminal``."""

from __future__ import annotations

import io
import os
import shutil
import textwrap
from typing import TYPE_CHECKING

from commands.terminal.terminal import Cleaned, CleanStream, console, stderr, stdout

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH_OF_FILES = 120
"""Columns of a table that goes to a file or a pipe."""
FURTHER_IN = "    "
"""Before what a broken line goes on with."""


def write(text: str) -> None:
    """Write text to stdout. Raises BrokenPipeError, and InputError where stdout cannot take it (a full disk)."""
    stdout().write(text)
    stdout().flush()


def remark(text: str) -> None:
    """Write a line to stderr; a long one is broken between words where a terminal shows it."""
    stream = stderr()
    if stream is not None:
        if stream.isatty():
            text = "\n".join(broken(line, shutil.get_terminal_size().columns) for line in text.split("\n"))
        stream.write(text + "\n")
        stream.flush()


def broken(line: str, width: int) -> str:
    """Return a line broken between words, the rest of it further in; words that are too long stay whole."""
    if len(line) <= width:
        return line
    further = line[: len(line) - len(line.lstrip())] + FURTHER_IN
    return textwrap.fill(
        line, max(width, 20), subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def show(*parts: RenderableType) -> None:
    """Write rich renderables to stdout: in colour on a terminal, else plain and of a fixed width.

    Raises as :func:`write` does.
    """
    # In stdout's encoding, so that rich draws only lines that can be shown there.
    stream = stdout()
    terminal, encoding = stream.isatty(), stream.encoding or "utf-8"
    width = None if terminal or "COLUMNS" in os.environ else WIDTH_OF_FILES
    text = drawn(*parts, width=width, encoding=encoding, terminal=terminal, whole=not terminal)
    if isinstance(stream, CleanStream):
        stream.write_drawn(text)
    else:
        stream.write(text)
    stream.flush()


def drawn(
    *parts: RenderableType,
    width: int | None,
    encoding: str = "utf-8",
    terminal: bool = False,
    whole: bool = False,
) -> str:
    """Return what rich draws of cleaned parts, without trailing blanks, of characters that the encoding has.

    It is so many columns wide (None: as wide as the terminal), and in colour only for a terminal. ``whole``:
    lines of text are not broken, for whoever reads them by program; tables fit the width all the same.
    """
    from rich.table import Table

    page = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="")
    screen = console(page, force_terminal=terminal, width=width)
    for part in parts:
        screen.print(
            Cleaned(part), soft_wrap=whole and not (isinstance(part, Table) or getattr(part, "fits_width", False))
        )
    page.seek(0)
    return "".join(line.rstrip() + "\n" for line in page)
