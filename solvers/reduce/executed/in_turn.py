"""Two searches of an executed step in turn: stages by how many devices they have, then by their places.

Counts rule most numbers of micro-batches out, and come close soon (``solvers.reduce.by_count``). What they leave
is little for the search by places, which ends with a proof (``solvers.reduce.executed.steps``). Both use the same
stages: what one has settled is settled for the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.reduce.by_count import ByCount
from pipecut.solvers.reduce.executed.steps import ByStep
from pipecut.solvers.reduce.stages import ReducedStages


@dataclass(slots=True)
class InTurn:
    """The search of one number of micro-batches; what it has is what the one has that is on."""

    instance: Instance
    stages: ReducedStages
    now: ByCount | ByStep

    @property
    def upper(self) -> int:
        """Return a value that plans have to be below to be of use."""
        return self.now.upper

    @upper.setter
    def upper(self, value: int) -> None:
        self.now.upper = value

    @property
    def bound(self) -> int:
        """Return what no plan undercuts."""
        return self.now.bound

    @property
    def plan(self) -> Plan | None:
        """Return the best plan so far."""
        return self.now.plan

    @property
    def best(self) -> int:
        """Return what the best plan so far takes."""
        return self.now.best

    @property
    def asked(self) -> int:
        """Return how many questions were asked."""
        return self.now.asked

    def first_plans(self) -> None:
        """Price first plans."""
        if isinstance(self.now, ByCount):
            self.now.first_plans()

    def begin(self) -> None:
        """Ask about all plans."""
        self.now.begin()

    def step(self) -> bool:
        """Go on; tell whether anything is left to do."""
        before = self.now
        if before.step():
            return True
        if isinstance(before, ByStep) or before.bound >= before.most:
            return False
        self.now = ByStep(
            self.instance, self.stages, before.upper, before.bound, before.plan, before.best, before.asked
        )
        self.now.begin()
        return True
