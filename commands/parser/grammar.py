"""argparse, with mistakes as exceptions and the words that a mistyped one is near to.

What ``--help`` of each command shows as examples; every one can be typed in a clone of this repository.

What a mistyped word may have been meant to be.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from pipecut.commands.terminal.failures import UsageError
from pipecut.solvers.installed import missing

COMMANDS = "pipecut.commands"
"""The group of commands and arguments that others bring (``solvers.installed``): each object is a function that
adds to a ``commands.parser.options.Grammar``; its name is that of the command that it adds, or adds to."""
Examples = tuple[tuple[str, str], ...]
"""What to type behind ``pipecut``, and what it does."""
VGG, GPT = "scenarios/pipepar/vgg16.yaml", "scenarios/gpt/gpt2.yaml"

EXAMPLES: Mapping[str, Examples] = MappingProxyType(
    {
        "plan": (
            (f"plan {VGG}", "the best plan, and its proof"),
            (f"plan {VGG} --out plan.json", "and write it to a file"),
            (f"plan {GPT} --time-limit '30 s'", "the best plan after 30 s at most"),
            (f"plan {VGG} --set training.global_batch=128", "what if the batch were larger?"),
        ),
        "compare": (
            (f"compare {VGG}", "every solver on one scenario"),
            (f"compare {VGG} --solvers cpsat,pipepar", "two of them"),
        ),
        "evaluate": (
            (f"evaluate plan.json {VGG}", "price, rules, and gap to the optimum"),
            (f"evaluate plan.json {VGG} --no-optimum", "without a search"),
        ),
        "explain": (
            (f"explain {VGG}", "what bounds the best plan, and what plans one move away would cost"),
            (f"explain plan.json {VGG}", "of any plan"),
        ),
        "diff": ((f"diff plan.json other.json {VGG}", "from one plan to the other, step by step"),),
        "sensitivity": (
            (f"sensitivity {VGG}", "the best plan under one change at a time"),
            (f"sensitivity {VGG} --only links,servers --time-limit '60 s'", "some changes, in a minute"),
        ),
        "sweep": (
            ("sweep scenarios/pipepar/budget.sweep.yaml", "every point of the file; the same again goes on"),
            ("sweep scenarios/pipepar/budget.sweep.yaml --svg budget.svg", "with a picture"),
        ),
        "simulate": (
            (f"simulate {VGG} --out page.html", "the best plan, drawn on a page"),
            (f"simulate {VGG} --against other.json --out page.html", "beside another plan"),
            (f"simulate {VGG} --plan plan.json --trace trace.json", "a given plan, for Perfetto"),
        ),
        "run": ((f"run plan.json {VGG} --steps 20", "train for 20 steps on this machine"),),
        "validate": ((f"validate plan.json {VGG}", "compare the gradients with those of the unsplit model"),),
        "profile": ((f"profile {VGG} --out profile.json", "times of the layers on this machine"),),
        "export": ((f"export plan.json {VGG} --to torchtitan", "as torchtitan takes it"),),
        "trace": (("trace ingest.models.vgg:vgg16 --out vgg16.json", "the layers of a model"),),
        "verify": (
            (f"plan {VGG} --certificate proof.json", "write a certificate"),
            (f"verify proof.json {VGG}", "and check it without a solver"),
        ),
        "scenarios": (("scenarios", "all of them"), ("plan llama7b", "one of them, planned")),
        "devices": (("devices", "all of them"), ("devices dgx-a100", "one, with its sources")),
    }
)
"""By command: what to type behind ``pipecut``, and what it does."""


def told(rows: Examples) -> str:
    """Return the examples of a command for the end of its help; nothing where it has none."""
    lines = "\n".join(f"  pipecut {line}\n      {what}" for line, what in rows)
    return f"examples:\n{lines}\n\n" if rows else ""


CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)$")
SURE = 0.6
"""How alike two words must be (``difflib``), from 0 to 1."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question for a message's end; nothing where no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=SURE)
    return f"; did you mean '{near[0]}'?" if near else ""


def explained(message: str) -> str:
    """Return argparse's message about a choice that there is not, with the choice that is near."""
    found = CHOICE.search(message)
    if found is None:
        return message
    word, known = found["word"], [name.strip(" '") for name in found["known"].split(",")]
    more = missing(COMMANDS, "commands") if "COMMAND" in message[: found.start()] else ""
    return (
        f"{message[: found.start()]}there is no '{word}', only {', '.join(known)}{more}{did_you_mean(word, known)}"
    )


class GrammarParser(argparse.ArgumentParser):
    """A parser whose mistakes are raised, for whoever reads them: a person or, with ``--json``, a program."""

    def __init__(self, *, ending: Callable[[], str] = str, **options: Any) -> None:  # noqa: ANN401 (argparse's own)
        """Take argparse's options, and a function that is asked for the end of the help where help is."""
        self.options: list[str] = []
        self._ending = ending
        super().__init__(**options)

    def format_help(self) -> str:
        """Return the help, with its ending."""
        self.epilog = self._ending()
        return super().format_help()

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
        more = missing(COMMANDS, "more arguments") if first.startswith("-") else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{more}{meant}")


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
