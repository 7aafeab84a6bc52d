"""The command line's grammar. Imports nothing heavy, so that ``--help`` and mistakes answer at once."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from typing import Any

from commands.parser.compare_arguments import add_all
from commands.parser.examples import examples_of
from commands.parser.execution_arguments import EXECUTIONS
from commands.parser.grammar import GrammarParser, VersionAction
from commands.parser.reasons_arguments import add_compared, add_explained
from commands.parser.run_arguments import add_order, add_outputs, whole
from commands.parser.suggestions import did_you_mean
from commands.terminal import exit_codes
from commands.terminal.exit_codes import listed
from planners.catalogue import all_names, all_solvers
from planners.studies.catalogue import STUDIES, study_names
from solvers.catalogue import AUTO

__all__: list[str] = []

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


def seconds(text: str) -> float:
    """Return a time limit in seconds: ``60``, ``60 s``, ``2 min``. Raises ArgumentTypeError for anything else."""
    from formulation.problem.units import NS_PER_SECOND
    from ingest.text.quantities import duration

    bare = re.fullmatch(r"[0-9]+(\.[0-9]+)?", text.strip(), re.ASCII)
    try:
        time_ns = duration(f"{text.strip()} s" if bare else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if time_ns == 0:
        raise argparse.ArgumentTypeError("expected a time above 0")
    return time_ns / NS_PER_SECOND


def _whole(least: int, most: int) -> Any:  # noqa: ANN401 (argparse takes any callable)
    return lambda text: whole(text, least, most)


def _solver(text: str) -> str:
    known = (AUTO.name, *all_names())
    if text not in known:
        expected = f"expected one of {', '.join(known)}{did_you_mean(text, known)}"
        raise argparse.ArgumentTypeError(f"no solver {text!r}; {expected}")
    return text


def _study(text: str) -> str:
    if text not in study_names():
        expected = f"expected one of {', '.join(study_names())}{did_you_mean(text, study_names())}"
        raise argparse.ArgumentTypeError(f"no study {text!r}; {expected}")
    return text


def _solvers(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    return tuple(_solver(name) for name in names)


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
    _add_simulate(commands)
    _add_executions(commands)
    _add_trace(commands)
    _add_verify(commands)
    _add_study(commands)
    _add_devices(commands)
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
    command.add_argument(
        "scenario", metavar="SCENARIO", nargs="?" if optional else None, help="a scenario file (YAML)"
    )
    command.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a value of the scenario, for example training.global_batch=128 (may be repeated)",
    )
    _add_strict(command)
    _add_json(command)


def _add_strict(command: argparse.ArgumentParser) -> None:
    words = "refuse operators without a formula, which else count as the bytes that they read and write"
    command.add_argument("--strict", action="store_true", help=words)


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="write one JSON object to stdout, nothing else")


def _add_search(command: argparse.ArgumentParser) -> None:
    words = "time for the command, in compare for each solver: '60 s', '2 min', 60"
    command.add_argument("--time-limit", metavar="TIME", type=seconds, help=words)
    command.add_argument("--workers", metavar="N", type=_whole(1, MOST_WORKERS), help="parallel search workers")
    command.add_argument("--seed", metavar="N", type=_whole(0, LARGEST_SEED), help="seed of the search")
    command.add_argument("--quiet", action="store_true", help="no progress line on stderr")


def _solver_list() -> str:
    return listed("solvers", [(entry.name, entry.summary) for entry in (AUTO, *all_solvers())]) + "\n\n"


def _add_plan(commands: Any) -> None:  # noqa: ANN401
    summary = "find the best plan of a scenario and prove it"
    command = _command(commands, "plan", summary, _solver_list(), writes=("out", "certificate"))
    _add_scenario(command)
    command.add_argument("--solver", metavar="NAME", type=_solver, help="default: the scenario's, else auto")
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
        "--solvers", metavar="A,B,...", type=_solvers, default=all_names(), help="default: all of them"
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
    _add_search(explain)
    diff.set_defaults(time_limit=None, workers=None, seed=None, quiet=True)


def _add_simulate(commands: Any) -> None:  # noqa: ANN401
    summary, files = "run a plan step by step on the timeline and draw it", ("scenario", "plan", "schedule_file")
    written = ("out", "trace", "svg", "png")
    command = _command(commands, "simulate", summary, _solver_list(), reads=files, writes=written)
    _add_scenario(command)
    command.add_argument("--plan", metavar="FILE", help="run this plan (JSON) instead of searching for the best")
    add_order(command)
    command.add_argument("--solver", metavar="NAME", type=_solver, help="default: the scenario's, else auto")
    _add_search(command)
    command.add_argument(
        "--no-cross-check", dest="cross_check", action="store_false", help="skip the second proof, as in plan"
    )
    add_outputs(command)
    command.add_argument("--compare", action="store_true", help="run the other solvers too, for page and JSON")


def _add_executions(commands: Any) -> None:  # noqa: ANN401
    for name, (summary, writes, add) in EXECUTIONS.items():
        command = _command(commands, name, summary, reads=("scenario", "plan", "schedule_file"), writes=writes)
        command.add_argument(
            "plan", metavar="PLAN", help="a plan file (JSON), for example from pipecut plan --out"
        )
        _add_scenario(command)
        add(command)


def _add_trace(commands: Any) -> None:  # noqa: ANN401
    summary = "write the layer graph of a model, which a scenario can then name"
    command = _command(commands, "trace", summary, reads=("model",), writes=("out",))
    command.add_argument(
        "model", metavar="MODULE:FUNCTION", help="a Python function, or a PipeDream profile (*.txt)"
    )
    command.add_argument("--samples", metavar="N", type=_whole(1, 2**31), help="minibatch of the profile")
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
    rows = listed("studies", [(entry.name, entry.summary) for entry in STUDIES])
    summary = "set published numbers beside what pipecut computes"
    command = _command(commands, "study", summary, f"{rows}\n\n", reads=("data", "plans"), writes=("out",))
    command.add_argument("study", metavar="NAME", type=_study, help="one of the studies below")
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
