"""What can be written behind a command: every argument with its help, and what the words behind it mean.

Imports nothing heavy, so that ``--help`` and mistakes answer at once. The commands themselves are in
``commands.parser.options``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipecut.commands.parser.grammar import did_you_mean
from pipecut.solvers.catalogue import AUTO, all_names
from pipecut.solvers.installed import PLANNERS, missing

LARGEST_SEED = 2**31 - 1
MOST_WORKERS = 1024
PLAN = "a plan file (JSON), for example from pipecut plan --out"


def add_explained(command: argparse.ArgumentParser) -> None:
    """Add the plan that is explained; without it the best plan is searched for first."""
    command.add_argument("plan", metavar="PLAN", nargs="?", help=f"{PLAN}; without one the best plan is explained")
    command.set_defaults(take_late=_take_late)


def _take_late(arguments: argparse.Namespace, word: str) -> bool:
    """Take a scenario behind an option, where argparse took the plan for it; tell whether it is one."""
    if word.startswith("-") or arguments.plan is not None:
        return False
    arguments.plan, arguments.scenario = arguments.scenario, word
    return True


def add_compared(command: argparse.ArgumentParser) -> None:
    """Add the two plans that are compared."""
    command.add_argument("plan", metavar="PLAN", help=PLAN)
    command.add_argument("other", metavar="PLAN", help="another plan file of the same scenario")


GIVEN_ORDERS = ("interleaved", "zero_bubble_h1", "best")
"""Orders of actions that a plan can be run in, though no solver prices them; the last one is searched for."""
MOST_CHUNKS = 10_000
MOST_SHOWN = 100_000


def whole(text: str, least: int, most: int) -> int:
    """Return a whole number within limits. Raises ArgumentTypeError for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, got {text!r}")
    return int(text)


def planned_schedules() -> tuple[str, ...]:
    """Return the schedules that a training can name. Imports only when it is asked."""
    from pipecut.formulation.problem.training import Schedule

    return tuple(Schedule)


