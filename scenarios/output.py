"""What goes to stdout (text, rich renderables as text, one JSON object) and remarks for stderr."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from scenarios.failures import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH_OF_FILES = 120
"""Columns of a table that goes to a file or a pipe."""


def write(text: str) -> None:
    """Write text to stdout. Raises BrokenPipeError, and InputError where stdout cannot take it (a full disk)."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"standard output: {error.strerror}") from error


def remark(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def write_json(content: dict[str, Any]) -> None:
    """Write one JSON object to stdout."""
    write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def render(*parts: RenderableType) -> str:
    """Return rich renderables as text for stdout: in colour on a terminal, else plain and of a fixed width."""
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    # In memory and in stdout's encoding, so that rich draws only lines that can be shown there.
    encoding = sys.stdout.encoding or "utf-8"
    page = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="")
    console = Console(
        file=page,
        force_terminal=terminal,
        width=None if terminal or "COLUMNS" in os.environ else WIDTH_OF_FILES,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in parts:
        # Tables fit the width; lines of text are left whole for whoever reads them by program.
        console.print(part, soft_wrap=not isinstance(part, Table))
    page.seek(0)
    return "".join(line.rstrip() + "\n" for line in page)
