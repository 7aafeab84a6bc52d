"""The grammar of ``pipecut compare`` that ``--all`` adds: either one scenario, or all that ship."""

from __future__ import annotations

import argparse
from functools import partial

from planners.catalogue import all_names


def add_all(command: argparse.ArgumentParser) -> None:
    """Add ``--all`` and ``--out``, and what is checked once the command line is read."""
    command.add_argument(
        "--all",
        dest="everything",
        action="store_true",
        help="instead of one scenario all that ship, in variants: how far is every planner from the optimum?",
    )
    command.add_argument("--out", metavar="FILE", help="with --all: also write a document (Markdown)")
    command.set_defaults(check=partial(_check, command), every_solver=all_names())


def _check(command: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with argparse's message and exit code 2 unless there is one scenario or ``--all``."""
    if arguments.everything and arguments.scenario is not None:
        command.error("argument --all: not allowed with argument SCENARIO")
    if not arguments.everything and arguments.scenario is None:
        command.error("the following arguments are required: SCENARIO (or --all)")
    if not arguments.everything and arguments.out is not None:
        command.error("argument --out: only allowed with argument --all")
    if arguments.everything:
        # There is no scenario to be opened before the command runs.
        delattr(arguments, "scenario")
