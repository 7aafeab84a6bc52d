"""Lines ``key  value``, as wide as the terminal: broken between words, with the values under one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

KEYS = 11
"""Columns of the keys at the left."""
WIDEST = 110
"""Longer lines are hard to read, however wide the terminal is."""
GOOD, OPEN, WRONG = "green", "yellow", "bold red"
"""Colours of what is proved, of what is open, and of what breaks a rule."""

Row = tuple[str, str | Text]


class KeyLines:
    """Pairs of key and value as lines; a program that reads them gets every value in one line.

    ``str`` of it is what such a program gets.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)

    def __str__(self) -> str:
        """Return the lines whole, without colours."""
        return "\n".join(f"{key:<{KEYS}}{value}" for key, value in self.rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield a line for each value, or as many as it needs."""
        room = max(1, min(options.max_width, WIDEST) - KEYS)
        for key, value in self.rows:
            text = value if isinstance(value, Text) else Text(value)
            lines = [text] if options.no_wrap else text.wrap(console, room)
            for at, line in enumerate(lines):
                yield Text.assemble((("" if at else key).ljust(KEYS), "bold")) + line
