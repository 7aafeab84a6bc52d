"""argparse, with mistakes as exceptions and the words that a mistyped one is near to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from commands.parser.suggestions import did_you_mean, explained
from commands.terminal.failures import UsageError


class GrammarParser(argparse.ArgumentParser):
    """A parser whose mistakes are raised, for whoever reads them: a person or, with ``--json``, a program."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 (argparse's own)
        self.options: list[str] = []
        super().__init__(**options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:  # noqa: ANN401 (argparse's own)
        """Add an argument, and keep what it is called for whoever mistypes it."""
        self.options += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(self.format_usage(), f"{self.prog}: error: {explained(message)}")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Raise UsageError about words that nothing takes."""
        first = next((word for word in unknown if word.startswith("-")), unknown[0])
        meant = did_you_mean(first.partition("=")[0], self.options) if first.startswith("-") else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")


class VersionAction(argparse.Action):
    """``--version``: looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: object) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="show the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Show the version and end."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("pipecut")
        except PackageNotFoundError:
            number = "(not installed)"
        parser.exit(0, f"pipecut {number}\n")
