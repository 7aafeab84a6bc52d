"""The best number of micro-batches: every allowed number is an instance, and one claim holds for all of them.

Values of different numbers are compared for a whole step: a bottleneck, the time of one micro-batch, counts as
often as there are micro-batches. What cannot be better than the best plan, by sums over layers and devices alone,
is not asked; what is asked is searched like any instance. The bound of the whole is the least of all bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from formulation.costs.amounts import plural
from formulation.costs.lower_bound import lower_bound
from formulation.outcome import Limits, Outcome, Proof
from formulation.problem.instance import Instance
from formulation.problem.options import Goal

__all__: list[str] = []

Ask = Callable[[Instance, Limits], tuple[Instance, Outcome]]
"""Any search of one instance: the instance that its outcome is about, in whatever order, and the outcome."""


@dataclass(frozen=True, slots=True)
class ChosenMicroBatches:
    """The instance with the number of micro-batches that was chosen, and a claim about all allowed numbers.

    ``asked`` are the outcomes by number of micro-batches, in the order in which they were searched.
    """

    instance: Instance
    outcome: Outcome
    asked: tuple[tuple[int, Outcome], ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of one number of micro-batches; ``bound`` is for a whole step."""

    instance: Instance
    bound: int
    outcome: Outcome | None = None

    @property
    def value(self) -> int | None:
        """The first goal for a whole step, of a plan that keeps the rules."""
        if self.outcome is None or self.outcome.proof not in (Proof.OPTIMAL, Proof.FEASIBLE):
            return None
        return None if self.outcome.objective is None else self.outcome.objective * _times(self.instance)

    @property
    def rank(self) -> tuple[int, ...]:
        """Values of all goals, the first for a whole step."""
        further = () if self.outcome is None else tuple(claim.value for claim in self.outcome.further)
        return (self.value or 0, *further)


def best_micro_batches(instance: Instance, ask: Ask, limits: Limits) -> ChosenMicroBatches:
    """Return the best plan over ``training.micro_batch_choices``, with a claim about all of them.

    The claim is OPTIMAL only if no plan with any allowed number is better. Raises ValueError where ``ask`` does
    so for every number. Cost: at most one search for each number, the most promising first.
    """
    limits = limits.begun()
    numbers = instance.training.micro_batch_choices
    parts = [_with(instance, number) for number in numbers]
    waiting = sorted((_Found(one, lower_bound(one) * _times(one)) for one in parts), key=lambda one: one.bound)
    done: list[_Found] = []
    refused: list[str] = []
    while waiting:
        one = waiting.pop(0)
        best = min((found.value for found in done if found.value is not None), default=None)
        if limits.deadline.over() or (best is not None and not _may_win(one, best)):
            done.append(one)
            continue
        try:
            about, outcome = ask(one.instance, limits.share(1 + len(waiting)))
        except ValueError as error:
            refused.append(f"{one.instance.training.micro_batches} micro-batches: {error}")
            done.append(one)
            continue
        done.append(_Found(about, _bound(one, outcome), outcome))
    if len(refused) == len(parts):
        raise ValueError("; ".join(refused))
    return _chosen(instance, done, refused)


def _with(instance: Instance, micro_batches: int) -> Instance:
    return replace(instance, training=replace(instance.training, micro_batches=micro_batches))


def _times(instance: Instance) -> int:
    """Return how often the first goal counts in a step."""
    return instance.training.micro_batches if instance.goals[0] is Goal.BOTTLENECK else 1


def _may_win(one: _Found, best: int) -> bool:
    """Tell whether an unasked number may be better, or as good in the first of several goals."""
    return one.bound < best or (one.bound == best and len(one.instance.goals) > 1)


def _bound(one: _Found, outcome: Outcome) -> int:
    """Return the bound of a number that was asked; without a plan there is nothing that it could undercut."""
    return one.bound if outcome.bound is None else max(one.bound, outcome.bound * _times(one.instance))


def _chosen(instance: Instance, done: list[_Found], refused: list[str]) -> ChosenMicroBatches:
    asked = tuple((one.instance.training.micro_batches, one.outcome) for one in done if one.outcome is not None)
    open_ones = [one for one in done if one.outcome is None or one.outcome.proof is not Proof.INFEASIBLE]
    with_plan = [one for one in done if one.value is not None]
    notes = tuple(refused)
    if not with_plan:
        some = next(one.outcome for one in done if one.outcome is not None)
        proof = Proof.UNKNOWN if open_ones else Proof.INFEASIBLE
        return ChosenMicroBatches(
            instance, replace(some, proof=proof, bound=None, notes=(*some.notes, *notes)), asked
        )
    best = min(with_plan, key=lambda one: one.rank)
    outcome = best.outcome
    if outcome is None or best.value is None:
        raise ValueError("no number of micro-batches has a plan")
    bound = min((one.bound for one in open_ones), default=best.value)
    tied = [one for one in open_ones if one.bound <= best.value and one is not best]
    settled = all(one.outcome is not None and one.outcome.proof is Proof.OPTIMAL for one in tied)
    proof = outcome.proof if bound >= best.value and (settled or len(instance.goals) == 1) else Proof.FEASIBLE
    claimed = replace(
        outcome,
        proof=proof if outcome.bound is not None else outcome.proof,
        bound=None if outcome.bound is None else min(outcome.bound, bound // _times(best.instance)),
        notes=(*outcome.notes, _words(best, done), *notes),
    )
    return ChosenMicroBatches(best.instance, claimed, asked)


def _words(best: _Found, done: list[_Found]) -> str:
    asked = sorted(one.instance.training.micro_batches for one in done if one.outcome is not None)
    left = sorted(one.instance.training.micro_batches for one in done if one.outcome is None)
    chosen = best.instance.training.micro_batches
    words = f"{chosen} micro-{plural(chosen, 'batch')} chosen; searched {', '.join(map(str, asked))}"
    return f"{words}; bounds alone rule out or leave open {', '.join(map(str, left))}" if left else words
