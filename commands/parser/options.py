"""The command line's grammar: the table of commands, and what is installed beside pipecut adds to it.

Imports nothing heavy, so that ``--help`` and mistakes answer at once. What can be written behind a command is in
``commands.parser.arguments``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial

from pipecut.commands.parser.arguments import (
    EXECUTIONS,
    add_compared,
    add_explained,
    add_json,
    add_no_cross_check,
    add_order,
    add_outputs,
    add_scenario,
    add_search,
    add_sensitivity,
    add_set,
    add_strict,
    add_sweep,
    solver,
    solvers,
)
from pipecut.commands.parser.grammar import COMMANDS, EXAMPLES, Examples, GrammarParser, VersionAction, told
from pipecut.commands.terminal import failures as exit_codes
from pipecut.commands.terminal.failures import listed
from pipecut.solvers.catalogue import AUTO, all_names, all_solvers
from pipecut.solvers.installed import loaded, registered

DESCRIPTION = """\
Cut a neural network into pipeline stages for the cluster you have, and prove that no better cut exists.
"""
START = """\
begin with:
  pipecut plan scenarios/pipepar/vgg16.yaml
  pipecut plan --help

"""


class Grammar:
    """The commands by name, to which others can be added, and arguments to those that are there."""

    def __init__(self) -> None:
        self.parser = GrammarParser(
            prog="pipecut",
            description=DESCRIPTION,
            ending=lambda: START + exit_codes.table(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.parser.add_argument("--version", action=VersionAction)
        self.parser.set_defaults(run=None)
        self._added = self.parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(
        self,
        name: str,
        summary: str,
        listing: Callable[[], str] = str,
        *,
        examples: Examples = (),
        run: str = "",
        reads: tuple[str, ...] = ("scenario",),
        writes: tuple[str, ...] = (),
    ) -> argparse.ArgumentParser:
        """Add a command, whose module ``run`` does its work (default: that of its name in ``commands``).

        ``reads`` and ``writes`` name arguments that are files (``commands.main``); ``listing`` is asked for what
        its help lists.
        """
        command: argparse.ArgumentParser = self._added.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            ending=lambda: told(examples or EXAMPLES.get(name, ())) + listing() + exit_codes.table(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(run=run or f"pipecut.commands.{name}", reads=reads, writes=writes, grammar=command)
        return command

    def of(self, name: str) -> argparse.ArgumentParser:
        """Return the grammar of a command. Raises KeyError for one that there is not."""
        return self._added.choices[name]

    def __contains__(self, name: str) -> bool:
        return name in self._added.choices


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; ``run`` of the result names the module whose ``run(arguments)`` does the work.

    Raises UsageError for a mistake, InstalledError for commands that are installed and cannot be loaded, and
    SystemExit after ``--help`` and ``--version``.
    """
    words = sys.argv[1:] if argv is None else argv
    parser = grammar_for(words).parser
    arguments, unknown = parser.parse_known_args(words)
    if len(unknown) == 1 and "take_late" in arguments and arguments.take_late(arguments, unknown[0]):
        unknown = []
    if unknown:
        (parser if arguments.run is None else arguments.grammar).refuse(unknown)
    if arguments.run is None:
        parser.print_help()
        parser.exit(0)
    if "check" in arguments:
        arguments.check(arguments)
    delattr(arguments, "grammar")
    return arguments


def asks_for_json(words: Sequence[str]) -> bool:
    """Tell whether a command line, which may be wrong, asks for JSON."""
    return "--json" in itertools.takewhile(lambda word: word != "--", words)


def grammar_for(words: Sequence[str]) -> Grammar:
    """Return the grammar that reads a command line: ours, and of what is installed what adds to its command.

    Everything that is installed adds to it where the command is none of ours, or none at all.
    """
    grammar = Grammar()
    for add in (
        _add_plan,
        _add_compare,
        _add_evaluate,
        _add_reasons,
        _add_whatif,
        _add_simulate,
        _add_executions,
        _add_trace,
        _add_verify,
        _add_devices,
        _add_scenarios,
    ):
        add(grammar)
    command = next((word for word in words if not word.startswith("-")), "")
    for entry in registered(COMMANDS, command if command in grammar else None):
        loaded(entry)(grammar)
    return grammar


def _solver_list() -> str:
    return listed("solvers", [(entry.name, entry.summary) for entry in (AUTO, *all_solvers())]) + "\n\n"


def _add_plan(grammar: Grammar) -> None:
    summary = "find the best plan of a scenario and prove it"
    command = grammar.command("plan", summary, _solver_list, writes=("out", "certificate"))
    add_scenario(command)
    command.add_argument("--solver", metavar="NAME", type=solver, help="default: the scenario's, else auto")
    add_search(command)
    command.add_argument("--out", metavar="FILE", help="also write the plan to a file, for pipecut evaluate")
    add_no_cross_check(command, "do not compare a proof with that of a second exact method")
    command.add_argument(
        "--double-check",
        action="store_true",
        help="ask about a proof again by every other route; a disagreement is an error (exit code 4)",
    )
    command.add_argument("--certificate", metavar="FILE", help="write a proof that pipecut verify can check")
    command.add_argument("--verbose", action="store_true", help="show every note, also of what searches counted")
    command.add_argument(
        "--show-model", action="store_true", help="in place of a search: say what is handed to CP-SAT, in words"
    )
    command.set_defaults(check=partial(_check_shown, command))


