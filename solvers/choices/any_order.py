"""The best plan of any order of the layers: exact searches of single orders between bounds that hold for all.

The order of an instance is asked first. Then a programme over the sets that cuts leave behind them
(:mod:`solvers.choices.any_order`), or where these are too many a model that decides atom by atom
(:mod:`solvers.choices.relaxed`), says what no order can undercut, and proposes orders; so do interleavings of the
branches. Each proposal is an instance of its own and is asked like any other, so its plan is checked and priced
like any other. It ends when the best plan meets the bound: then nothing is better in any order. Where no bound is
met, and a few orders hold all plans (:func:`solvers.choices.any_order.covering`), each of these is asked.

The bottleneck in any order of the atoms, exactly as far as it goes, where cuts are few: sets, not orders.

What stages hold up to a cut is a *downset*: with every atom all that it takes tensors from. A plan in any order
is a chain of downsets from none to all atoms, and what lies between two neighbours is a stage. So the least
bottleneck of all orders is a programme over downsets and the states of ``formulation.suffixes``::

    V[n, I] = least of  max( time of J - I on the stage's group, boundary at J, V[m, J] )
              over stages on a group that lead from a node m to node n, and downsets J above I

A boundary depends on its downset alone: the bytes of all tensors made in it and read outside. The time of a
stage is at first a sum over its atoms (:class:`solvers.choices.relaxed.Loads`), which no stage undercuts. The
stages of the best chain are then priced over all their forms, and the programme is asked again, until the best
chain consists of stages that are priced so. Memory, demands, what a receiver pays and what shared weights cost
are left out: all of these only take plans away or make them slower. So no plan of any order is below the value
of the best chain.

Cost: for every question pairs of nested downsets x steps of the states x kinds of a place.

Orders of a graph with branches: those worth a try, and few that together hold every plan.

Worth a try are branches one after another, or side by side.

Each is made the same way, by rank: of the atoms whose producers are done the one of least rank comes next. By the
work that must come before a atom, branches advance at the same speed; by the work that must follow, the longest
branch goes first; by the share of the way that lies behind, all branches end together (the field's *round robin*,
weighted). Keeping few bytes alive finishes one branch before it begins another.

A plan of so many stages cuts its order at nested sets of atoms, each of which holds with an atom all that it takes
from. So orders of which one cuts at all sets of every such chain hold all plans: what the best of them is, no plan
of any order undercuts.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.costs.least import StagePrices
from pipecut.formulation.limits import Deadline, StoppedError, TooLargeError, in_time
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.cuts import AtomGraph
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import Combine, StageTime
from pipecut.formulation.problem.units import Link, Volume
from pipecut.formulation.suffixes import End, State, Step, Suffixes, suffixes
from pipecut.solvers.choices.relaxed import Loads, Relaxed, boundary_ways, relaxed

Numbers = NDArray[np.int64]
Node = tuple[State, End | None]
"""A state of devices and the end of the first stage of its suffix; None behind the last stage."""
Values = dict[State, dict[End | None, Numbers]]
"""V of every node, by downset."""
MOST_DOWNSETS = 3_000
# Pairs of downsets x steps, above which the programme is not begun: about a minute.
MOST_WORK = 2_000_000_000


def over_downsets(instance: Instance, atoms: AtomGraph, below_ns: int, limits: Limits) -> Relaxed:
    """Search all orders for a bottleneck of less than ``below_ns``, as the slowest of all stages and boundaries.

    ``bound_ns`` is at most ``below_ns``: where it is ``below_ns``, no order has anything better. Raises
    TooLargeError where downsets, states of devices, or both together are too many.
    """
    bound_ns, orders = 0, list[tuple[int, ...]]()
    with contextlib.suppress(StoppedError):
        search = _Search(instance, atoms, below_ns, limits.deadline)
        while (chain := search.best()) is not None:
            bound_ns = max(bound_ns, chain.value_ns)
            orders.append(search.order(chain))
            if not search.priced(chain):
                break
        else:
            bound_ns = below_ns
    return Relaxed(bound_ns, tuple(reversed(orders)))


@dataclass(frozen=True, slots=True)
class _Chain:
    """The best chain: its value, and of every stage its kinds, the downset before it, and the one behind it."""

    value_ns: int
    stages: tuple[tuple[tuple[GroupKind, ...], int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Pairs of downsets whose stage is below the limit, by the smaller one, and what the stage takes."""

    low: Numbers
    up: Numbers
    spent: Numbers

    @staticmethod
    def of(limit_ns: int, low: Numbers, up: Numbers, rows: list[Numbers]) -> _Pairs:
        spent = np.max([row[up] - row[low] for row in rows], axis=0)
        kept = spent < limit_ns
        return _Pairs(low[kept], up[kept], spent[kept])

    def lower(self, found: Numbers, behind: Numbers) -> None:
        """Lower what is found of every downset to the best that a stage makes of what lies behind larger ones."""
        if len(self.low):
            firsts = np.flatnonzero(np.diff(self.low, prepend=-1))
            best = np.minimum.reduceat(np.maximum(self.spent, behind[self.up]), firsts)
            found[self.low[firsts]] = np.minimum(found[self.low[firsts]], best)


