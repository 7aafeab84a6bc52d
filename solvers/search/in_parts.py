"""A search in parts, each of some of the plans: the least bound of all parts is one of all plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from formulation.outcome import Progress
from solvers.search.incumbent import Incumbent


def search_in_parts(known: Incumbent, searches: Iterable[Callable[[Incumbent], None]]) -> None:
    """Run searches, each of which knows the best plan so far and a bound of its own; raises what they raise.

    A single search works on what is known itself.
    """
    parts = list(searches)
    if len(parts) == 1:
        return parts[0](known)
    begun = known.lower
    bounds = [begun] * len(parts)
    for at, run in enumerate(parts):
        own = replace(known, lower=begun, limits=replace(known.limits, start=None, progress=_nobody))
        try:
            run(own)
        finally:
            bounds[at], known.asked = own.lower, own.asked
            if own.upper < known.upper:
                known.plan, known.upper = own.plan, own.upper
            known.lower = max(known.lower, min(*bounds, known.upper))
            known.tell()
    return None


def _nobody(_: Progress) -> None:
    """Report nothing: what a part knows of its plans does not hold for all of them."""