class _Schedule(argparse.Action):
    """``--schedule``: an override for a schedule that the planner prices, else the name of the order to run."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        name = str(values)
        if name in GIVEN_ORDERS:
            namespace.order = name
        elif name in planned_schedules():
            namespace.overrides = [*namespace.overrides, f"training.schedule={name}"]
            namespace.order = None
        else:
            listed = ", ".join(dict.fromkeys((*planned_schedules(), *GIVEN_ORDERS)))
            parser.error(f"argument --schedule: no schedule {name!r}; expected one of {listed}")


def add_order(command: argparse.ArgumentParser) -> None:
    """Add the options that choose an order of actions; ``--set`` must be there already."""
    command.add_argument(
        "--schedule",
        metavar="NAME",
        dest="order",
        action=_Schedule,
        help="short for --set training.schedule=NAME; or run a plan as interleaved, zero_bubble_h1, or best",
    )
    command.add_argument(
        "--chunks",
        metavar="V",
        type=lambda text: whole(text, 1, MOST_CHUNKS),
        help="of interleaved: stages of the plan that each rank holds",
    )
    command.add_argument("--schedule-file", metavar="FILE", help="run the plan in the order of a CSV file")


def add_outputs(command: argparse.ArgumentParser) -> None:
    """Add the options that name what is written."""
    command.add_argument("--out", metavar="FILE", help="write a page (HTML) that needs nothing else")
    command.add_argument("--trace", metavar="FILE", help="write a trace (JSON) for Perfetto or chrome://tracing")
    command.add_argument("--svg", metavar="FOLDER", help="write each picture as a file of its own")
    command.add_argument("--png", metavar="FOLDER", help="the same as PNG; needs pip install 'pipecut[png]'")
    command.add_argument(
        "--micro-batches-shown",
        metavar="N",
        type=lambda text: whole(text, 2, MOST_SHOWN),
        help="draw the first and last N / 2 of a long run (default: what stays readable)",
    )


MOST_STEPS = 10**9
MOST_SECONDS = 10**6
TARGETS = ("torchtitan", "megatron", "deepspeed", "script")
"""What a plan can be written for (``exchange.exports.TARGETS``)."""


def _add_validate(command: argparse.ArgumentParser) -> None:
    _add_common(command)
    command.add_argument(
        "--steps",
        metavar="N",
        type=lambda text: whole(text, 0, MOST_STEPS),
        default=5,
        help="steps to measure after that (default: 5; 0: none)",
    )


def _add_common(command: argparse.ArgumentParser) -> None:
    add_order(command)
    command.add_argument(
        "--seed",
        dest="run_seed",
        metavar="N",
        type=lambda text: whole(text, 0, 2**31 - 1),
        default=0,
        help="seed of weights, data and dropout (default: 0)",
    )
    command.add_argument(
        "--loss",
        metavar="MODULE:FUNCTION",
        help="from outputs and inputs of samples to their mean loss (default: mean square of the outputs)",
    )
    command.add_argument(
        "--backend",
        choices=("pipecut", "torch"),
        default="pipecut",
        help="what runs the stages: this program (default), or torch's own pipelining, which runs fewer plans",
    )
    command.add_argument(
        "--wait",
        metavar="SECONDS",
        type=lambda text: whole(text, 1, MOST_SECONDS),
        default=300,
        help="how long a process waits for another before all end (default: 300)",
    )
    command.add_argument("--quiet", action="store_true", help="no progress line on stderr")
    command.set_defaults(time_limit=None, workers=None, seed=None)


def _add_run(command: argparse.ArgumentParser) -> None:
    _add_common(command)
    command.add_argument(
        "--steps", metavar="N", type=lambda text: whole(text, 1, MOST_STEPS), default=10, help="default: 10"
    )
    command.add_argument(
        "--learning-rate", metavar="X", type=_rate, help="of the optimiser (default: 0.01; that of the snapshot)"
    )
    command.add_argument(
        "--optimizer", choices=("sgd", "adam"), default="sgd", help="plain gradient descent (default), or Adam"
    )
    command.add_argument("--snapshot", metavar="FOLDER", help="write snapshots of the run into this folder")
    command.add_argument(
        "--save-every",
        metavar="N",
        type=lambda text: whole(text, 1, MOST_STEPS),
        default=10,
        help="steps from one snapshot to the next (default: 10)",
    )
    command.add_argument(
        "--resume", metavar="FOLDER", help="go on from the latest snapshot there, of this plan or another one"
    )
    command.add_argument("--trace", metavar="FILE", help="write a trace (JSON) of the last step, for Perfetto")


def _add_export(command: argparse.ArgumentParser) -> None:
    listed = ", ".join(TARGETS)
    command.add_argument("--to", metavar="TARGET", choices=TARGETS, required=True, help=f"one of {listed}")
    command.add_argument("--out", metavar="FILE", help="the file to write (default: stdout)")
    command.set_defaults(time_limit=None, workers=None, seed=None, quiet=False)


def _add_profile(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", metavar="FILE", required=True, help="the profile to write (JSON)")
    command.add_argument(
        "--samples",
        metavar="N,...",
        type=_sizes,
        default=(),
        help="sizes of micro-batches, beside that of the scenario",
    )
    command.add_argument("--device-class", metavar="NAME", help="the device class that this machine stands for")
    command.add_argument(
        "--segments",
        metavar="N",
        type=lambda text: whole(text, 1, 1000),
        default=2,
        help="run the model in so many parts, about as many as there will be stages (default: 2)",
    )
    command.add_argument(
        "--rounds", metavar="N", type=lambda text: whole(text, 2, 10_000), default=10, help="default: 10"
    )
    command.add_argument(
        "--at-once",
        metavar="N",
        type=lambda text: whole(text, 1, 1000),
        default=1,
        help="measure with so many processes at once, as stages run on devices that share a memory (default: 1)",
    )
    command.add_argument(
        "--most-spread",
        metavar="X",
        type=_share,
        default=0.15,
        help="refuse times whose middle half spreads over more than this share (default: 0.15)",
    )
    command.add_argument("--quiet", action="store_true", help="no progress line on stderr")
    command.set_defaults(time_limit=None, workers=None, seed=None)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(whole(part.strip(), 1, 2**31) for part in text.split(","))


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 100:
        raise argparse.ArgumentTypeError(f"expected a share above 0, got {text!r}")
    return share


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1e6:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1000000, got {text!r}")
    return rate


EXECUTIONS: Mapping[str, tuple[str, tuple[str, ...], Callable[[argparse.ArgumentParser], None]]] = {
    "run": ("train a model for some steps as a plan says, with a process for every device", ("trace",), _add_run),
    "validate": (
        "compare a plan's gradients with the unsplit model's, and its times and memory with the predicted ones",
        (),
        _add_validate,
    ),
    "profile": (
        "measure the layers of a scenario's model, and a link, on this machine",
        ("out",),
        _add_profile,
    ),
    "export": (
        "write a plan as torchtitan or Megatron-LM take it, or as a program for torchrun",
        ("out",),
        _add_export,
    ),
}
"""Commands that carry a plan out: what they do, which arguments are files that they write, and their options."""


def seconds(text: str) -> float:
    """Return a time limit in seconds: ``60``, ``60 s``, ``2 min``. Raises ArgumentTypeError for anything else."""
    from pipecut.formulation.problem.units import NS_PER_SECOND
    from pipecut.ingest.text.quantities import duration

    bare = re.fullmatch(r"[0-9]+(\.[0-9]+)?", text.strip(), re.ASCII)
    try:
        time_ns = duration(f"{text.strip()} s" if bare else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a time like '60 s' or '2 min', got {text!r}") from error
    if time_ns == 0:
        raise argparse.ArgumentTypeError("expected a time above 0")
    return time_ns / NS_PER_SECOND


def whole_from(least: int, most: int) -> Any:  # noqa: ANN401 (argparse takes any callable)
    """Return what reads a whole number within limits."""
    return lambda text: whole(text, least, most)


def solver(text: str) -> str:
    """Return the name of a solver. Raises ArgumentTypeError for a name that none has."""
    known = (AUTO.name, *all_names())
    if text not in known:
        expected = f"expected one of {', '.join(known)}{missing(PLANNERS, 'planners')}{did_you_mean(text, known)}"
        raise argparse.ArgumentTypeError(f"no solver {text!r}; {expected}")
    return text


def solvers(text: str) -> tuple[str, ...]:
    """Return names of solvers, each once. Raises ArgumentTypeError for a name that none has."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    return tuple(solver(name) for name in names)


