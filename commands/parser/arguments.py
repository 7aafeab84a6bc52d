"""The command line's grammar. Imports nothing heavy, so that ``--help`` and mistakes answer at once."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

from commands.parser.compare_arguments import add_all
from commands.parser.examples import examples_of
from commands.parser.execution_arguments import EXECUTIONS
from commands.parser.grammar import GrammarParser, VersionAction
from commands.parser.reasons_arguments import add_compared, add_explained
from commands.parser.run_arguments import add_order, add_outputs
from commands.parser.values import seconds, solver, solvers, study, whole_from
from commands.parser.whatif_arguments import add_sensitivity, add_sweep
from commands.terminal import exit_codes
from commands.terminal.exit_codes import listed
from planners.catalogue import all_names, all_solvers
from planners.studies.catalogue import STUDIES
from solvers.catalogue import AUTO

DESCRIPTION = """\
Cut a neural network into pipeline stages for the cluster you have, and prove that no better cut exists.
"""
START = """\
begin with:
  pipecut plan scenarios/pipepar/vgg16.yaml
  pipecut plan --help

"""
LARGEST_SEED = 2**31 - 1
MOST_WORKERS = 1024


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; ``run`` of the result names the module whose ``run(arguments)`` does the work.

    Raises UsageError for a mistake, and SystemExit after ``--help`` and ``--version``.
    """
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
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


def _parser() -> GrammarParser:
    parser = GrammarParser(
        prog="pipecut",
        description=DESCRIPTION,
        epilog=START + exit_codes.table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=VersionAction)
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_plan(commands)
    _add_compare(commands)
    _add_evaluate(commands)
    _add_reasons(commands)
    _add_whatif(commands)
    _add_simulate(commands)
    _add_executions(commands)
    _add_trace(commands)
    _add_verify(commands)
    _add_study(commands)
    _add_devices(commands)
    _add_scenarios(commands)
    return parser


