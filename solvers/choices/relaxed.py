"""The time of a stage in any order of the atoms: a model that decides atom by atom which stage it is in.

A stage is here any set of atoms, and stages are a row of sets so that producers come first: ``b[u, s]``, atom u is
in stage s or an earlier one, falls along every edge (``b[consumer, s] => b[producer, s]``). What a stage takes is
relaxed to sums over its atoms: each computes, and communicates as in its own best forms, whatever the others do.
A boundary sends every tensor that is made before and read after it over the fastest link there can be. Memory is
left out. So a value that this model cannot reach, no plan of any order reaches; and what it finds is an order that
is worth a try.

Only the bottleneck as the slowest stage or boundary is modelled. OR-Tools CP-SAT searches, without its presolve.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from pipecut.formulation.costs import times
from pipecut.formulation.costs.least import StagePrices
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.outcome import Limits
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.cuts import AtomGraph
from pipecut.formulation.problem.groups import Group, GroupKind, line, line_places
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import Boundary, BoundaryCharge, Combine, StageTime
from pipecut.formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

# Terms of the model, above which it is not built.
LARGEST = 200_000


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What is known of all orders: no bottleneck is below ``bound_ns``; orders that looked good, best first."""

    bound_ns: int
    orders: tuple[tuple[int, ...], ...]


def relaxed(instance: Instance, atoms: AtomGraph, below_ns: int, limits: Limits) -> Relaxed:
    """Search all orders for a bottleneck of less than ``below_ns``.

    ``bound_ns`` is at most ``below_ns``: where it is ``below_ns``, no order has anything better. Raises
    TooLargeError where the model would be too large, ValueError for goals that it does not have.
    Cost: exponential at worst, until the limits end; the model has atoms x stages x (kinds + edges) terms.
    """
    if instance.goals[0] is not Goal.BOTTLENECK or instance.cost.combine is not Combine.MAX:
        raise ValueError("orders are compared by the bottleneck, as the slowest of all stages and boundaries")
    return _Model(instance, atoms, below_ns).search(limits)


@dataclass(frozen=True, slots=True)
class Loads:
    """What every atom adds to a stage of a kind: rows that may each not exceed the time of the stage."""

    instance: Instance
    atoms: AtomGraph

    def of(self, kind: GroupKind, prices: StagePrices) -> list[list[int]]:
        """Return the rows of a kind, by atom; ``prices`` are those of weights that nobody shares."""
        pairs = list(itertools.pairwise(self.atoms.starts))
        computing = [
            sum(times.least_compute_ns(self.instance, layer, kind) for layer in range(start, stop))
            for start, stop in pairs
        ]
        _, floors = prices.floors(kind)
        talking = [
            prices.communication_ns(kind, start, stop)
            if self._closed(start, stop)
            else floors[stop] - floors[start]
            for start, stop in pairs
        ]
        if self.instance.cost.stage_time is StageTime.OVERLAP:
            return [computing, talking]
        return [[one + other for one, other in zip(computing, talking, strict=True)]]

    def _closed(self, start: int, stop: int) -> bool:
        """Tell whether every layout within an atom is decided there, so that its best forms are a lower limit."""
        sources = self.instance.sources
        follows = (at for at in range(start, stop) if self.instance.layers[at].split is Split.FOLLOW)
        return all((source := sources[at]) is None or source >= start for at in follows)


