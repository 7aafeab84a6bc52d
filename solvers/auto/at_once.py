"""What is told in the first second, and that nothing told falls back: a bound and a plan that need no table.

Only of a large instance the search begins with that plan; elsewhere it is what is left if the search is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from formulation.costs.lower_bound import lower_bound
from formulation.outcome import Limits, Progress
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from solvers.search.simple import simple_plan

LARGE = 60_000
"""From how many layers times devices on tables take longer than a simple plan."""
SMALL_S = 0.2
"""How long the first simple plan of any other instance is looked for: it is there in a few tries."""


def told_at_once(instance: Instance, limits: Limits) -> Limits:
    """Tell a bound and a simple plan; return the limits for all who search from now on.

    Whoever they are, they begin with that plan where the instance is large, and the best plan and bound so far are
    told.
    """
    best = _Best(instance, limits)
    best.tell(Progress(None, lower_bound(instance)))
    large = len(instance.layers) * instance.devices >= LARGE
    if limits.start is None and limits.below is None and not limits.deadline.over():
        found = simple_plan(instance) if large else simple_plan(instance, 0.0, SMALL_S)
        if found is not None:
            best.tell(Progress(found[0], None, found[1]))
            limits = replace(limits, start=found[1]) if large else limits
    return replace(limits, progress=best.tell)


@dataclass(slots=True)
class _Best:
    """The least objective, its plan, and the largest bound that anybody told."""

    instance: Instance
    limits: Limits
    objective: int | None = None
    bound: int | None = None
    plan: Plan | None = None

    def tell(self, progress: Progress) -> None:
        """Take what is better than what was told, and tell both."""
        better = self.objective is None or (progress.objective or 0) < self.objective
        if progress.objective is not None and better:
            self.objective, self.plan = progress.objective, progress.plan
        self.bound = max((one for one in (self.bound, progress.bound) if one is not None), default=None)
        self.limits.progress(Progress(self.objective, self.bound, self.plan, self.instance))
