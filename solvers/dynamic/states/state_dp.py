"""The exact dynamic programme over device states: optimal plans under free placement and memory limits.

With the threshold T fixed a plan is a path from the last stage to the first through states, slots and layers
(``solvers.dynamic.states.reach``). T is one of the values at which the answer can change. A path is a
proposal: forms are chosen under both limits at once, and what has none is refused and never proposed again
(``solvers.dynamic.tables.stage_table``), so both answers are exact. The first T asked with forms is the least at
which tables alone allow a path: there few forms fit, and often its path is the answer. It shares tables of costs
with CP-SAT, and no search.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

import numpy as np

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.costs.tables import Tables, Times, all_tables, possible_kinds
from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import Limits, Outcome, Proof, begin
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import line_places
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine
from pipecut.formulation.suffixes import suffixes
from pipecut.solvers.dynamic.states.reach import StateReach, path_of, reach_at
from pipecut.solvers.dynamic.states.states import StateSpace, state_space
from pipecut.solvers.dynamic.tables.stage_table import StageTable
from pipecut.solvers.reference.algorithm_1 import check_size
from pipecut.solvers.reference.line_dp import atom_tables
from pipecut.solvers.search.first_plan import first_plan
from pipecut.solvers.search.incumbent import Incumbent, questions
from pipecut.solvers.search.stoppable import STOPPED, stoppable
from pipecut.solvers.search.support import Support, sized

NAME = "state_dp"


def reason_against(instance: Instance) -> str | None:
    """Return None if the dynamic programme sees the whole instance, else what it does not see."""
    cost = instance.cost
    if instance.goals[0] is not Goal.BOTTLENECK:
        return f"states bound the bottleneck, the first goal is {instance.goals[0]}"
    if cost.combine is not Combine.MAX:
        return "states bound the slowest stage, combine is 'sum'"
    if cost.boundary_charge is not BoundaryCharge.LINK:
        return "states need stages whose time is their own, boundary_charge is 'receiver'"
    return unseen_by_states(instance)


def unseen_by_states(instance: Instance, *seen: str) -> str | None:
    """Return None if states see every constraint of the instance but the ``seen``, else which they do not see."""
    constraints = instance.constraints
    # Where stages may be cut is seen by what is offered (formulation.problem.cuts).
    offered = ("no_cut", "together", "devices_per_stage", *seen)
    unseen = [name for name in instance.demands.named() if name not in offered]
    if instance.demands.devices_per_stage and not sizes_are_narrowed(instance):
        unseen.append("devices_per_stage")
    unseen += [one.name for one in constraints.own]
    unseen += ["at_most"] if constraints.at_most and "at_most" not in seen else []
    told = constraints.recompute.by_blocks and any(len(row) < 2 for row in CutSpace.of(instance).again(instance))
    unseen += ["recompute"] if told else []
    return f"states do not see the constraints {', '.join(unseen)}" if unseen else None


def sizes_are_narrowed(instance: Instance) -> bool:
    """Tell whether numbers of devices are limited so that only groups that keep to it are possible."""
    return any(size <= instance.devices for size in instance.demands.devices_per_stage)


@sized
def accepts(instance: Instance) -> Support:
    """Say what the programme makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    if (reason := reason_against(instance)) is not None:
        return Support(reason=reason)
    suffixes(instance)
    size = check_size(len(possible_kinds(instance)), CutSpace.of(instance).stops)
    return Support(proves=True, bytes_needed=size)


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None, space: CutSpace | None = None) -> Outcome:
    """Find the best plan and prove it, or the best within the limits with an honest bound.

    Among plans of the same time it looks for few devices, then few stages. With a ``space``
    of some of the possible places only plans cut there are looked at: nothing is then proved but what work says.
    Raises ValueError where :func:`reason_against` has one, where there are too many states, and as
    ``solvers.reference.algorithm_1.StageTimes.of`` does.
    """
    if (reason := reason_against(instance)) is not None:
        raise ValueError(reason)
    lower = lower_bound(instance)
    known = Incumbent(NAME, instance, begin(limits), FORBIDDEN, lower)
    known.tell()
    if instance.constraints.placement is Placement.LINE and not line_places(instance):
        known.lower = known.upper  # no stage has devices, and so there is no plan
        return known.outcome()
    tables = all_tables(instance, known.limits.deadline)
    known.offer(first_plan(tables) if known.limits.below is None else None)
    try:
        places = space or CutSpace.of(instance)
        table = StageTable(atom_tables(tables, places))
        search = StateSearch(state_space(table.tables), table, known)
    except StoppedError:
        if known.plan is None:
            raise
        return known.outcome(STOPPED)
    search.run()
    return search.outcome() if space is None else _of_some_cuts(search.outcome(), lower)


