"""What stands when a search does not come back: the best plan that it told of, priced anew.

A search looks at its deadline wherever it can take long. Where it does not come to that, inside a library or in
steps of unforeseen length, whoever waits for it leaves it, and says what it had told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Outcome, Progress, Proof, checked
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.catalogue import AUTO
from pipecut.solvers.choices.trainings import instances_of, least_of, simplest, without_grids
from pipecut.solvers.goals import there_is
from pipecut.solvers.reduce.best_grid import GridFound, GridTold, times_in_a_step

LEFT = "stopped early: the search was left, as it did not end when the time did"
SIMPLE_S = 0.2
# How long a simple plan, and bounds for everything that was asked, are looked for at the end.
BOUND_S = 0.5


@dataclass(slots=True)
class Standing:
    """The best plan of ``instance``, or of a choice that it leaves open, that was told.

    ``best`` is what a whole step takes by the first goal, what the plan is a plan of, and the plan. ``bound`` is
    the largest for a whole step that was told of everything that was asked; a method may have looked at a part of
    all plans. Without one the claim has what needs no search. ``alone``: nothing is added to what was told, as it
    is the word of one solver.
    """

    instance: Instance
    alone: bool = False
    best: tuple[int, Instance, Plan] | None = None
    grid: GridFound | None = None
    bound: int | None = None

    def hear(self, progress: Progress) -> None:
        """Keep what is better than what stands; what is about no instance is about the whole. From any thread."""
        about = progress.instance or self.instance
        if isinstance(progress, GridTold):
            self.grid = progress.grid
        if progress.whole and progress.bound is not None:
            self.bound = max(self.bound or 0, progress.bound * times_in_a_step(about))
            if not about.training.dealt:  # there was no time for grids: the bound is not about them
                self.instance = without_grids(self.instance)
        if progress.objective is None or progress.plan is None:
            return
        value = progress.objective * times_in_a_step(about)
        if self.best is None or value < self.best[0]:
            self.best = (value, about, progress.plan)

    def no_worse(self, solver: str, about: Instance, outcome: Outcome) -> tuple[Instance, Outcome]:
        """Return what a search came to, or what it had told if that is better: parts that are stopped may lose it.

        A solver that was asked for by name has the plan that it came to. Raises FalseClaimError where there is
        said to be no plan.
        """
        if self.best is None or self.best[2] == outcome.plan or solver != AUTO.name:
            return about, outcome
        value, of, plan = self.best
        if not evaluate(of, plan).feasible:
            return about, outcome
        return GridFound(value // times_in_a_step(of), plan, self._asked(of)).no_worse(about, outcome)

    def outcome(self, solver: str, seconds: float) -> tuple[Instance, Outcome]:
        """Return what the best plan is a plan of, and the claim about it; without one a simple plan is tried.

        Cost: an evaluation, and SIMPLE_S and BOUND_S.
        """
        about, plan = self._plan()
        about = self._asked(about)
        bound = self._bound(about)
        found = None if plan is None else evaluate(about, plan)
        if plan is None or found is None or found.objective is None:
            return about, Outcome(solver, Proof.UNKNOWN, None, None, bound, seconds, (LEFT,), goals=about.goals)
        return about, checked(about, there_is(about, plan, solver, LEFT, bound, seconds), NEVER.within(0))

    def _asked(self, about: Instance) -> Instance:
        """Return a choice as it was asked about: of one by the number of stages with any of these."""
        if about.constraints is not self.instance.constraints:
            about = replace(about, constraints=self.instance.constraints)
        return about if self.instance.training.dealt else without_grids(about)

    def _plan(self) -> tuple[Instance, Plan | None]:
        """Return a plan that keeps every rule, and of which instance; no plan where there is none at hand."""
        if self.best is not None and evaluate(self.best[1], self.best[2]).feasible:
            return self.best[1:]
        found = None if self.alone else simplest(self.instance, NEVER.within(SIMPLE_S))
        return found or (next(instances_of(self.instance)), None)

    def _bound(self, about: Instance) -> int | None:
        """Return what no plan of any choice and order undercuts; None where there is no time."""
        if self.alone or self.bound is not None:
            return self.bound and self.bound // times_in_a_step(about)
        # Less is known of grids than of other plans, and of each number of stages a group as much.
        grids = [one for one in self.instance.training.choices_of_grids if one.chunks == one.dealt[0]]
        asked = (self.instance.trained(one) for one in grids or self.instance.training.choices)
        return least_of(asked, about, NEVER.within(BOUND_S))
