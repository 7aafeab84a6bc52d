"""Options of ``pipecut sensitivity`` and ``pipecut sweep``."""

from __future__ import annotations

import argparse

from commands.parser.run_arguments import whole
from commands.parser.suggestions import did_you_mean

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
    command.add_argument(
        "--no-cross-check", dest="cross_check", action="store_false", help="skip the second proofs, as in plan"
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
    command.add_argument(
        "--no-cross-check", dest="cross_check", action="store_false", help="skip the second proofs, as in plan"
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _kinds(text: str) -> tuple[str, ...]:
    found = _names(text)
    wrong = next((name for name in found if name not in KINDS), None)
    if wrong is not None or not found:
        hint = did_you_mean(wrong or "", KINDS)
        raise argparse.ArgumentTypeError(f"there is no '{wrong or ''}' to vary, only {', '.join(KINDS)}{hint}")
    return found
