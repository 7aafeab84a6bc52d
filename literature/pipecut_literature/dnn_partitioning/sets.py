"""Device placement decided node by node: the integer programme of the paper (``throughput-ip``), by CP-SAT.

A device takes any set of colour classes; x[c, s] says that class c is on device s. With ``contiguous`` the devices
stand in a row, and b[c, s], class c is on device s or an earlier one, falls along every edge of the forward graph:
the sets up to a device hold with a class all that comes before it, whatever the order within. Without it sets may
be any. An output crosses the border of a device that has some but not all of its producer and consumers::

    load of an accelerator = sum of work of its classes + sum of transfers of the outputs that cross its border
    load of a host         = sum of times of its classes there

Which devices of the row are hosts is decided too. Times are whole picoseconds, rounded down, so that the bound
holds for the times of the file; the loads of the plan are computed anew from these (``dp.load``). It shares with
the dynamic programme what a class is and which outputs join which classes; no downsets are listed here.

Cost: exponential at worst, until the time limit; (classes + edges + outputs) x devices variables and clauses.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ortools.sat.python import cp_model

from pipecut_literature.dnn_partitioning.dp import DeviceShare, load
from pipecut_literature.dnn_partitioning.file import PlacementProblem
from pipecut_literature.dnn_partitioning.graph import Graph, contracted, original, with_cycles_merged, with_twins

UNITS = 10**12
"""Whole units of time in a second."""
ROUNDED_S = 1e-9
"""So far a bound may lie below a proved optimum: each term is rounded by less than a unit."""


@dataclass(frozen=True, slots=True)
class DecidedPlacement:
    """The best placement found, the largest load that none undercuts, and whether they are the same."""

    max_load_s: float
    bound_s: float
    shares: tuple[DeviceShare, ...]

    @property
    def proved(self) -> bool:
        """Tell whether no placement is better, by more than times are rounded."""
        return self.max_load_s <= self.bound_s + ROUNDED_S


def decide(problem: PlacementProblem, *, contiguous: bool, time_limit_s: float | None) -> DecidedPlacement | None:
    """Place a graph with the least largest load; None where nothing was found in time.

    ``contiguous``: a device takes the difference of two nested sets that are closed under producers.
    """
    return _Model(problem, contiguous=contiguous).solve(time_limit_s)


class _Model:
    """Variables by class and device: what is held, which device is a host, and the largest load."""

    def __init__(self, problem: PlacementProblem, *, contiguous: bool) -> None:
        self.problem, self.model = problem, cp_model.CpModel()
        graph = contracted(original(problem))
        if contiguous:
            # On a cycle of classes all are on one device.
            graph = contracted(with_cycles_merged(with_twins(graph)))
        self.classes = sorted({node.colour for node in graph.nodes})
        self.class_of = {
            member: self.classes.index(node.colour) for node in graph.nodes for member in node.members
        }
        self.devices = problem.accelerators + problem.cpus
        self.held = [[self.model.new_bool_var("") for _ in range(self.devices)] for _ in self.classes]
        for row in self.held:
            self.model.add_exactly_one(row)
        self.hosts = [self.model.new_bool_var("") for _ in range(self.devices)]
        if contiguous:
            self.model.add(sum(self.hosts) == problem.cpus)
            self._post_row(graph)
        else:
            self._post_sets()
        self.largest = self.model.new_int_var(0, 1 << 60, "")
        for device in range(self.devices):
            self._post_device(device)
        self.model.minimize(self.largest)

    def _post_row(self, graph: Graph) -> None:
        """Order the devices: with a class all that comes before it is on its device or an earlier one."""
        earlier = [[self.model.new_bool_var("") for _ in range(self.devices)] for _ in self.classes]
        for row, held in zip(earlier, self.held, strict=True):
            self.model.add(row[-1] == 1)
            self.model.add(held[0] == row[0])
            for device, (before, now) in enumerate(itertools.pairwise(row), 1):
                self.model.add_implication(before, now)
                self.model.add(held[device] == now - before)
        place = {node.number: self.classes.index(node.colour) for node in graph.nodes}
        for source, target in graph.forward_edges():
            for one, other in zip(earlier[place[source]], earlier[place[target]], strict=True):
                self.model.add_implication(other, one)

    def _post_sets(self) -> None:
        """Let the accelerators come first and, as they are alike, by the least class that each has."""
        for device, host in enumerate(self.hosts):
            self.model.add(host == int(device >= self.problem.accelerators))
        for device in range(1, self.problem.accelerators):
            for at, row in enumerate(self.held):
                before = [other[device - 1] for other in self.held[:at]]
                self.model.add_bool_or([row[device].negated(), *before])

    def _post_device(self, device: int) -> None:
        held, host = [row[device] for row in self.held], self.hosts[device]
        work, cpu, size = ([0] * len(held) for _ in range(3))
        for at, node in enumerate(self.problem.nodes):
            work[self.class_of[at]] += int(node.accelerator_s * UNITS)
            cpu[self.class_of[at]] += int(node.cpu_s * UNITS)
            size[self.class_of[at]] += int(node.size_bytes)
            if not node.on_accelerator:
                self.model.add_implication(held[self.class_of[at]], host)
        crossing = sum(
            price * self._crosses([held[one] for one in sorted(group)]) for group, price in self._outputs().items()
        )
        spent = sum(ns * one for ns, one in zip(work, held, strict=True)) + crossing
        self.model.add(spent <= self.largest).only_enforce_if(host.negated())
        self.model.add(sum(ns * one for ns, one in zip(cpu, held, strict=True)) <= self.largest).only_enforce_if(
            host
        )
        stored = sum(count * one for count, one in zip(size, held, strict=True))
        self.model.add(stored <= int(self.problem.capacity_bytes)).only_enforce_if(host.negated())

    def _outputs(self) -> dict[frozenset[int], int]:
        """Return what outputs cost that join the same classes; those that stay within a class join none."""
        joined: dict[int, set[int]] = {}
        for producer, consumer in self.problem.edges:
            joined.setdefault(producer, set()).update((self.class_of[producer], self.class_of[consumer]))
        prices: dict[frozenset[int], int] = {}
        for producer, group in joined.items():
            price = int(self.problem.nodes[producer].transfer_s * UNITS)
            if price and len(group) > 1:
                prices[frozenset(group)] = prices.get(frozenset(group), 0) + price
        return prices

    def _crosses(self, held: list[cp_model.IntVar]) -> cp_model.IntVar:
        """Return whether some but not all of these are held, or true although it is not so."""
        crosses, whole = self.model.new_bool_var(""), self.model.new_bool_var("")
        for one in held:
            self.model.add_implication(whole, one)
            self.model.add_bool_or([one.negated(), whole, crosses])
        return crosses

    def solve(self, time_limit_s: float | None) -> DecidedPlacement | None:
        """Run CP-SAT, without its presolve as everywhere (docs/decisions/0003)."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 2
        solver.parameters.cp_model_presolve = False
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.auto_detect_greater_than_at_least_one_of = False
        if time_limit_s is not None:
            solver.parameters.max_time_in_seconds = time_limit_s
        if solver.solve(self.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        shares = tuple(self._share(solver, device) for device in range(self.devices))
        used = tuple(share for share in shares if share.nodes)
        return DecidedPlacement(max(share.load_s for share in used), solver.best_objective_bound / UNITS, used)

    def _share(self, solver: cp_model.CpSolver, device: int) -> DeviceShare:
        own = [solver.boolean_value(row[device]) for row in self.held]
        members = [at for at in range(len(self.problem.nodes)) if own[self.class_of[at]]]
        accelerator = not solver.boolean_value(self.hosts[device])
        names = tuple(sorted(self.problem.nodes[at].identifier for at in members))
        return DeviceShare(accelerator, names, load(self.problem, members, accelerator))
