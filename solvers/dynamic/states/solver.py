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
import time
from dataclasses import dataclass, field, replace

import numpy as np

from formulation.certificates.states import suffixes
from formulation.constraints.violation import told
from formulation.costs.tables import FORBIDDEN, Tables, Times, all_tables, possible_kinds
from formulation.evaluate import evaluate
from formulation.limits.deadline import StoppedError
from formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof, begin
from formulation.problem.cuts import CutSpace, cut_space
from formulation.problem.instance import Instance
from formulation.problem.options import BoundaryCharge, Combine, Goal
from formulation.problem.plan import Plan
from solvers.dynamic.states.paths import path_of
from solvers.dynamic.states.reach import StateReach, reach_at
from solvers.dynamic.states.states import StateSpace, state_space
from solvers.dynamic.tables.atom_tables import atom_tables
from solvers.dynamic.tables.stage_table import StageTable
from solvers.dynamic.tables.stage_times import check_size
from solvers.search.first_plan import first_plan
from solvers.search.stoppable import STOPPED, stoppable, tell_first
from solvers.search.support import Support, sized

NAME = "state_dp"


def reason_against(instance: Instance) -> str | None:
    """Return None if the dynamic programme sees the whole instance, else what it does not see."""
    cost, constraints = instance.cost, instance.constraints
    if instance.goals[0] is not Goal.BOTTLENECK:
        return f"states bound the bottleneck, the first goal is {instance.goals[0]}"
    if cost.combine is not Combine.MAX:
        return "states bound the slowest stage, combine is 'sum'"
    if cost.boundary_charge is not BoundaryCharge.LINK:
        return "states need stages whose time is their own, boundary_charge is 'receiver'"
    # Where stages may be cut is seen by what is offered (formulation.problem.cuts).
    offered = ("no_cut", "together", "devices_per_stage")
    unseen = [name for name in instance.demands.named() if name not in offered]
    if instance.demands.devices_per_stage and not sizes_are_narrowed(instance):
        unseen.append("devices_per_stage")
    unseen += [one.name for one in constraints.own]
    unseen += ["at_most"] if constraints.at_most else []
    return f"states do not see the constraints {', '.join(unseen)}" if unseen else None


def sizes_are_narrowed(instance: Instance) -> bool:
    """Tell whether numbers of devices are limited so that only groups that keep to it are possible."""
    return any(size <= instance.devices for size in instance.demands.devices_per_stage)


