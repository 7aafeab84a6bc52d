"""The one place that writes to a terminal: stdout and stderr of the command line, cleaned of what could steer it.

Names come from users' files and end up in tables and messages: layers, servers, keys, paths. While a command runs,
``sys.stdout`` and ``sys.stderr`` are streams that show a question mark for every character that is not printable
(escape sequences, other control characters, marks that turn the direction of text), whoever writes: a command,
argparse, a warning, a traceback, a model's own code. Colours and the moving progress line come from rich alone;
what it draws is cleaned before it is coloured.

Numbers for people: times, amounts of data and gaps with the prefix that fits, as a terminal shows them.

Only for display; everything that is compared stays in whole nanoseconds and bytes. Shared with the pages
(``report.wording``), but for what any terminal can show: ``us`` for microseconds, no commas between thousands.

What a command says: text and tables on stdout, remarks on stderr; all through ``terminal.terminal``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from pipecut.commands.terminal.failures import InputError
from pipecut.formulation.costs.amounts import counted, scaled_size
from pipecut.formulation.costs.amounts import duration as duration
from pipecut.formulation.costs.amounts import exact_duration as exact_duration
from pipecut.formulation.costs.amounts import gap as gap
from pipecut.report.wording import printable as printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

amount, count = scaled_size, counted
WIDTH = 80
"""Columns of a narrow terminal, which lines of words are wrapped to."""


_OTHER_THAN_LINES = re.compile(r"[^\n\t]+")


def clean(text: str) -> str:
    """Return text with a question mark for what is not printable, but for the ends of lines and tabs."""
    return _OTHER_THAN_LINES.sub(lambda run: run[0] if run[0].isprintable() else printable(run[0]), text)


class CleanStream:
    """A stream that cleans all text on its way to ``raw``; anything else is asked of ``raw``.

    Where the words of a stream are only remarks, a failure to write them is none of the command's: ``needed`` is
    False. Otherwise it raises InputError (a full disk), and BrokenPipeError where the reader has gone.
    """

    def __init__(self, raw: TextIO, *, needed: bool) -> None:
        self.raw = raw
        self._needed = needed

    def write(self, text: str) -> int:
        """Write text, cleaned, and return its length."""
        with self._said():
            self.raw.write(clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts one behind another, cleaned."""
        for text in lines:
            self.write(text)

    def write_drawn(self, text: str) -> None:
        """Write what rich has drawn out of cleaned parts, with its colours."""
        with self._said():
            self.raw.write(text)

    def flush(self) -> None:
        """Hand on what was written."""
        with self._said():
            self.raw.flush()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever a stream has)
        return getattr(self.raw, name)

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            if self._needed:
                raise
        except OSError as error:
            if self._needed:
                raise InputError(f"standard output: {error.strerror}") from error


@contextlib.contextmanager
def cleaned() -> Iterator[None]:
    """Clean whatever is written to ``sys.stdout`` and ``sys.stderr``, and never fail on a character."""
    before, held = (sys.stdout, sys.stderr), list(_OURS)
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.stdout = _cleaned(sys.stdout, needed=True)
    sys.stderr = _cleaned(sys.stderr, needed=False)
    _OURS[:] = [sys.stdout, sys.stderr]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        _OURS[:] = held


_OURS: list[TextIO] = []
"""Stdout and stderr of the command that runs; none outside of one."""


def stdout() -> TextIO:
    """Return where a command writes its result, whatever a model's code, in a thread, has put in its place."""
    return _OURS[0] if _OURS else sys.stdout


def stderr() -> TextIO:
    """Return where a command writes its remarks; None where there is no such stream."""
    return _OURS[1] if _OURS else sys.stderr


def close_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's own last flush stays quiet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def console(stream: TextIO, **options: Any) -> Console:  # noqa: ANN401 (options of rich)
    """Return a rich console on a stream, which is given cleaned parts only (:class:`Cleaned`)."""
    from rich.console import Console

    raw = stream.raw if isinstance(stream, CleanStream) else stream
    return Console(file=cast(TextIO, raw), highlight=False, markup=False, emoji=False, **options)


class Cleaned:
    """A rich renderable whose text is cleaned once it is laid out, before it gets its colours."""

    def __init__(self, part: RenderableType) -> None:
        self.part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for segment in console.render(self.part, options):
            if not segment.control:
                yield Segment(clean(segment.text), segment.style)


def _cleaned(stream: TextIO, *, needed: bool) -> TextIO:
    """Return a stream, wrapped unless it is already; None, where there is no such stream, stays None."""
    if stream is None or isinstance(stream, CleanStream):
        return stream
    return cast(TextIO, CleanStream(stream, needed=needed))


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
