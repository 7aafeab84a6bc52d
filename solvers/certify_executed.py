"""Make certificates of executed times: the largest bound that a proof of reasonable size gives.

A period is asked for in whole nanoseconds, so is a step. Where too many suffixes of plans would have to be gone
through up to the plan itself, the bound is one nearer to what weighed paths alone prove.
"""

from __future__ import annotations

from collections.abc import Callable

from formulation.certificates.check import Certificate, certifiable, fingerprint
from formulation.certificates.executed.paths import WeighedPaths
from formulation.certificates.executed.period import keeps_to_period
from formulation.certificates.executed.step import keeps_to_step
from formulation.limits.deadline import NEVER, Deadline
from formulation.limits.size import TooLargeError
from formulation.problem.instance import Instance
from formulation.problem.options import Goal
from formulation.problem.plan import Plan
from solvers.weighed_paths import weighed_paths

__all__: list[str] = []

NEARLY = 1000
"""The bound is told to one part of the objective in so many where the plan itself is not proved."""


def certify_executed(instance: Instance, plan: Plan, objective: int, deadline: Deadline = NEVER) -> Certificate:
    """Return the certificate with about the largest bound that a proof gives for a plan of this objective.

    Raises ValueError, with the reason, where no proof is written for the instance, or none is small enough, and
    StoppedError after the deadline. Cost: one proof, about 10 where the plan is not proved.
    """
    reason = certifiable(instance)
    if reason is not None:
        raise ValueError(reason)
    paths: tuple[WeighedPaths, ...] = ()
    if instance.goals[0] is Goal.STEP_TIME:
        paths = weighed_paths(instance, objective, deadline)

    def ruled_out(most_ns: int) -> bool:
        if instance.goals[0] is Goal.PERIOD:
            return not keeps_to_period(instance, most_ns, deadline)
        return not keeps_to_step(instance, most_ns, paths, deadline)

    bound = _largest(ruled_out, objective)
    return Certificate(fingerprint(instance), plan, objective, bound, {}, paths)


def _largest(ruled_out: Callable[[int], bool], objective: int) -> int:
    """Return the objective if nothing is below it, else about the largest bound that is proved."""
    if _answered(ruled_out, objective - 1):
        return objective
    low, high = 0, objective
    while high - low > max(1, objective // NEARLY):
        middle = (low + high) // 2
        low, high = (middle, high) if _answered(ruled_out, middle - 1) else (low, middle)
    return low


def _answered(ruled_out: Callable[[int], bool], most_ns: int) -> bool:
    """Tell whether nothing keeps to a limit, by a proof that is small enough."""
    try:
        return ruled_out(most_ns)
    except TooLargeError:
        return False
