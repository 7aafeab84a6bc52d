"""Options of ``pipecut run``, ``pipecut validate`` and ``pipecut export``."""

from __future__ import annotations

import argparse

from commands.parser.run_arguments import add_order, whole

MOST_STEPS = 10**9
TARGETS = ("torchtitan", "megatron", "script")
"""What a plan can be written for (``exchange.exports.TARGETS``)."""


def add_execution(command: argparse.ArgumentParser) -> None:
    """Add what both commands take; ``--set`` must be there already."""
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


def add_steps(command: argparse.ArgumentParser) -> None:
    """Add what only a training takes."""
    command.add_argument(
        "--steps", metavar="N", type=lambda text: whole(text, 1, MOST_STEPS), default=10, help="default: 10"
    )
    command.add_argument(
        "--learning-rate", metavar="X", type=_rate, default=0.01, help="of plain gradient descent (default: 0.01)"
    )


def add_target(command: argparse.ArgumentParser) -> None:
    """Add what says for whom a plan is written, and where."""
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
