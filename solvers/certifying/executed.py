"""Make certificates of executed times: the largest bound that a proof of reasonable size gives.

A period is asked for in whole nanoseconds, so is a step. Where too many suffixes of plans would have to be gone
through up to the plan itself, the bound is one nearer to what weighed paths alone prove.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from formulation.certificates.check import Certificate, certifiable, fingerprint
from formulation.certificates.executed.paths import WeighedPaths
from formulation.certificates.executed.period import keeps_to_period
from formulation.certificates.executed.step import StepProof
from formulation.limits.deadline import NEVER, Deadline
from formulation.limits.size import TooLargeError
from formulation.problem.constraints import Goal
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from solvers.certifying.weighing import weighed_paths

NEARLY = 200
"""The bound of paths alone is told to one part of the objective in so many where the plan itself is not proved."""
PARTS = 4
"""Between it and the objective so many parts are tried, the largest bound first."""


def certify_executed(
    instance: Instance, plan: Plan, objective: int, deadline: Deadline = NEVER, *, whole: bool = False
) -> Certificate:
    """Return the certificate with about the largest bound that a proof gives for a plan of this objective.

    ``whole``: it is of use only if that is the objective, and nothing less is looked for.

    Raises ValueError, with the reason, where no proof is written for the instance, or none is small enough, and
    StoppedError after the deadline. Cost: one proof, about 10 where the plan is not proved.
    """
    reason = certifiable(instance)
    if reason is not None:
        raise ValueError(reason)
    paths: tuple[WeighedPaths, ...] = ()
    if instance.goals[0] is Goal.PERIOD:
        keeps = quick = partial(keeps_to_period, instance, deadline=deadline)
    else:
        paths = weighed_paths(instance, objective, deadline)
        proof = StepProof(instance, paths, deadline)
        keeps, quick = proof.keeps, proof.may_keep
    bound = objective if _ruled_out(keeps, objective - 1) else 0
    if not bound and not whole:
        bound = _largest(keeps, _nearest(quick, objective), objective)
    return Certificate(fingerprint(instance), plan, objective, bound, {}, paths)


def _nearest(quick: Callable[[int], bool], objective: int) -> int:
    """Return about the largest bound below the objective by what is asked in less time."""
    low, high = 0, objective
    while high - low > max(1, objective // NEARLY):
        middle = (low + high) // 2
        low, high = (middle, high) if _ruled_out(quick, middle - 1) else (low, middle)
    return low


def _largest(keeps: Callable[[int], bool], low: int, objective: int) -> int:
    """Return the largest of a few bounds from that one on that is proved."""
    for part in range(PARTS - 1, 0, -1):
        middle = low + (objective - low) * part // PARTS
        if middle > low and _ruled_out(keeps, middle - 1):
            return middle
    return low


def _ruled_out(keeps: Callable[[int], bool], most_ns: int) -> bool:
    """Tell whether nothing keeps to a limit, by a proof that is small enough."""
    try:
        return not keeps(most_ns)
    except TooLargeError:
        return False