class _Model:
    """Variables and constraints; ``b`` has a row for each atom and a column for each stage."""

    def __init__(self, instance: Instance, atoms: AtomGraph, below_ns: int) -> None:
        from ortools.sat.python import cp_model

        self.instance, self.atoms, self.model = instance, atoms, cp_model.CpModel()
        self.below_ns = below_ns
        self.groups = Group.possible(instance)
        self.stages = min(len(atoms), instance.devices)
        kinds = {group: GroupKind.of(instance, group) for group in dict.fromkeys(self.groups)}
        edges = sum(len(row) for row in atoms.before)
        terms = self.stages * (len(set(kinds.values())) * len(atoms) + len(self.groups) + edges)
        if terms > LARGEST:
            raise TooLargeError(f"a model of all orders would have {terms} terms, at most {LARGEST} are searched")
        self.time = self.model.new_int_var(0, below_ns - 1, "time")
        self.b = [
            [self.model.new_bool_var(f"b{atom},{stage}") for stage in range(self.stages)]
            for atom in range(len(atoms))
        ]
        self._post_order()
        self._post_groups(kinds)
        if boundary_ways(instance):
            self._post_boundaries()
        self.model.minimize(self.time)

    def _post_order(self) -> None:
        for row in self.b:
            for one, other in itertools.pairwise(row):
                self.model.add_implication(one, other)
            self.model.add(row[-1] == 1)
        for atom, row in enumerate(self.atoms.before):
            for producer, stage in itertools.product(row, range(self.stages)):
                self.model.add_implication(self.b[atom][stage], self.b[producer][stage])

    def _post_groups(self, kinds: dict[Group, GroupKind]) -> None:
        on_line = self.instance.constraints.placement is Placement.LINE
        places = line_places(self.instance) if on_line else [None] * len(self.groups)
        # Which layer has weights that several use depends on the order; what the others take does not.
        untied = replace(self.instance, model=self.instance.model.untied())
        prices, loads = StagePrices(untied), Loads(self.instance, self.atoms)
        load_of = cache(lambda kind: loads.of(kind, prices))
        chosen = [
            [self.model.new_bool_var(f"x{stage},{at}") for at in range(len(self.groups))]
            for stage in range(self.stages)
        ]
        for stage, row in enumerate(chosen):
            self.model.add_at_most_one(row)
            by_kind: dict[GroupKind, list[cp_model.IntVar]] = {}
            for group, taken in zip(self.groups, row, strict=True):
                by_kind.setdefault(kinds[group], []).append(taken)
            held = [of[stage] - (of[stage - 1] if stage else 0) for of in self.b]
            for atom in range(len(self.atoms)):
                # A atom needs a stage with devices.
                self.model.add(held[atom] <= sum(row))
            for kind, options in by_kind.items():
                for load in load_of(kind):
                    spent = sum(ns * one for ns, one in zip(load, held, strict=True))
                    for option in options if len(options) == 1 else [self._any(options)]:
                        self.model.add(spent <= self.time).only_enforce_if(option)
        for server, _ in enumerate(self.instance.servers):
            counts = [dict(group.counts).get(server, 0) for group in self.groups]
            taken = sum(count * one for row in chosen for count, one in zip(counts, row, strict=True) if count)
            self.model.add(taken <= self.instance.servers[server].devices)
        self._at = self._post_line(chosen, places) if on_line else None

    def _post_line(
        self, chosen: list[list[cp_model.IntVar]], places: Sequence[tuple[int, int] | None]
    ) -> list[list[cp_model.IntVar]]:
        """Stages take the next devices; return ``at[s][p]``: stages 0 .. s end at place p of the line."""
        at = [
            [self.model.new_bool_var(f"p{stage},{place}") for place in range(self.instance.devices + 1)]
            for stage in range(self.stages)
        ]
        for stage, row in enumerate(chosen):
            self.model.add_exactly_one(at[stage])
            for option, place in zip(row, places, strict=True):
                first, stop = place or (0, 0)
                self.model.add_implication(option, at[stage][stop])
                if stage:
                    self.model.add_implication(option, at[stage - 1][first])
                elif first:
                    self.model.add(option == 0)
            for place in range(self.instance.devices + 1):
                before = at[stage - 1][place] if stage else int(place == 0)
                self.model.add(at[stage][place] <= before + sum(row))
        return at

    def _post_boundaries(self) -> None:
        ways = boundary_ways(self.instance)
        sent = _sent_bytes(self.instance, self.atoms)
        readers: dict[int, set[int]] = {}
        for atom, row in enumerate(self.atoms.before):
            for one in row:
                readers.setdefault(one, set()).add(atom)
        for stage in range(self.stages - 1):
            crossing = {atom: self._crosses(atom, readers[atom], stage) for atom in readers}
            for link, options in self._links(stage):
                spent = sum(_ns(sent[atom], ways, link) * one for atom, one in crossing.items())
                constraint = self.model.add(spent <= self.time)
                if options:
                    constraint.only_enforce_if(self._any(options))

    def _links(self, stage: int) -> list[tuple[Link, list[cp_model.IntVar]]]:
        """Return the links that a boundary behind a stage may have at best, and at which places of the line."""
        # No stage has more adapters than all servers together, or than one where a server names none.
        most = sum(server.adapters for server in self.instance.servers) or 1
        links = [[link and link.times(most) for link in row] for row in self.instance.links]
        if self._at is None:
            known = [link for row in links for link in row if link is not None]
            return [(max(known, key=lambda link: link.bits_per_second), [])] if known else []
        servers = line(self.instance)
        found: dict[Link, list[cp_model.IntVar]] = {}
        for place in range(1, self.instance.devices):
            link = links[servers[place - 1]][servers[place]]
            if link is not None:
                found.setdefault(link, []).append(self._at[stage][place])
        return list(found.items())

    def _crosses(self, atom: int, readers: set[int], stage: int) -> cp_model.IntVar:
        crosses = self.model.new_bool_var(f"c{atom},{stage}")
        for reader in readers:
            self.model.add_bool_or(self.b[atom][stage].negated(), self.b[reader][stage], crosses)
        return crosses

    def _any(self, options: Sequence[cp_model.IntVar]) -> cp_model.IntVar:
        one = self.model.new_bool_var("")
        for option in options:
            self.model.add_implication(option, one)
        return one

    def search(self, limits: Limits) -> Relaxed:
        """Run CP-SAT and keep every assignment that it found on the way as an order."""
        from ortools.sat.python import cp_model

        from pipecut.solvers.cpsat.engine import make_solver, run

        solver, orders = make_solver(limits), list[tuple[int, ...]]()
        status = run(solver, self.model, limits.deadline.over, lambda value: orders.append(self._order(value)))
        if status == cp_model.INFEASIBLE:
            return Relaxed(self.below_ns, ())
        # CP-SAT tells its bound as a float, which counts whole ns up to 2**53 only.
        known = status != cp_model.UNKNOWN and self.below_ns < 1 << 53
        return Relaxed(max(0, int(solver.best_objective_bound)) if known else 0, tuple(reversed(orders)))

    def _order(self, value: Callable[[cp_model.IntVar], int]) -> tuple[int, ...]:
        """Return the atoms stage by stage, within a stage as in the given order."""
        stage_of = [self.stages - sum(value(one) for one in row) for row in self.b]
        return tuple(sorted(range(len(self.atoms)), key=lambda atom: (stage_of[atom], atom)))


