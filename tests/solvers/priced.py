"""Which drawn instances a law may hold against the price of every plan."""

from __future__ import annotations

from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import exhaustive

FEW = 500


def few_plans(instance: Instance) -> bool:
    """Return whether an instance has plans few enough to be priced one by one, at a millisecond or more each.

    Of what is drawn some instances have thousands, and would take more time than all others together.
    """
    try:
        return exhaustive.count_plans(instance, FEW) <= FEW
    except ValueError:
        return False
