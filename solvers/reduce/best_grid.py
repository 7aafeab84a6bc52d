"""The best plain grid of an instance, over all micro-batches that its training leaves open: told before a search.

Grids are priced on the short model of a word, all numbers of micro-batches together (``solvers.search.grids``).
They come in the order of what they promise, so the first ones are priced by the evaluator until one takes no
longer than the next one promises: no grid is better then.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pipecut.formulation.costs.amounts import gap, goal_text, plural
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import StoppedError, TooLargeError
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof, checked
from pipecut.formulation.problem.constraints import Goal, Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Training
from pipecut.formulation.uses import has_grids
from pipecut.solvers.reduce.word import Word
from pipecut.solvers.search.grids import Grids
from pipecut.solvers.search.pieces import ShortModel
from pipecut.solvers.search.support import capped

# They may take two parts in so many of the time, and so long at most; so many are priced at most.
PART, MOST_S, TRIED = 4, 15.0, 12


@dataclass(frozen=True, slots=True)
class GridFound:
    """A plan that a search begins with, or had told, mostly a plain grid: its value, and what it is a plan of."""

    objective: int
    plan: Plan
    instance: Instance

    @property
    def step(self) -> int:
        """Return the first goal for a whole step."""
        return self.objective * times_in_a_step(self.instance)

    @property
    def told(self) -> GridTold:
        """Return what is told of it."""
        return GridTold(self.objective, None, self.plan, self.instance, grid=self)

    def no_worse(self, about: Instance, outcome: Outcome) -> tuple[Instance, Outcome]:
        """Return what was found, and of what; the grid in its place if that is better than what a search came to.

        Raises FalseClaimError where there is said to be no plan.
        """
        if outcome.proof is Proof.INFEASIBLE:
            raise FalseClaimError(f"{outcome.solver}: claimed infeasible, but a plan keeps every rule")
        often, own = times_in_a_step(about), times_in_a_step(self.instance)
        if len(outcome.goals) > 1 or (outcome.objective is not None and outcome.objective * often <= self.step):
            return about, outcome
        bound = None if outcome.bound is None else min(self.objective, outcome.bound * often // own)
        kept = replace(outcome, proof=Proof.FEASIBLE, plan=self.plan, objective=self.objective, bound=bound)
        return self.instance, checked(self.instance, kept)

    def fields(self) -> dict[str, Any]:
        """Return it as plain data."""
        group = self.plan.stages[0].group
        return {
            "objective": self.objective,
            "tensor_parallel_degree": group.tensor_parallel_degree,
            "stages": len(self.plan),
            "replicas": group.replicas,
            "sharded": str(group.mode.sharded),
            "recompute": "blocks" if any(one.again for one in self.plan.stages) else group.mode.recompute,
            "micro_batches": self.instance.training.micro_batches,
        }

    @property
    def words(self) -> str:
        """Say what grid it is, as people write it."""
        group, training = self.plan.stages[0].group, self.instance.training
        many, dealt = training.micro_batches, f", vp {training.chunks}" * (training.chunks > 1)
        level = list(Sharded).index(group.mode.sharded)
        again = ", recomputes" * (group.mode.recompute is not False or any(one.again for one in self.plan.stages))
        return (
            f"(tp {group.tensor_parallel_degree}, pp {training.ranks(len(self.plan))}{dealt}, dp {group.replicas},"
            f" ZeRO {level}, {many} micro-{plural(many, 'batch')}{again})"
        )

    def beside(self, about: Instance, outcome: Outcome) -> str:
        """Say what grid it is, and how much more it takes than a plan, or that it is that."""
        if outcome.plan == self.plan or outcome.objective is None:
            return f"this plan {self.words}"
        whole, own = outcome.objective * times_in_a_step(about), goal_text(about.goals[0], self.objective)
        more = f", {gap(self.step / whole - 1)} {'slower' if about.goals[0].timed else 'more'}" if whole else ""
        return f"{own}{more} {self.words}"


@dataclass(frozen=True, slots=True)
class GridTold(Progress):
    """A plain grid, told as every plan that is better than those before."""

    grid: GridFound | None = field(default=None, compare=False, repr=False)


def times_in_a_step(instance: Instance) -> int:
    """Return how often the first goal counts in a step."""
    return instance.training.micro_batches if instance.goals[0] in (Goal.BOTTLENECK, Goal.PERIOD) else 1


def best_grid(instance: Instance, limits: Limits) -> GridFound | None:
    """Return the best plain grid of a large instance; each that is better than those before is told.

    Of a small one only grids whose groups hold several stages are looked at: some models have no other plan then.
    None where none keeps the rules, or time was over before.
    """
    if not (choices := [one for one in instance.training.choices if one.chunks > 1 or has_grids(instance)]):
        return None
    orders = [[one for one in choices if (one.chunks > 1) is several] for several in (False, True)]
    best: GridFound | None = None
    with contextlib.suppress(StoppedError, TooLargeError):
        grids = Grids(shortened(instance), limits.share(PART // 2).within(MOST_S).deadline)
        for some in orders:
            priced = _priced(instance, grids, some, best and best.step, limits)
            for _, found in itertools.islice(priced, TRIED):
                best = found or best
    return best


def _priced(
    instance: Instance, grids: Grids, choices: Iterable[Training], below: int | None, limits: Limits
) -> Iterator[tuple[int, GridFound | None]]:
    """Yield what each grid promises that may take less than a step; and it, told, if it is the best so far."""
    for found in grids.plans(choices, below):
        if below is not None and found.promised >= below:
            return
        about, plan = instance.trained(found.training), grids.plan(found)
        priced, better = evaluate(about, plan), None
        if priced.feasible and priced.objective is not None:
            grid = GridFound(priced.objective, plan, about)
            if below is None or grid.step < below:
                better, below = grid, grid.step
                limits.progress(grid.told)
        yield found.promised, better


@dataclass(frozen=True, slots=True)
class DealtGrids:
    """Plain grids whose groups hold several stages: the best of less than was asked for, and what none undercuts.

    ``whole``: no other is better than that one, or of less than was asked for.
    """

    grid: GridFound | None = None
    bound: int = 0
    whole: bool = True

    @staticmethod
    def of(instance: Instance, below: int | None, limits: Limits) -> DealtGrids:
        """Look at those that a training names (``Training.dealt``), for as long as there is time."""
        choices, grid, bound = instance.training.choices_of_grids, None, 0
        if not choices:
            return DealtGrids()
        with contextlib.suppress(StoppedError, TooLargeError):
            grids = Grids(shortened(instance), limits.deadline)
            for promised, found in _priced(instance, grids, choices, below, limits):
                bound, grid = max(bound, promised), found or grid
            return DealtGrids(grid, (below if grid is None else grid.step) or 0)
        return DealtGrids(grid, bound, whole=False)


def shortened(instance: Instance) -> ShortModel:
    """Return the short model of an instance that asks nothing of single layers; else the model is its own."""
    instance, demands = capped(instance), instance.demands
    if demands.pins or demands.apart:
        return ShortModel.itself(instance)
    word = Word.of(instance)
    return ShortModel(instance, word.short, word.of_atom)