class _Search:
    """The downsets, what stages between them take as far as it is known, and the states of devices."""

    def __init__(self, instance: Instance, atoms: AtomGraph, below_ns: int, deadline: Deadline) -> None:
        self.instance, self.atoms, self.below_ns, self.deadline = instance, atoms, below_ns, deadline
        # Which layer has weights that several use depends on the order; what the others take does not.
        self._untied = replace(instance, model=instance.model.untied())
        self.downsets = atoms.downsets(MOST_DOWNSETS)
        self.held = np.array([[one >> atom & 1 for atom in range(len(atoms))] for one in self.downsets])
        self.suffixes: Suffixes = suffixes(instance, deadline)
        groups = Group.possible(instance, deadline)
        self.kinds = [
            tuple(dict.fromkeys(GroupKind.all_of(instance, (groups[index] for index in place.groups))))
            for place in self.suffixes.places
        ]
        self._steps = self._all_steps()
        self.pairs = self._all_pairs()
        used = (step.place for row in self._steps.values() for step in row)
        work = sum(len(self.pairs[kind].low) for place in used for kind in self.kinds[place])
        if work > MOST_WORK:
            raise TooLargeError(f"{work} steps over pairs of downsets, at most {MOST_WORK} are searched")
        self._crossing = _crossing_bytes(instance, atoms, self.held)
        self._boundary, self._transfer = cache(self._boundary_ns), cache(self._transfer_ns)
        self._exact: set[tuple[GroupKind, int, int]] = set()

    def best(self) -> _Chain | None:
        """Return the best chain by what is known of stages, None if none is below the limit."""
        nowhere = np.full(len(self.downsets), self.below_ns)
        values: Values = {}
        for state in self.suffixes.empty():
            values[state] = {None: nowhere.copy()}
            values[state][None][-1] = 0
        for state, steps in in_time(self._steps.items(), self.deadline):
            for step in steps:
                behind = self._behind(values, state, step)
                found = values.setdefault(step.state, {}).setdefault(step.first, nowhere.copy())
                for kind in self.kinds[step.place]:
                    self.pairs[kind].lower(found, behind)
        whole = [
            (int(found[0]), state, end)
            for state, ends in values.items()
            for end, found in ends.items()
            if end is not None and self.suffixes.complete(state)
        ]
        value_ns, state, end = min(whole, default=(self.below_ns, (), ((), 0)))
        return None if value_ns >= self.below_ns else _Chain(value_ns, tuple(self._walk(values, state, end)))

    def order(self, chain: _Chain) -> tuple[int, ...]:
        """Return the atoms stage by stage, within a stage as in the given order."""
        return tuple(atom for _, low, up in chain.stages for atom in self._stage(low, up))

    def priced(self, chain: _Chain) -> bool:
        """Price the stages of a chain over all their forms; tell whether one takes longer than was known."""
        order, longer, start = self.order(chain), False, 0
        layers = replace(self._untied, model=self._untied.model.in_order(self.atoms.layers(order)))
        prices = StagePrices(layers)
        for kinds, low, up in chain.stages:
            stop = start + len(self.atoms.layers(self._stage(low, up)))
            for kind in kinds:
                longer |= self._price(prices, (kind, low, up), start, stop)
            start = stop
        return longer

    def _price(self, prices: StagePrices, stage: tuple[GroupKind, int, int], start: int, stop: int) -> bool:
        if stage in self._exact:
            return False
        self._exact.add(stage)
        kind, low, up = stage
        computing = prices.floors(kind)[0]
        spent, talking = computing[stop] - computing[start], prices.communication_ns(kind, start, stop)
        overlap = self.instance.cost.stage_time is StageTime.OVERLAP
        exact, pairs = max(spent, talking) if overlap else spent + talking, self.pairs[kind]
        at = np.flatnonzero((pairs.low == low) & (pairs.up == up))
        longer = bool((pairs.spent[at] < exact).any())
        pairs.spent[at] = np.maximum(pairs.spent[at], exact)
        return longer

    def _walk(self, values: Values, state: State, end: End) -> Iterator[tuple[tuple[GroupKind, ...], int, int]]:
        """Yield the stages of the best chain of a node, from the first on."""
        at, node = 0, (state, end)
        while at != len(self.downsets) - 1:
            node, kinds, up = self._step_back(values, node, at)
            yield kinds, at, up
            at = up

    def _step_back(self, values: Values, node: Node, at: int) -> tuple[Node, tuple[GroupKind, ...], int]:
        """Return the node behind the first stage of the best chain from a downset on, its kinds and its end."""
        for state, steps in self._steps.items():
            for step in steps if state in values else ():
                if (step.state, step.first) != node:
                    continue
                behind = self._behind(values, state, step)
                for kind in self.kinds[step.place]:
                    pairs = self.pairs[kind]
                    rows = slice(*np.searchsorted(pairs.low, [at, at + 1]))
                    fits = np.maximum(pairs.spent[rows], behind[pairs.up[rows]]) <= values[node[0]][node[1]][at]
                    if fits.any():
                        up = int(pairs.up[rows][np.flatnonzero(fits)[-1]])
                        reach = self._joined(values, state, step)
                        before = min(reach, key=lambda end: reach[end][up])
                        return (state, before), self.kinds[step.place], up
        raise LookupError(f"no stage makes up {values[node[0]][node[1]][at]} ns")

    def _behind(self, values: Values, state: State, step: Step) -> Numbers:
        """Return for every downset what lies behind a stage that ends there, with its boundary."""
        return np.min(list(self._joined(values, state, step).values()), axis=0)

    def _joined(self, values: Values, state: State, step: Step) -> dict[End | None, Numbers]:
        own = self.suffixes.places[step.place].end
        return {
            end: behind if end is None else np.maximum(behind, self._boundary(own, end))
            for end, behind in values[state].items()
        }

    def _boundary_ns(self, one: End, other: End) -> Numbers:
        groups = (Group(tuple((server, 1) for server in servers)) for servers, _ in (one, other))
        return self._transfer(Group.link_between(self.instance, *groups, lanes=min(one[1], other[1])))

    def _transfer_ns(self, link: Link | None) -> Numbers:
        """Return the time of every downset's boundary over a link."""
        ways = boundary_ways(self.instance)
        if link is None or not ways:
            return np.zeros(len(self.downsets), dtype=np.int64)
        return np.array([ways * Volume(Fraction(one), 1).transfer_ns(link) for one in self._crossing])

    def _all_steps(self) -> dict[State, list[Step]]:
        """Return the stages before every state, each state behind all from which stages lead to it."""
        found: dict[State, list[Step]] = {}
        waiting = self.suffixes.empty()
        while waiting:
            self.deadline.check()
            state = waiting.pop()
            if state not in found:
                found[state] = list(self.suffixes.before(state))
                waiting += [step.state for step in found[state]]
        # On the line the first device taken falls from step to step, elsewhere the number of those taken rises.
        on_line = self.instance.constraints.placement is Placement.LINE
        return dict(sorted(found.items(), key=lambda row: -sum(row[0]) if on_line else sum(row[0])))

    def _all_pairs(self) -> dict[GroupKind, _Pairs]:
        prices, loads = StagePrices(self._untied), Loads(self.instance, self.atoms)
        low, up = _nested(self.downsets, self.deadline)
        kinds = {kind for row in self.kinds for kind in row}
        needed = 3 * low.nbytes * len(kinds)
        TooLargeError.refuse_above("the times of stages of any order", needed, "give an order")
        found: dict[GroupKind, _Pairs] = {}
        for kind in kinds:
            self.deadline.check()
            rows = [self.held @ np.array(row, dtype=np.int64) for row in loads.of(kind, prices)]
            found[kind] = _Pairs.of(self.below_ns, low, up, rows)
        return found

    def _stage(self, low: int, up: int) -> list[int]:
        return np.flatnonzero(self.held[up] > self.held[low]).tolist()


