"""Options of ``pipecut simulate``: which order of actions is run, and what is written of it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

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
    from formulation.problem.training import Schedule

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
