"""Options of ``pipecut run``, ``pipecut validate`` and ``pipecut export``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from commands.parser.run_arguments import add_order, whole

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
