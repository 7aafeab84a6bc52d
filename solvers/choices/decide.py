"""All that is chosen above a single instance, together: the number of micro-batches, and the order of the layers.

A search of one instance is handed in; what comes back is the instance with everything chosen, and a claim about it
that says how far it holds: for all allowed numbers of micro-batches, and beside a bound for all orders of layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from formulation.outcome import FalseClaimError, Limits, Outcome, Proof
from formulation.problem.instance import Instance
from solvers.choices.any_order import AnyOrder, any_order, given_order, has_other_orders
from solvers.choices.micro_batches import best_micro_batches

__all__ = ["decide"]

Ask = Callable[[Instance, Limits], Outcome]
BOUND_S = 5.0
"""What a bound for all orders may take beside a claim about the one order that was asked for."""


def decide(instance: Instance, ask: Ask, limits: Limits) -> tuple[Instance, Outcome]:
    """Choose what an instance leaves open, searching with ``ask``; return what was chosen, and the claim about it.

    The instance that comes back differs from the given one in ``training.micro_batches`` and in the order of its
    layers at most. Raises what ``ask`` raises where nothing could be searched.
    """
    limits = limits.begun()

    def in_the_best_order(one: Instance, within: Limits) -> tuple[Instance, Outcome]:
        return _ordered(one, ask, within)

    if not instance.training.micro_batch_choices:
        return in_the_best_order(instance, limits)
    chosen = best_micro_batches(instance, in_the_best_order, limits)
    return chosen.instance, chosen.outcome


def _ordered(instance: Instance, ask: Ask, limits: Limits) -> tuple[Instance, Outcome]:
    if not has_other_orders(instance):
        return instance, ask(instance, limits)
    if instance.model.free_order:
        found = any_order(instance, ask, limits)
    else:
        found = given_order(instance, ask(instance, limits), limits.within(BOUND_S))
    return found.instance, _claimed(found)


def _claimed(found: AnyOrder) -> Outcome:
    """Return the outcome with what holds for all orders, and with what was asked in words."""
    outcome, before = found.outcome, found.first.objective
    if outcome.objective is None:
        return outcome
    if outcome.proof in (Proof.OPTIMAL, Proof.FEASIBLE) and outcome.objective < found.bound:
        limit, value = outcome.amount(found.bound), outcome.amount(outcome.objective)
        raise FalseClaimError(f"no order of layers is said to be below {limit}, but there is a plan of {value}")
    notes = outcome.notes
    if before is not None and outcome.objective < before:
        worse = f"the best plan of the traced one has {outcome.amount(before)}"
        notes = (*notes, f"{found.asked} orders of the layers searched; {worse}")
    return replace(outcome, any_order_bound=min(found.bound, outcome.objective), notes=notes)
