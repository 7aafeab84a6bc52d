"""All that is chosen above a single instance: micro-batches, the order of the passes, and that of the layers.

A search of one instance is handed in; what comes back is the instance with everything chosen, and a claim about it
that says how far it holds: for all choices of the training, and for all orders of the layers where these are free
too. Where the order is given, a bound for all orders with any of the choices stands beside the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from formulation.costs.amounts import plural
from formulation.outcome import FalseClaimError, Limits, Outcome, Proof
from formulation.problem.instance import Instance
from solvers.choices.any_order import AnyOrder, any_order, bound_of_all, given_order, has_other_orders, impossible
from solvers.choices.trainings import best_training, instances_of
from solvers.crosscheck.checked_solve import cross_checked

Ask = Callable[[Instance, Limits], Outcome]
BOUND_S = 5.0
"""What a bound for all orders may take beside a claim about one order, or about none of them having a plan."""


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
        return found.instance, _of_all_orders(found, limits)
    found = given_order(instance, ask(instance, limits), replace(within, below=limits.below))
    return instance, _of_all_orders(found, within) if free else _of_one_order(found)


def _of_one_order(found: AnyOrder) -> Outcome:
    """Return the claim about the given order, and beside it what holds for all."""
    outcome = found.outcome
    if outcome.objective is None:
        return replace(outcome, any_order_bound=found.bound) if outcome.proof is Proof.UNKNOWN else outcome
    _check_bound(found)
    return replace(outcome, any_order_bound=min(found.bound, outcome.objective))


def _of_all_orders(found: AnyOrder, limits: Limits) -> Outcome:
    """Return the outcome as a claim about all orders: what was proved of one of them proves nothing of others.

    Of several goals the first alone has a bound that holds for all orders, unless all of these were asked.
    """
    outcome, bound = found.outcome, found.bound
    if outcome.objective is None:
        if (
            outcome.proof is Proof.INFEASIBLE
            and not found.settled
            and not impossible(found.instance, limits.within(BOUND_S))
        ):
            notes = (*outcome.notes, f"no plan in {_searched(found)}; others may have one")
            return replace(outcome, proof=Proof.UNKNOWN, bound=bound, any_order_bound=bound, notes=notes)
        if outcome.proof is Proof.INFEASIBLE:
            return outcome
        return replace(outcome, bound=None if outcome.bound is None else bound, any_order_bound=bound)
    _check_bound(found)
    bound = min(bound, outcome.objective)
    notes = (*outcome.notes, *_words(found))
    if outcome.proof is Proof.UNKNOWN or outcome.bound is None:
        known = None if outcome.bound is None else bound
        return replace(outcome, bound=known, any_order_bound=bound, notes=notes)
    if found.settled:
        further = tuple(replace(claim, bound=claim.value) for claim in outcome.further)
        proved, bound = True, outcome.objective
    else:
        further = tuple(replace(claim, bound=None) for claim in outcome.further)
        proved = bound == outcome.objective and not further
    proof = Proof.OPTIMAL if proved else Proof.FEASIBLE
    return replace(outcome, proof=proof, bound=bound, any_order_bound=bound, further=further, notes=notes)


def _check_bound(found: AnyOrder) -> None:
    """Raise FalseClaimError where a plan is below what no order is said to undercut."""
    outcome = found.outcome
    if outcome.proof in (Proof.OPTIMAL, Proof.FEASIBLE) and (outcome.objective or 0) < found.bound:
        limit, value = outcome.amount(found.bound), outcome.amount(outcome.objective or 0)
        raise FalseClaimError(f"no order of layers is said to be below {limit}, but there is a plan of {value}")


def _words(found: AnyOrder) -> Iterator[str]:
    """Say how many orders were searched, what that gained, and how far what is proved goes."""
    outcome, before = found.outcome, found.first.objective
    if before is not None and (outcome.objective or 0) < before:
        yield f"{_searched(found)} searched; the best plan of the traced one has {outcome.amount(before)}"
    if found.settled:
        yield f"{_searched(found)} asked, which hold all plans: none has a better one"
    elif outcome.proof is Proof.OPTIMAL and not found.proved:
        yield f"proved of this order of the layers alone; {_searched(found)} searched"


def _searched(found: AnyOrder) -> str:
    return f"{found.asked} {plural(found.asked, 'order')} of the layers"