KINDS = ("memory", "servers", "links", "micro_batches", "devices")
"""What can be varied (``solvers.whatif.variants.ChangeKind``)."""


def add_sensitivity(command: argparse.ArgumentParser) -> None:
    """Add which changes are asked about."""
    command.add_argument(
        "--only",
        metavar="A,B,...",
        type=_kinds,
        help=f"vary these alone, of {', '.join(KINDS)}",
    )
    command.add_argument(
        "--devices",
        metavar="A,B,...",
        type=_names,
        help="devices of the library to put in place of the cluster's (default: all; see pipecut devices)",
    )


MOST_PROCESSES = 1024


def add_sweep(command: argparse.ArgumentParser) -> None:
    """Add who plans the points, and what is written."""
    command.add_argument(
        "--processes",
        metavar="N",
        type=lambda text: whole(text, 1, MOST_PROCESSES),
        help="processes of this machine (default: one for each core)",
    )
    command.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="plan on a dask scheduler's machines; pip install 'pipecut[dask]'",
    )
    command.add_argument(
        "--results",
        metavar="FILE",
        help="results to go on from, a JSON line each (default: SWEEP.results.jsonl)",
    )
    command.add_argument("--svg", metavar="FILE", help="draw price against throughput")
    command.add_argument("--csv", metavar="FILE", help="also write the table of all points")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _kinds(text: str) -> tuple[str, ...]:
    found = _names(text)
    wrong = next((name for name in found if name not in KINDS), None)
    if wrong is not None or not found:
        hint = did_you_mean(wrong or "", KINDS)
        raise argparse.ArgumentTypeError(f"there is no '{wrong or ''}' to vary, only {', '.join(KINDS)}{hint}")
    return found


def add_scenario(command: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the scenario, and what is said of it."""
    words = "a scenario file (YAML), or a name that pipecut scenarios lists"
    command.add_argument("scenario", metavar="SCENARIO", nargs="?" if optional else None, help=words)
    add_set(command)
    add_strict(command)
    add_json(command)


def add_set(command: argparse.ArgumentParser) -> None:
    """Add values of the scenario that are overridden."""
    command.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a value of the scenario, for example training.global_batch=128 (may be repeated)",
    )


def add_strict(command: argparse.ArgumentParser) -> None:
    """Add that operators without a formula are refused."""
    words = "refuse operators without a formula, which else count as the bytes that they read and write"
    command.add_argument("--strict", action="store_true", help=words)


def add_json(command: argparse.ArgumentParser) -> None:
    """Add that the reply is JSON."""
    command.add_argument("--json", action="store_true", help="write one JSON object to stdout, nothing else")


def add_no_cross_check(command: argparse.ArgumentParser, words: str = "skip the second proof, as in plan") -> None:
    """Add that proofs are not compared with others."""
    command.add_argument("--no-cross-check", dest="cross_check", action="store_false", help=words)


def add_search(
    command: argparse.ArgumentParser,
    words: str = "time for the command; in compare for each solver, in sweep for each point: '60 s', '2 min', 60",
) -> None:
    """Add the limits of a search."""
    command.add_argument("--time-limit", metavar="TIME", type=seconds, help=words)
    command.add_argument(
        "--workers", metavar="N", type=whole_from(1, MOST_WORKERS), help="parallel search workers"
    )
    command.add_argument("--seed", metavar="N", type=whole_from(0, LARGEST_SEED), help="seed of the search")
    command.add_argument("--quiet", action="store_true", help="no progress line on stderr")