def _of_some_cuts(found: Outcome, lower: int) -> Outcome:
    """Return what an outcome for some of the possible cuts says of all of them."""
    proof = Proof.UNKNOWN if found.plan is None else Proof.FEASIBLE
    return replace(found, proof=proof, bound=lower)


@dataclass(slots=True)
class StateSearch:
    """One search: the nodes, the stage table, what is known, and the values at which an answer can change."""

    space: StateSpace
    table: StageTable
    known: Incumbent
    _values: Times = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def tables(self) -> Tables:
        """The cost tables."""
        return self.table.tables

    def run(self) -> None:
        """Search until the bound meets the plan, or the limits are used up; then look for a tidier plan."""
        with contextlib.suppress(StoppedError):
            self._run()

    def _run(self) -> None:
        """Ask from below: first what stages alone allow, then the least value at which a plan could be, or above.

        While proposals are refused, questions go further up, in doubling steps: a yes there is an upper limit.
        Where only plans below some value are of use, the first question is whether stages allow any.
        """
        if self.known.limits.below is not None and not self.known.closed:
            reach = self.reach(self.known.upper - 1)
            if reach is not None and reach.depth is None:
                self.known.lower = self.known.upper
        self._values = self.table.candidates(self.known.lower, self.known.upper)
        self._raise()
        further = 0
        while not self.known.closed and not self.known.over():
            values = self._between()
            if not len(values):
                self.known.lower = self.known.upper
            elif self._propose(int(values[min(further, (len(values) - 1) // 2)])):
                further = 0
            else:
                further = 2 * further + 1
                self._raise(nearby=True)
            self.known.tell()
        if self.known.plan is not None and self.known.closed:
            self.ask(self.known.upper, thorough=True)

    def outcome(self) -> Outcome:
        """Say what came of the search."""
        refused = self.table.refused
        fits = f"; {refused} stages fit in no way of splitting" if refused else ""
        found = self.known.outcome(questions(self.known.asked) + fits)
        # Forms of a plan are proposals, which are priced: chains are leant on where they refused something.
        return replace(found, unused=() if refused else ("ATOMS",))

    def ask(self, threshold_ns: int, *, thorough: bool = False) -> bool | None:
        """Tell whether a plan takes at most the threshold, and keep it if so; None if stopped before the answer.

        ``thorough``: look through all slots for the plan with the fewest devices, not for the first plan.
        """
        self.known.asked += 1
        while not self.known.over():
            reach = self.reach(threshold_ns, thorough=thorough)
            if reach is None:
                return None
            if reach.depth is None:
                return False
            if self._take(reach, threshold_ns):
                return True
        return None

    def reach(self, threshold_ns: int, *, thorough: bool = False) -> StateReach | None:
        """Return what is reached, up to the first plan or ``thorough``; None if stopped before that."""
        return reach_at(self.space, self.table, threshold_ns, thorough=thorough)

    def _between(self) -> Times:
        """Return the values from ``lower`` to below ``upper`` at which the answer can change."""
        values = self._values[(self._values >= self.known.lower) & (self._values < self.known.upper)]
        exact = self.table.exact_times(self.known.lower, self.known.upper)
        return np.union1d(values, exact) if len(exact) else values

    def _raise(self, *, nearby: bool = False) -> None:
        """Raise the lower limit to the least value at which stages, as far as they are known, make up a plan.

        No forms are looked at on the way. ``nearby``: it is expected among the first values.
        """
        values = self._between()
        low, high, step = 0, len(values), 1
        while low < high:
            at = min((low + high) // 2, low + step - 1) if nearby else (low + high) // 2
            reach = self.reach(int(values[at]))
            if reach is None:
                break
            if reach.depth is None:
                low, step = at + 1, 2 * step
                self.known.lower = int(values[low]) if low < len(values) else self.known.upper
                self.known.tell()
            else:
                high = at
        self.known.lower = int(values[low]) if low < len(values) else self.known.upper

    def _propose(self, threshold_ns: int) -> bool:
        """Tell whether the first plan that stages make up within the threshold has forms too; keep it if so."""
        self.known.asked += 1
        reach = self.reach(threshold_ns)
        return reach is not None and reach.depth is not None and self._take(reach, threshold_ns)

    def _take(self, reach: StateReach, threshold_ns: int) -> bool:
        """Tell whether the plan of what is reached has forms within the threshold; keep it if so."""
        path = path_of(reach, self.tables)
        plan = None if path is None else self.table.with_forms(path, threshold_ns)
        if plan is not None:
            self.known.take(plan, threshold_ns)
        return plan is not None
