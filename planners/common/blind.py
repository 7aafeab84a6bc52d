"""What a published planner makes of an instance: it takes everything, proves nothing and sees few rules."""

from __future__ import annotations

from solvers.blind import unseen
from solvers.search.support import Accepts, Support


def blind_to(*rules: str) -> Accepts:
    """Return the answer of a method that takes everything, proves nothing and does not see these rules.

    Rules are named as in :func:`solvers.blind.unseen`.
    """
    return lambda instance: Support(unseen=unseen(instance, *rules))