@sized
def accepts(instance: Instance) -> Support:
    """Say what the programme makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    reason = reason_against(instance)
    if reason is not None:
        return Support(reason=reason)
    suffixes(instance)
    runs = cut_space(instance).stops
    return Support(proves=True, bytes_needed=check_size(len(possible_kinds(instance)), runs))


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None, space: CutSpace | None = None) -> Outcome:
    """Find the best plan and prove it, or the best within the limits with an honest bound.

    Among plans of the same time it looks for few devices, then few stages. With a ``space``
    of some of the possible places only plans cut there are looked at: nothing is then proved but what work says.
    Raises ValueError where :func:`reason_against` has one, where there are too many states, and as
    ``solvers.dynamic.tables.stage_times.stage_times`` does.
    """
    reason = reason_against(instance)
    if reason is not None:
        raise ValueError(reason)
    began_s, limits = time.monotonic(), begin(limits)
    lower = tell_first(instance, limits)
    tables = all_tables(instance, limits.deadline)
    first = first_plan(tables)
    price = None if first is None else evaluate(instance, first).objective
    limits.progress(Progress(price, lower))
    try:
        table = StageTable(atom_tables(tables, space or cut_space(instance)))
        search = Search(state_space(table.tables), table, limits, lower=lower)
    except StoppedError:
        if first is None:
            raise
        return Outcome(NAME, Proof.FEASIBLE, first, price, lower, time.monotonic() - began_s, (STOPPED,))
    search.began_s = began_s
    if first is not None and price is not None:
        search.plan, search.upper = first, price
    search.run()
    return search.outcome() if space is None else _of_some_cuts(search.outcome(), lower)


def _of_some_cuts(found: Outcome, lower: int) -> Outcome:
    """Return what an outcome for some of the possible cuts says of all of them."""
    proof = Proof.UNKNOWN if found.plan is None else Proof.FEASIBLE
    return replace(found, proof=proof, bound=lower)


@dataclass(slots=True)
class Search:
    """One search: the best plan and its price (``upper``), the proved lower limit, the thresholds asked.

    Without a plan ``upper`` is above every value that a plan can have.
    """

    space: StateSpace
    table: StageTable
    limits: Limits
    plan: Plan | None = None
    lower: int = 0
    upper: int = FORBIDDEN
    asked: int = 0
    began_s: float = field(default_factory=time.monotonic)
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
        """
        self._values = self.table.candidates(self.lower, self.upper)
        self._raise()
        further = 0
        while self.lower < self.upper and not self.over():
            values = self._between()
            if not len(values):
                self.lower = self.upper
            elif self._propose(int(values[min(further, (len(values) - 1) // 2)])):
                further = 0
            else:
                further = 2 * further + 1
                self._raise(nearby=True)
            self._tell()
        if self.plan is not None and self.lower >= self.upper:
            self.ask(self.upper, thorough=True)

    def outcome(self) -> Outcome:
        """Say what came of the search."""
        proof = Proof.UNKNOWN if self.plan is None else Proof.FEASIBLE
        if self.lower >= self.upper:
            proof = Proof.INFEASIBLE if self.plan is None else Proof.OPTIMAL
        return Outcome(
            solver=NAME,
            proof=proof,
            plan=self.plan,
            objective=None if self.plan is None else self.upper,
            bound=None if proof is Proof.INFEASIBLE else self.lower,
            seconds=time.monotonic() - self.began_s,
            notes=(
                f"{self.asked} thresholds asked of {len(self.space.node_state)} nodes,"
                f" {self.table.refused} stages refused",
            ),
        )

    def over(self) -> bool:
        """Tell whether the limits are used up."""
        return self.limits.deadline.over()

    def ask(self, threshold_ns: int, *, thorough: bool = False) -> bool | None:
        """Tell whether a plan takes at most the threshold, and keep it if so; None if stopped before the answer.

        ``thorough``: look through all slots for the plan with the fewest devices, not for the first plan.
        """
        self.asked += 1
        while not self.over():
            reach = self.reach(threshold_ns, thorough=thorough)
            if reach is None:
                return None
            path = path_of(reach, self.tables)
            if path is None:
                return False
            plan = self.table.with_forms(path, threshold_ns)
            if plan is not None:
                self._take(plan, threshold_ns)
                return True
        return None

    def reach(self, threshold_ns: int, *, thorough: bool = False, closed: bool = False) -> StateReach | None:
        """Return what is reached, up to the first plan or ``thorough``; None if stopped before that."""
        return reach_at(self.space, self.table, threshold_ns, thorough=thorough, closed=closed)

    def _between(self) -> Times:
        """Return the values from ``lower`` to below ``upper`` at which the answer can change."""
        values = self._values[(self._values >= self.lower) & (self._values < self.upper)]
        exact = self.table.exact_times(self.lower, self.upper)
        return np.union1d(values, exact) if len(exact) else values

    def _tell(self) -> None:
        self.limits.progress(Progress(None if self.plan is None else self.upper, self.lower))

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
                self.lower = int(values[low]) if low < len(values) else self.upper
                self._tell()
            else:
                high = at
        self.lower = int(values[low]) if low < len(values) else self.upper

    def _propose(self, threshold_ns: int) -> bool:
        """Tell whether the first plan that stages make up within the threshold has forms too; keep it if so."""
        self.asked += 1
        reach = self.reach(threshold_ns)
        path = None if reach is None else path_of(reach, self.tables)
        plan = None if path is None else self.table.with_forms(path, threshold_ns)
        if plan is not None:
            self._take(plan, threshold_ns)
        return plan is not None

    def _take(self, plan: Plan, threshold_ns: int) -> None:
        """Keep a plan at the evaluator's price, which must keep every rule and the promise of the threshold."""
        found = evaluate(self.table.instance, plan)
        if found.violations or found.objective is None or found.objective > threshold_ns:
            broken = "; ".join(message for _, message in told(found.violations))
            raise FalseClaimError(
                f"{NAME}: a plan of at most {threshold_ns} ns takes {found.objective} ns; {broken}"
            )
        self.plan, self.upper = plan, found.objective
