"""The best plan of any order of the layers: exact searches of single orders between bounds that hold for all.

The order of an instance is asked first. Then a programme over the sets that cuts leave behind them
(:mod:`solvers.choices.downsets`), or where these are too many a model that decides atom by atom
(:mod:`solvers.choices.relaxed`), says what no order can undercut, and proposes orders; so do interleavings of the
branches. Each proposal is an instance of its own and is asked like any other, so its plan is checked and priced
like any other. It ends when the best plan meets the bound: then nothing is better in any order. Where no bound is
met, and a few orders hold all plans (:func:`solvers.choices.interleavings.covering`), each of these is asked.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from formulation.costs.lower_bound import lower_bound
from formulation.limits.size import TooLargeError
from formulation.outcome import Limits, Outcome, Proof
from formulation.problem.constraints import Goal, Recompute
from formulation.problem.cuts import AtomGraph
from formulation.problem.instance import Instance
from formulation.problem.layers import Split
from formulation.problem.options import Combine
from solvers.choices.downsets import over_downsets
from solvers.choices.interleavings import covering, interleavings
from solvers.choices.relaxed import Relaxed, relaxed

Ask = Callable[[Instance, Limits], Outcome]
"""Any search of one instance, such as the one behind ``pipecut plan``."""
PARTS_OF_TIME = 4
"""A bound for all orders may take one part in so many of what is left, each time it is asked."""
MOST_ORDERS = 120
"""How many orders are asked one by one where no bound for all of them settles what is best: all of five atoms."""


@dataclass(frozen=True, slots=True)
class AnyOrder:
    """The best plan found, the instance in whose order it cuts, and a value that no order can undercut.

    ``asked`` is the number of orders that were searched, ``first`` the outcome of the order that was given.
    ``settled``: orders that hold all plans were asked one by one, and no plan is better by all goals in order;
    without a plan there is none.
    """

    instance: Instance
    outcome: Outcome
    bound: int
    asked: int
    first: Outcome
    settled: bool = False

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
    given order; another order that it refuses is left out. Cost: a handful of searches of one order, or up to
    MOST_ORDERS where no bound is met.
    """
    limits, atoms = limits.begun(), AtomGraph.of(instance)
    first = ask(instance, limits)
    state = AnyOrder(instance, first, lower_bound(instance), 1, first)
    if atoms.in_one_order_only:
        return replace(state, bound=max(state.bound, first.bound or 0))
    known = {tuple(range(len(atoms))): first}
    state, proposals = _bounded(state, instance, limits)
    ending = len(instance.goals) == 1  # of several goals a bound for all orders is about the first alone
    for order in itertools.chain(proposals, _interleavings(instance, atoms)):
        if (ending and state.proved) or limits.deadline.over():
            break
        if order not in known:
            state = _better(state, instance, order, ask, limits.share(2), known)
    if not (ending and state.proved):
        state, _ = _bounded(state, instance, limits)
    return state if ending and state.proved else _one_by_one(state, instance, ask, limits, known)


def _one_by_one(
    state: AnyOrder, instance: Instance, ask: Ask, limits: Limits, known: dict[tuple[int, ...], Outcome]
) -> AnyOrder:
    """Ask the orders that hold all plans whether they have a better one, if these are few."""
    try:
        orders = covering(AtomGraph.of(instance), most_cuts(instance), MOST_ORDERS)
    except TooLargeError:
        return state
    for at, order in enumerate(orders):
        if limits.deadline.over():
            return state
        if order not in known:
            best = state.outcome.objective
            below = None if best is None else best + (len(instance.goals) > 1)
            within = limits.share(len(orders) - at)
            state = _better(state, instance, order, ask, replace(within, below=below), known)
    if not all(order in known for order in orders):
        return state
    found = [known[order] for order in orders]
    bounds = (one.bound for one in found if one.proof is not Proof.INFEASIBLE)
    bound = max(state.bound, min((one or 0 for one in bounds), default=state.bound))
    if state.outcome.objective is not None and state.outcome.proof is not Proof.UNKNOWN:
        bound = min(bound, state.outcome.objective)
    return replace(state, bound=bound, settled=all(_nothing_better(one, state.outcome) for one in found))


def most_cuts(instance: Instance) -> int:
    """Return at how many places a plan cuts an order at most, so that it only matters what lies between them.

    All places where the price of a stage depends on the order of its own layers: which of them has weights that
    several use, which runs of them are computed again, whose layout one follows that reads from several.
    """
    atoms, demands = len(AtomGraph.of(instance)), instance.demands
    producers = [edge.consumer for edge in instance.edges if instance.layers[edge.consumer].split is Split.FOLLOW]
    if (
        instance.model.ties
        or instance.constraints.own
        or instance.constraints.recompute is Recompute.BLOCKS
        or len(set(producers)) < len(producers)
    ):
        return atoms - 1
    sizes = [size for size in demands.devices_per_stage if size <= instance.devices]
    groups = instance.devices // min(sizes, default=1)
    return min(atoms, groups * instance.training.chunks, demands.stages_at_most or atoms) - 1


def _nothing_better(found: Outcome, best: Outcome) -> bool:
    """Tell whether what was found of one order says that it has no better plan, by all goals in order."""
    if found.proof is Proof.INFEASIBLE:
        return True
    if best.objective is None or best.proof not in (Proof.OPTIMAL, Proof.FEASIBLE):
        return False
    if found.bound is not None and found.bound >= best.objective + (len(best.goals) > 1):
        return True
    return found.proof is Proof.OPTIMAL and _rank(found) >= _rank(best)


def impossible(instance: Instance, limits: Limits) -> bool:
    """Tell whether sums and bounds that hold for all orders leave no plan in any of them."""
    most = {limit.goal: limit.at_most for limit in instance.constraints.at_most}
    rooms = [server.device_class.memory_bytes for server in instance.servers]
    if instance.constraints.memory:
        most[Goal.MEMORY] = min(max(rooms), most.get(Goal.MEMORY, max(rooms)))
    most[Goal.DEVICES] = min(instance.devices, most.get(Goal.DEVICES, instance.devices))
    for goal, limit in most.items():
        with contextlib.suppress(ValueError):
            if bound_of_all(replace(instance, goals=(goal,)), limit + 1, limits).bound_ns > limit:
                return True
    return False


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


def _better(
    state: AnyOrder,
    instance: Instance,
    order: tuple[int, ...],
    ask: Ask,
    limits: Limits,
    known: dict[tuple[int, ...], Outcome],
) -> AnyOrder:
    """Return the state after another order was asked, and note its outcome in ``known``."""
    other = in_order(instance, order)
    try:
        found = ask(other, limits)
    except ValueError:
        return state
    known[order], state = found, replace(state, asked=state.asked + 1)
    keeps = found.objective is not None and found.proof in (Proof.OPTIMAL, Proof.FEASIBLE)
    if not keeps or (state.outcome.objective is not None and _rank(found) >= _rank(state.outcome)):
        return state
    return replace(state, instance=other, outcome=found)


def _rank(outcome: Outcome) -> tuple[int, ...]:
    """Return the values of all goals, in order."""
    return tuple(claim.value for claim in outcome.claims)


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
