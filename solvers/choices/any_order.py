"""The best plan of any order of the layers: exact searches of single orders between bounds that hold for all.

The order of an instance is asked first. Then a programme over the sets that cuts leave behind them
(:mod:`solvers.choices.downsets`), or where these are too many a model that decides atom by atom
(:mod:`solvers.choices.relaxed`), says what no order can undercut, and proposes orders; so do interleavings of the
branches. Each proposal is an instance of its own and is asked like any other, so its plan is checked and priced
like any other. It ends when the best plan meets the bound: then nothing is better in any order.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from formulation.costs.lower_bound import lower_bound
from formulation.limits.size import TooLargeError
from formulation.outcome import Limits, Outcome, Proof
from formulation.problem.cuts import AtomGraph
from formulation.problem.instance import Instance
from formulation.problem.options import Combine, Goal
from solvers.choices.downsets import over_downsets
from solvers.choices.interleavings import interleavings
from solvers.choices.relaxed import Relaxed, relaxed

__all__: list[str] = []

Ask = Callable[[Instance, Limits], Outcome]
"""Any search of one instance, such as the one behind ``pipecut plan``."""
PARTS_OF_TIME = 4
"""A bound for all orders may take one part in so many of what is left, each time it is asked."""


@dataclass(frozen=True, slots=True)
class AnyOrder:
    """The best plan found, the instance in whose order it cuts, and a value that no order can undercut.

    ``asked`` is the number of orders that were searched, ``first`` the outcome of the order that was given.
    """

    instance: Instance
    outcome: Outcome
    bound: int
    asked: int
    first: Outcome

    @property
    def proved(self) -> bool:
        """Tell whether no plan of any order is better."""
        return self.outcome.objective is not None and self.outcome.objective <= self.bound


def has_other_orders(instance: Instance) -> bool:
    """Tell whether the layers could run in another order, with the same places to cut."""
    return not AtomGraph.of(instance).in_one_order_only


def in_order(instance: Instance, order: Iterable[int]) -> Instance:
    """Return the instance with its layers in another order of atoms. Raises ValueError if edges go backwards."""
    atoms = AtomGraph.of(instance)
    return replace(instance, model=instance.model.in_order(atoms.layers(tuple(order))))


def any_order(instance: Instance, ask: Ask, limits: Limits) -> AnyOrder:
    """Search orders until the best plan is proved for all of them, no proposal is left, or the limits end.

    ``ask`` is called with instances that differ in the order of their layers only. Raises what it raises for the
    given order; another order that it refuses is left out. Cost: a handful of searches of one order.
    """
    limits, atoms = limits.begun(), AtomGraph.of(instance)
    first = ask(instance, limits)
    state = AnyOrder(instance, first, lower_bound(instance), 1, first)
    if atoms.in_one_order_only:
        return replace(state, bound=max(state.bound, first.bound or 0))
    seen = {tuple(range(len(atoms)))}
    state, proposals = _bounded(state, instance, limits)
    for order in itertools.chain(proposals, _interleavings(instance, atoms)):
        if state.proved or limits.deadline.over():
            break
        if order not in seen:
            seen.add(order)
            state = _better(state, in_order(instance, order), ask, limits)
    return state if state.proved else _bounded(state, instance, limits)[0]


def given_order(instance: Instance, outcome: Outcome, limits: Limits) -> AnyOrder:
    """Return what is known of all orders beside an outcome of the given one, without searching any other."""
    state = AnyOrder(instance, outcome, lower_bound(instance), 1, outcome)
    return _bounded(state, instance, limits)[0]


def bound_of_all(instance: Instance, below: int, limits: Limits) -> Relaxed:
    """Return what no order can undercut, as far as it is below a value, and orders that may come near it.

    Never raises for what is too large, or not modelled: there sums over layers and devices are the bound.
    """
    lower, atoms = lower_bound(instance), AtomGraph.of(instance)
    # Of groups with several stages no model knows: two stages of one group need not follow each other.
    unknown = instance.goals[0] is not Goal.BOTTLENECK or instance.cost.combine is not Combine.MAX
    if below <= lower or unknown or instance.training.chunks > 1:
        return Relaxed(lower, ())
    for search in (over_downsets, relaxed):
        with contextlib.suppress(TooLargeError):
            found = search(instance, atoms, below, limits)
            return replace(found, bound_ns=max(lower, found.bound_ns))
    return Relaxed(lower, ())


def _better(state: AnyOrder, other: Instance, ask: Ask, limits: Limits) -> AnyOrder:
    """Return the state after another order was asked."""
    try:
        found = ask(other, limits.share(2))
    except ValueError:
        return state
    state = replace(state, asked=state.asked + 1)
    best = state.outcome.objective
    keeps = found.proof in (Proof.OPTIMAL, Proof.FEASIBLE)
    if found.objective is None or not keeps or (best is not None and found.objective >= best):
        return state
    return replace(state, instance=other, outcome=found)


def _bounded(state: AnyOrder, instance: Instance, limits: Limits) -> tuple[AnyOrder, tuple[tuple[int, ...], ...]]:
    """Raise the bound by what is known of all orders, and return the orders that it proposes."""
    best = limits.below if state.outcome.objective is None else state.outcome.objective
    if best is None or best <= state.bound:
        return state, ()
    found = bound_of_all(instance, best, limits.share(PARTS_OF_TIME))
    return replace(state, bound=max(state.bound, found.bound_ns)), found.orders


def _interleavings(instance: Instance, atoms: AtomGraph) -> Iterable[tuple[int, ...]]:
    spent = [one + other for one, other in zip(instance.forward_ns[0], instance.backward_ns[0], strict=True)]
    work = [sum(spent[start:stop]) for start, stop in itertools.pairwise(atoms.starts)]
    sent = [0] * len(atoms)
    atom_of = atoms.atom_of()
    for edge in instance.edges:
        one = atom_of[edge.producer]
        if one != atom_of[edge.consumer]:
            sent[one] = max(sent[one], edge.size_bytes)
    return interleavings(atoms, work, sent)