def _nested(downsets: list[int], deadline: Deadline) -> tuple[Numbers, Numbers]:
    """Return all pairs of a downset and a larger one that contains it, by the smaller one."""
    words = max(downsets).bit_length() // 64 + 1
    parts = np.array(
        [[one >> 64 * word & (1 << 64) - 1 for word in range(words)] for one in downsets], dtype=np.uint64
    )
    ups = [
        np.flatnonzero(((row & ~parts[at + 1 :]) == 0).all(axis=1)) + at + 1
        for at, row in in_time(enumerate(parts), deadline)
    ]
    low = np.repeat(np.arange(len(downsets)), [len(row) for row in ups])
    return low, np.concatenate([*ups, np.zeros(0, dtype=np.int64)])


def _crossing_bytes(instance: Instance, atoms: AtomGraph, held: Numbers) -> list[int]:
    """Return for every downset the bytes that cross the cut behind it (``formulation.costs.times.cut_bytes``)."""
    atom_of, readers = atoms.atom_of(), dict[int, dict[int, int]]()
    for edge in instance.edges:
        one, other = atom_of[edge.producer], atom_of[edge.consumer]
        if one != other:
            row = readers.setdefault(edge.producer, {})
            row[other] = row.get(other, 0) + edge.size_bytes
    found = np.zeros(len(held), dtype=np.int64)
    for producer, row in readers.items():
        sent = (1 - held[:, list(row)]) @ np.array(list(row.values()))
        found += held[:, atom_of[producer]] * np.minimum(sent, instance.output_bytes[producer])
    return found.tolist()


