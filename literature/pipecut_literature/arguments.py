"""What the literature adds to the command line: a command, and arguments of two others.

Imports nothing heavy, so that ``--help`` and mistakes answer at once.
"""

from __future__ import annotations

import argparse
from functools import partial

from pipecut.commands.parser.arguments import add_json, seconds, whole_from
from pipecut.commands.parser.grammar import did_you_mean
from pipecut.commands.parser.options import Grammar
from pipecut.commands.terminal.failures import InputError, listed
from pipecut.solvers.catalogue import all_names
from pipecut_literature.studies.catalogue import STUDIES


def add_all(grammar: Grammar) -> None:
    """Add ``--all`` and ``--out`` to ``pipecut compare``, which then needs no scenario."""
    command = grammar.of("compare")
    command.add_argument(
        "--all",
        dest="everything",
        action="store_true",
        help="instead of one scenario all that ship, in variants: how far is every planner from the optimum?",
    )
    command.add_argument("--out", metavar="FILE", help="with --all: also write a document (Markdown)")
    command.set_defaults(check=partial(_check_all, command), writes=("out",))


def _check_all(command: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
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
        arguments.run, arguments.reads = "pipecut_literature.gaps.command", ("shipped",)
    arguments.solvers = arguments.solvers or all_names()


def add_study(grammar: Grammar) -> None:
    """Add ``pipecut study``."""
    command = grammar.command(
        "study",
        "set published numbers beside what pipecut computes",
        lambda: listed("studies", [(name, entry.summary) for name, entry in STUDIES.items()]) + "\n\n",
        examples=(("study pipepar", "the tables of the PipePar paper"),),
        run="pipecut_literature.studies.command",
        reads=("data", "plans"),
        writes=("out",),
    )
    command.add_argument("study", metavar="NAME", type=study, help="one of the studies below")
    command.add_argument("--data", metavar="DIR", help="a folder of public data in the study's format")
    command.add_argument("--plans", metavar="DIR", help="a folder of plans in the study's format")
    command.add_argument("--time-limit", metavar="TIME", type=seconds, help="longest time of each search")
    command.add_argument("--out", metavar="FILE", help="also write the tables to a document (Markdown)")
    add_json(command)


def study(text: str) -> str:
    """Return the name of a study. Raises ArgumentTypeError for a name that none has."""
    if text not in STUDIES:
        expected = f"expected one of {', '.join(STUDIES)}{did_you_mean(text, STUDIES)}"
        raise argparse.ArgumentTypeError(f"no study {text!r}; {expected}")
    return text


def add_profile(grammar: Grammar) -> None:
    """Add to ``pipecut trace`` what a PipeDream profile (``*.txt``) does not say of itself."""
    command = grammar.of("trace")
    command.add_argument(
        "--samples", metavar="N", type=whole_from(1, 2**31), help="minibatch of a PipeDream profile"
    )
    command.add_argument("--device-class", metavar="NAME", help="what the profile (*.txt) was measured on")
    command.set_defaults(check=_check_profile)


def _check_profile(arguments: argparse.Namespace) -> None:
    """Raise InputError where options speak of a profile and the model is none."""
    given = arguments.samples is not None or arguments.device_class is not None
    if given and not arguments.model.endswith(".txt"):
        raise InputError(f"{arguments.model}: --samples and --device-class are for a PipeDream profile (*.txt)")