def boundary_ways(instance: Instance) -> int:
    """Return how often what crosses a boundary counts for its link, or for one of the stages that receive it."""
    cost = instance.cost
    both = cost.boundary is Boundary.BOTH and cost.boundary_charge is BoundaryCharge.LINK
    return both + (cost.boundary is not Boundary.NONE)


def _sent_bytes(instance: Instance, atoms: AtomGraph) -> list[int]:
    """Return for every atom the least that it sends to any atom that reads from it; 0 if none does."""
    atom_of, asked = atoms.atom_of(), dict[tuple[int, int], int]()
    for edge in instance.edges:
        reader = atom_of[edge.consumer]
        if atom_of[edge.producer] != reader:
            asked[edge.producer, reader] = asked.get((edge.producer, reader), 0) + edge.size_bytes
    sent: list[dict[int, int]] = [{} for _ in range(len(atoms))]
    for (producer, reader), size in asked.items():
        # However many layers of an atom read a tensor, it crosses once: at most the whole output of its producer.
        row = sent[atom_of[producer]]
        row[reader] = row.get(reader, 0) + min(size, instance.output_bytes[producer])
    return [min(row.values(), default=0) for row in sent]


def _ns(size_bytes: int, ways: int, link: Link) -> int:
    """Return the time of a tensor over a link, rounded down, without latency: sums of these are lower limits."""
    return ways * size_bytes * BITS_PER_BYTE * NS_PER_SECOND // link.bits_per_second