Rank = Fraction | int
Chain = tuple[int, ...]
"""Nested sets of atoms as bit masks, small ones first."""
MOST_SETS, MOST_CHAINS = 300, 5_000


def interleavings(atoms: AtomGraph, work: Sequence[int], sent: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield different orders of atoms, the given one first.

    ``work[u]`` is the computation of a atom in any unit of time, ``sent[u]`` the bytes that others take from it.
    Cost: about linear in atoms and edges for each order, at most six.
    """
    after: list[list[int]] = [[] for _ in work]
    for atom, row in enumerate(atoms.before):
        for one in row:
            after[one].append(atom)
    head, tail = [0] * len(work), [0] * len(work)
    for atom, row in enumerate(atoms.before):
        head[atom] = max((head[one] + work[one] for one in row), default=0)
    for atom in reversed(range(len(work))):
        tail[atom] = work[atom] + max((tail[one] for one in after[atom]), default=0)
    share = [
        Fraction(2 * one + spent, 2 * (one + rest) or 1) for one, spent, rest in zip(head, work, tail, strict=True)
    ]

    def alive(atom: int, done: Collection[int]) -> int:
        """Return how many bytes more wait for a reader once an atom is done."""
        read = (
            one for one in atoms.before[atom] if all(reader in done or reader == atom for reader in after[one])
        )
        return (sent[atom] if after[atom] else 0) - sum(sent[one] for one in read)

    seen: set[tuple[int, ...]] = set()
    for order in (
        tuple(range(len(work))),
        ordered(atoms, after, lambda atom, _: share[atom]),
        ordered(atoms, after, lambda atom, _: head[atom]),
        ordered(atoms, after, lambda atom, _: -tail[atom]),
        ordered(atoms, after, lambda atom, _: head[atom] + work[atom]),
        ordered(atoms, after, alive),
    ):
        if order not in seen:
            seen.add(order)
            yield order


def ordered(
    atoms: AtomGraph, after: Sequence[Sequence[int]], rank: Callable[[int, Collection[int]], Rank]
) -> tuple[int, ...]:
    """Return the order that takes, of all atoms whose producers are done, the one of least rank each time.

    ``rank`` may look at the atoms that are done.
    """
    waiting, found = [len(row) for row in atoms.before], dict[int, None]()
    ready = {atom for atom, count in enumerate(waiting) if not count}
    while ready:
        atom = min(ready, key=lambda one: (rank(one, found.keys()), one))
        ready.remove(atom)
        found[atom] = None
        for one in after[atom]:
            waiting[one] -= 1
            if not waiting[one]:
                ready.add(one)
    return tuple(found)


def covering(atoms: AtomGraph, cuts: int, most: int) -> list[tuple[int, ...]]:
    """Return orders such that whatever sets so many cuts leave before them, one of the orders has these cuts.

    Raises TooLargeError for more than ``most`` of them, and for more than MOST_CHAINS ways to cut. Cost: orders x
    ways to cut.
    """
    cuts = min(cuts, len(atoms) - 1)
    left, found = _chains(atoms.downsets(MOST_SETS)[1:-1], cuts), list[tuple[int, ...]]()
    while left:
        if len(found) == most:
            raise TooLargeError(f"more than {most} orders of the layers hold all plans with {cuts} cuts")
        held = list(left[0])
        for chain in left[1:]:
            held += [
                one
                for one in chain
                if one not in held and all(one & ~other == 0 or other & ~one == 0 for other in held)
            ]
        held.sort(key=int.bit_count)
        found.append(_through(atoms, held))
        passed = set(itertools.accumulate((1 << atom for atom in found[-1]), int.__or__))
        left = [chain for chain in left if not passed.issuperset(chain)]
    return found


def _chains(sets: Sequence[int], cuts: int) -> list[Chain]:
    """Return all so many nested sets, of sets that are sorted by size."""
    chains: list[Chain] = [()]
    for _ in range(cuts):
        chains = [
            (*chain, one)
            for chain in chains
            for one in sets
            if not chain or (chain[-1] != one and chain[-1] & ~one == 0)
        ]
        if len(chains) > MOST_CHAINS:
            raise TooLargeError(f"there are more than {MOST_CHAINS} ways to cut all orders of the layers")
    return chains


def _through(atoms: AtomGraph, sets: Sequence[int]) -> tuple[int, ...]:
    """Return an order that has made each of these nested sets before anything else."""
    first = [next((at for at, one in enumerate(sets) if one >> atom & 1), len(sets)) for atom in range(len(atoms))]
    return tuple(sorted(range(len(atoms)), key=lambda atom: (first[atom], atom)))


Ask = Callable[[Instance, Limits], Outcome]
"""Any search of one instance, such as the one behind ``pipecut plan``."""
# A bound for all orders may take one part in so many of what is left, each time it is asked.
PARTS_OF_TIME = 4
# How many orders are asked one by one where no bound for all of them settles what is best: all of five atoms.
MOST_ORDERS = 120


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
        or instance.constraints.recompute.by_blocks
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
