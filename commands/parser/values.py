"""What the words behind options mean: times, whole numbers, names of solvers and studies."""

from __future__ import annotations

import argparse
import re
from typing import Any

from commands.parser.run_arguments import whole
from commands.parser.suggestions import did_you_mean
from planners.catalogue import all_names
from planners.studies.catalogue import STUDIES
from solvers.catalogue import AUTO


def seconds(text: str) -> float:
    """Return a time limit in seconds: ``60``, ``60 s``, ``2 min``. Raises ArgumentTypeError for anything else."""
    from formulation.problem.units import NS_PER_SECOND
    from ingest.text.quantities import duration

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
        expected = f"expected one of {', '.join(known)}{did_you_mean(text, known)}"
        raise argparse.ArgumentTypeError(f"no solver {text!r}; {expected}")
    return text


def study(text: str) -> str:
    """Return the name of a study. Raises ArgumentTypeError for a name that none has."""
    if text not in STUDIES:
        expected = f"expected one of {', '.join(STUDIES)}{did_you_mean(text, STUDIES)}"
        raise argparse.ArgumentTypeError(f"no study {text!r}; {expected}")
    return text


def solvers(text: str) -> tuple[str, ...]:
    """Return names of solvers, each once. Raises ArgumentTypeError for a name that none has."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    return tuple(solver(name) for name in names)
