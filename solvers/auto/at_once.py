"""What is told in the first second, and that nothing told falls back: a bound and a plan that need no table."""

from __future__ import annotations

from dataclasses import dataclass, replace

from formulation.costs.lower_bound import lower_bound
from formulation.outcome import Limits, Progress
from formulation.problem.instance import Instance
from solvers.search.simple import simple_plan

__all__: list[str] = []

LARGE = 60_000
"""From how many layers times devices on tables take longer than a simple plan."""


def told_at_once(instance: Instance, limits: Limits) -> Limits:
    """Tell a bound, and of a large instance a simple plan; return the limits for all who search from now on.

    Whoever they are, they begin with that plan, and the best plan and the best bound so far are told.
    """
    best = _Best(limits)
    best.tell(Progress(None, lower_bound(instance)))
    large = len(instance.layers) * instance.devices >= LARGE
    if large and limits.start is None and limits.below is None and not limits.deadline.over():
        found = simple_plan(instance)
        if found is not None:
            best.tell(Progress(found[0], None))
            limits = replace(limits, start=found[1])
    return replace(limits, progress=best.tell)


@dataclass(slots=True)
class _Best:
    """The least objective and the largest bound that anybody told."""

    limits: Limits
    objective: int | None = None
    bound: int | None = None

    def tell(self, progress: Progress) -> None:
        """Take what is better than what was told, and tell both."""
        self.objective = min(
            (one for one in (self.objective, progress.objective) if one is not None), default=None
        )
        self.bound = max((one for one in (self.bound, progress.bound) if one is not None), default=None)
        self.limits.progress(Progress(self.objective, self.bound))
