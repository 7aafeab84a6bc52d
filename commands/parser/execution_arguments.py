"""Options of ``pipecut run``, ``pipecut validate`` and ``pipecut export``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from commands.parser.run_arguments import add_order, whole

__all__: list[str] = []

MOST_STEPS = 10**9
TARGETS = ("torchtitan", "megatron", "script")
"""What a plan can be written for (``exchange.exports.TARGETS``)."""


def _add_validate(command: argparse.ArgumentParser) -> None:
    add_order(command)
    command.add_argument(
        "--seed",
        dest="run_seed",
        metavar="N",
        type=lambda text: whole(text, 0, 2**31 - 1),
        default=0,
        help="seed of weights, data and dropout (default: 0)",
    )
    command.add_argument("--quiet", action="store_true", help="no progress line on stderr")
    command.set_defaults(time_limit=None, workers=None, seed=None)


def _add_run(command: argparse.ArgumentParser) -> None:
    _add_validate(command)
    command.add_argument(
        "--steps", metavar="N", type=lambda text: whole(text, 1, MOST_STEPS), default=10, help="default: 10"
    )
    command.add_argument(
        "--learning-rate", metavar="X", type=_rate, default=0.01, help="of plain gradient descent (default: 0.01)"
    )
    command.add_argument("--trace", metavar="FILE", help="write a trace (JSON) of the last step, for Perfetto")


def _add_export(command: argparse.ArgumentParser) -> None:
    listed = ", ".join(TARGETS)
    command.add_argument("--to", metavar="TARGET", choices=TARGETS, required=True, help=f"one of {listed}")
    command.add_argument("--out", metavar="FILE", help="the file to write (default: stdout)")
    command.set_defaults(time_limit=None, workers=None, seed=None, quiet=False)


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
        "run one step of a plan in float64 and compare its gradients with the unsplit model's",
        (),
        _add_validate,
    ),
    "export": (
        "write a plan as torchtitan or Megatron-LM take it, or as a program for torchrun",
        ("out",),
        _add_export,
    ),
}
"""Commands that carry a plan out: what they do, which arguments are files that they write, and their options."""