def _check_shown(command: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with argparse's message and exit code 2 where a model is shown and something of a plan is asked for."""
    if arguments.show_model and (arguments.json or arguments.out or arguments.certificate):
        command.error("--show-model finds no plan: leave out --json, --out and --certificate")


def _add_compare(grammar: Grammar) -> None:
    summary = "run several solvers on one scenario, side by side"
    command = grammar.command("compare", summary, _solver_list)
    add_scenario(command, optional=True)
    command.add_argument("--solvers", metavar="A,B,...", type=solvers, help="default: all of them")
    add_search(command)
    command.set_defaults(check=partial(_check_compare, command))


def _check_compare(command: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with argparse's message and exit code 2 unless there is a scenario, which other checks may not need."""
    if arguments.scenario is None:
        command.error("the following arguments are required: SCENARIO")
    arguments.solvers = arguments.solvers or all_names()


def _add_evaluate(grammar: Grammar) -> None:
    summary = "price any plan of a scenario and list the rules that it breaks"
    command = grammar.command("evaluate", summary, reads=("scenario", "plan"))
    command.add_argument("plan", metavar="PLAN", help="a plan file (JSON), for example from pipecut plan --out")
    add_scenario(command)
    add_search(command)
    command.add_argument(
        "--no-optimum", dest="optimum", action="store_false", help="do not search for the optimum to compare with"
    )


def _add_reasons(grammar: Grammar) -> None:
    explain = grammar.command("explain", "say why a plan is as it is", reads=("scenario", "plan"))
    add_explained(explain)
    diff = grammar.command("diff", "say how two plans differ", reads=("scenario", "plan", "other"))
    add_compared(diff)
    for command, name in ((explain, "explain"), (diff, "diff")):
        command.set_defaults(run=f"pipecut.commands.{name}")
        add_scenario(command)
    add_search(explain, "time for the command: '60 s', '2 min', 60 (10 s for the best plan, 8 s for reasons)")
    diff.set_defaults(time_limit=None, workers=None, seed=None, quiet=True)


def _add_whatif(grammar: Grammar) -> None:
    sensitivity = grammar.command("sensitivity", "find the best plan if one thing were otherwise, for many things")
    sensitivity.set_defaults(run="pipecut.commands.sensitivity")
    add_scenario(sensitivity)
    add_sensitivity(sensitivity)
    summary = "plan thousands of variants of a scenario, and go on where an earlier run was ended"
    sweep = grammar.command("sweep", summary, reads=("sweep",), writes=("results", "svg", "csv"))
    sweep.set_defaults(run="pipecut.commands.sweep.sweep")
    sweep.add_argument("sweep", metavar="SWEEP", help="a sweep file (YAML): a scenario, and what is varied")
    add_set(sweep)
    add_sweep(sweep)
    add_json(sweep)
    for command in (sensitivity, sweep):
        add_no_cross_check(command)
        add_search(command)


def _add_simulate(grammar: Grammar) -> None:
    summary, files = (
        "run a plan step by step on the timeline and draw it",
        ("scenario", "plan", "against", "schedule_file"),
    )
    written = ("out", "trace", "svg", "png")
    command = grammar.command("simulate", summary, _solver_list, reads=files, writes=written)
    add_scenario(command)
    command.add_argument("--plan", metavar="FILE", help="run this plan (JSON) instead of searching for the best")
    command.add_argument("--against", metavar="FILE", help="show another plan (JSON) beside this one")
    add_order(command)
    command.add_argument("--solver", metavar="NAME", type=solver, help="default: the scenario's, else auto")
    add_search(command)
    add_no_cross_check(command)
    add_outputs(command)
    command.add_argument("--compare", action="store_true", help="run the other solvers too, for page and JSON")


def _add_executions(grammar: Grammar) -> None:
    for name, (summary, writes, add) in EXECUTIONS.items():
        command = grammar.command(name, summary, reads=("scenario", "plan", "schedule_file"), writes=writes)
        if name != "profile":
            command.add_argument("plan", metavar="PLAN", help="a plan file (JSON) of pipecut plan --out")
        add_scenario(command)
        add(command)


def _add_trace(grammar: Grammar) -> None:
    summary = "write the layer graph of a model, which a scenario can then name"
    command = grammar.command("trace", summary, reads=("model",), writes=("out",))
    command.add_argument("model", metavar="MODULE:FUNCTION", help="a Python function")
    command.add_argument("--out", metavar="FILE", required=True, help="the graph file to write (JSON)")
    add_strict(command)
    add_json(command)


def _add_verify(grammar: Grammar) -> None:
    summary = "check a certificate of pipecut plan without a solver"
    command = grammar.command("verify", summary, reads=("scenario", "certificate"))
    command.add_argument("certificate", metavar="CERTIFICATE", help="a file of pipecut plan --certificate")
    add_scenario(command)


def _add_devices(grammar: Grammar) -> None:
    command = grammar.command("devices", "list the devices and machines that a scenario may name", reads=())
    command.add_argument("name", metavar="NAME", nargs="?", help="show one device or machine with its sources")
    command.add_argument("--markdown", action="store_true", help="write the tables for a document")
    add_json(command)


def _add_scenarios(grammar: Grammar) -> None:
    command = grammar.command("scenarios", "list the scenarios that ship, by the names that they have", reads=())
    command.set_defaults(run="pipecut.commands.scenarios")
    add_json(command)