def _command(
    commands: Any,  # noqa: ANN401 (what add_subparsers returns, a private class of argparse)
    name: str,
    summary: str,
    epilog: str = "",
    *,
    reads: tuple[str, ...] = ("scenario",),
    writes: tuple[str, ...] = (),
) -> argparse.ArgumentParser:
    """Add a command. ``reads`` and ``writes`` name arguments that are files (``commands.parts.named_files``)."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=examples_of(name) + epilog + exit_codes.table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(run=f"commands.{name}", reads=reads, writes=writes, grammar=command)
    return command


def _add_scenario(command: argparse.ArgumentParser, *, optional: bool = False) -> None:
    words = "a scenario file (YAML), or a name that pipecut scenarios lists"
    command.add_argument("scenario", metavar="SCENARIO", nargs="?" if optional else None, help=words)
    _add_set(command)
    _add_strict(command)
    _add_json(command)


def _add_set(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a value of the scenario, for example training.global_batch=128 (may be repeated)",
    )


def _add_strict(command: argparse.ArgumentParser) -> None:
    words = "refuse operators without a formula, which else count as the bytes that they read and write"
    command.add_argument("--strict", action="store_true", help=words)


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="write one JSON object to stdout, nothing else")


def _add_search(
    command: argparse.ArgumentParser,
    words: str = "time for the command; in compare for each solver, in sweep for each point: '60 s', '2 min', 60",
) -> None:
    command.add_argument("--time-limit", metavar="TIME", type=seconds, help=words)
    command.add_argument(
        "--workers", metavar="N", type=whole_from(1, MOST_WORKERS), help="parallel search workers"
    )
    command.add_argument("--seed", metavar="N", type=whole_from(0, LARGEST_SEED), help="seed of the search")
    command.add_argument("--quiet", action="store_true", help="no progress line on stderr")


def _solver_list() -> str:
    return listed("solvers", [(entry.name, entry.summary) for entry in (AUTO, *all_solvers())]) + "\n\n"


def _add_plan(commands: Any) -> None:  # noqa: ANN401
    summary = "find the best plan of a scenario and prove it"
    command = _command(commands, "plan", summary, _solver_list(), writes=("out", "certificate"))
    _add_scenario(command)
    command.add_argument("--solver", metavar="NAME", type=solver, help="default: the scenario's, else auto")
    _add_search(command)
    command.add_argument("--out", metavar="FILE", help="also write the plan to a file, for pipecut evaluate")
    command.add_argument(
        "--no-cross-check",
        dest="cross_check",
        action="store_false",
        help="do not compare a proof with that of a second exact method",
    )
    command.add_argument(
        "--double-check",
        action="store_true",
        help="ask about a proof again by every other route; a disagreement is an error (exit code 4)",
    )
    command.add_argument("--certificate", metavar="FILE", help="write a proof that pipecut verify can check")


def _add_compare(commands: Any) -> None:  # noqa: ANN401
    summary = "run several solvers on one scenario, side by side"
    command = _command(commands, "compare", summary, _solver_list(), writes=("out",))
    _add_scenario(command, optional=True)
    add_all(command)
    command.add_argument(
        "--solvers", metavar="A,B,...", type=solvers, default=all_names(), help="default: all of them"
    )
    _add_search(command)


def _add_evaluate(commands: Any) -> None:  # noqa: ANN401
    summary = "price any plan of a scenario and list the rules that it breaks"
    command = _command(commands, "evaluate", summary, reads=("scenario", "plan"))
    command.add_argument("plan", metavar="PLAN", help="a plan file (JSON), for example from pipecut plan --out")
    _add_scenario(command)
    _add_search(command)
    command.add_argument(
        "--no-optimum", dest="optimum", action="store_false", help="do not search for the optimum to compare with"
    )


def _add_reasons(commands: Any) -> None:  # noqa: ANN401
    explain = _command(commands, "explain", "say why a plan is as it is", reads=("scenario", "plan"))
    add_explained(explain)
    diff = _command(commands, "diff", "say how two plans differ", reads=("scenario", "plan", "other"))
    add_compared(diff)
    for command, name in ((explain, "explain"), (diff, "diff")):
        command.set_defaults(run=f"commands.reasons.{name}")
        _add_scenario(command)
    _add_search(explain, "time for the command: '60 s', '2 min', 60 (10 s for the best plan, 8 s for reasons)")
    diff.set_defaults(time_limit=None, workers=None, seed=None, quiet=True)


def _add_whatif(commands: Any) -> None:  # noqa: ANN401
    sensitivity = _command(
        commands, "sensitivity", "find the best plan if one thing were otherwise, for many things"
    )
    sensitivity.set_defaults(run="commands.whatif.sensitivity")
    _add_scenario(sensitivity)
    add_sensitivity(sensitivity)
    summary = "plan thousands of variants of a scenario, and go on where an earlier run was ended"
    sweep = _command(commands, "sweep", summary, reads=("sweep",), writes=("results", "svg", "csv"))
    sweep.set_defaults(run="commands.sweep.sweep")
    sweep.add_argument("sweep", metavar="SWEEP", help="a sweep file (YAML): a scenario, and what is varied")
    _add_set(sweep)
    add_sweep(sweep)
    _add_json(sweep)
    for command in (sensitivity, sweep):
        _add_search(command)


def _add_simulate(commands: Any) -> None:  # noqa: ANN401
    summary, files = (
        "run a plan step by step on the timeline and draw it",
        ("scenario", "plan", "against", "schedule_file"),
    )
    written = ("out", "trace", "svg", "png")
    command = _command(commands, "simulate", summary, _solver_list(), reads=files, writes=written)
    _add_scenario(command)
    command.add_argument("--plan", metavar="FILE", help="run this plan (JSON) instead of searching for the best")
    command.add_argument("--against", metavar="FILE", help="show another plan (JSON) beside this one")
    add_order(command)
    command.add_argument("--solver", metavar="NAME", type=solver, help="default: the scenario's, else auto")
    _add_search(command)
    command.add_argument(
        "--no-cross-check", dest="cross_check", action="store_false", help="skip the second proof, as in plan"
    )
    add_outputs(command)
    command.add_argument("--compare", action="store_true", help="run the other solvers too, for page and JSON")


def _add_executions(commands: Any) -> None:  # noqa: ANN401
    for name, (summary, writes, add) in EXECUTIONS.items():
        command = _command(commands, name, summary, reads=("scenario", "plan", "schedule_file"), writes=writes)
        if name != "profile":
            command.add_argument("plan", metavar="PLAN", help="a plan file (JSON) of pipecut plan --out")
        _add_scenario(command)
        add(command)


def _add_trace(commands: Any) -> None:  # noqa: ANN401
    summary = "write the layer graph of a model, which a scenario can then name"
    command = _command(commands, "trace", summary, reads=("model",), writes=("out",))
    command.add_argument(
        "model", metavar="MODULE:FUNCTION", help="a Python function, or a PipeDream profile (*.txt)"
    )
    command.add_argument("--samples", metavar="N", type=whole_from(1, 2**31), help="minibatch of the profile")
    command.add_argument("--device-class", metavar="NAME", help="what the profile was measured on")
    command.add_argument("--out", metavar="FILE", required=True, help="the graph file to write (JSON)")
    _add_strict(command)
    _add_json(command)


def _add_verify(commands: Any) -> None:  # noqa: ANN401
    summary = "check a certificate of pipecut plan without a solver"
    command = _command(commands, "verify", summary, reads=("scenario", "certificate"))
    command.add_argument("certificate", metavar="CERTIFICATE", help="a file of pipecut plan --certificate")
    _add_scenario(command)


def _add_study(commands: Any) -> None:  # noqa: ANN401
    rows = listed("studies", [(name, entry.summary) for name, entry in STUDIES.items()])
    summary = "set published numbers beside what pipecut computes"
    command = _command(commands, "study", summary, f"{rows}\n\n", reads=("data", "plans"), writes=("out",))
    command.add_argument("study", metavar="NAME", type=study, help="one of the studies below")
    command.add_argument("--data", metavar="DIR", help="a folder of public data in the study's format")
    command.add_argument("--plans", metavar="DIR", help="a folder of plans in the study's format")
    command.add_argument("--time-limit", metavar="TIME", type=seconds, help="longest time of each search")
    command.add_argument("--out", metavar="FILE", help="also write the tables to a document (Markdown)")
    _add_json(command)


def _add_devices(commands: Any) -> None:  # noqa: ANN401
    command = _command(commands, "devices", "list the devices and machines that a scenario may name", reads=())
    command.add_argument("name", metavar="NAME", nargs="?", help="show one device or machine with its sources")
    command.add_argument("--markdown", action="store_true", help="write the tables for a document")
    _add_json(command)


def _add_scenarios(commands: Any) -> None:  # noqa: ANN401
    command = _command(
        commands, "scenarios", "list the scenarios that ship, by the names that they have", reads=()
    )
    command.set_defaults(run="commands.parts.scenarios")
    _add_json(command)
