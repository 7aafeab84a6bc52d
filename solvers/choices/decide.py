"""All that is chosen above a single instance: micro-batches, the order of the passes, and that of the layers.

A search of one instance is handed in; what comes back is the instance with everything chosen, and a claim about it
that says how far it holds: for all choices of the training, and beside a bound for all orders of layers with any
of these choices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from formulation.outcome import FalseClaimError, Limits, Outcome, Proof
from formulation.problem.instance import Instance
from solvers.choices.any_order import AnyOrder, any_order, bound_of_all, given_order, has_other_orders
from solvers.choices.trainings import best_training, instances_of
from solvers.crosscheck.checked_solve import cross_checked

__all__ = ["decide"]

Ask = Callable[[Instance, Limits], Outcome]
BOUND_S = 5.0
"""What a bound for all orders may take beside a claim about the one order that was asked for."""


def decide(instance: Instance, ask: Ask, limits: Limits, *, cross_check: bool = False) -> tuple[Instance, Outcome]:
    """Choose what an instance leaves open, searching with ``ask``; return what was chosen, and the claim about it.

    The instance that comes back differs from the given one in what its training leaves open and in the order of
    its layers at most. ``ask`` cross-checks what it proves of an instance by itself; with ``cross_check`` a second
    method is also asked about choices that have nothing better. Raises what ``ask`` raises where
    nothing could be searched, and FalseClaimError if two methods contradict each other.
    """
    limits = limits.begun()

    def in_the_best_order(one: Instance, within: Limits) -> tuple[Instance, Outcome]:
        return _ordered(one, ask, within)

    if instances_of(instance) == [instance]:
        return in_the_best_order(instance, limits)
    chosen = best_training(instance, in_the_best_order, limits, cross_checked if cross_check else None)
    return chosen.instance, chosen.outcome


def _ordered(instance: Instance, ask: Ask, limits: Limits) -> tuple[Instance, Outcome]:
    if not has_other_orders(instance):
        return instance, ask(instance, limits)
    within = limits.within(BOUND_S)
    free = instance.model.free_order
    if free and limits.below and bound_of_all(instance, limits.below, within).bound_ns < limits.below:
        # That one order has nothing better does not mean that none has.
        limits = replace(limits, below=None)
    if free and limits.below is None:
        found = any_order(instance, ask, limits)
    else:
        found = given_order(instance, ask(instance, limits), replace(within, below=limits.below))
    return found.instance, _claimed(found)


def _claimed(found: AnyOrder) -> Outcome:
    """Return the outcome with what holds for all orders, and with what was asked in words."""
    outcome, before = found.outcome, found.first.objective
    if outcome.objective is None:
        return replace(outcome, any_order_bound=found.bound) if outcome.proof is Proof.UNKNOWN else outcome
    if outcome.proof in (Proof.OPTIMAL, Proof.FEASIBLE) and outcome.objective < found.bound:
        limit, value = outcome.amount(found.bound), outcome.amount(outcome.objective)
        raise FalseClaimError(f"no order of layers is said to be below {limit}, but there is a plan of {value}")
    notes = outcome.notes
    if before is not None and outcome.objective < before:
        worse = f"the best plan of the traced one has {outcome.amount(before)}"
        notes = (*notes, f"{found.asked} orders of the layers searched; {worse}")
    return replace(outcome, any_order_bound=min(found.bound, outcome.objective), notes=notes)
