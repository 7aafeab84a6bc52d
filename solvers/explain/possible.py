"""Is there any plan at all? The layered model without the families that price a plan.

What is left says what a plan is and what it needs: families 1 to 4, memory, and the demands of the user. Redundant
families on memory and on alike servers keep the answer "no" short.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ortools.sat.python import cp_model

from formulation.costs.memory import MemoryParts
from formulation.costs.tables import Tables, all_tables
from formulation.evaluate import evaluate
from formulation.limits.deadline import StoppedError, in_time
from formulation.outcome import Limits
from formulation.problem.constraints import Goal, OnHost, Recompute
from formulation.problem.instance import Instance
from formulation.problem.modes import Mode
from formulation.problem.plan import Plan
from formulation.schedules.keeps import Keeps
from solvers.cpsat.base.engine import found, make_solver, run
from solvers.cpsat.base.families import Family
from solvers.cpsat.base.reading import read_plan
from solvers.cpsat.constraints.clocks import TIME_FAMILIES
from solvers.cpsat.constraints.placing import post_alike
from solvers.cpsat.model import FAMILIES, build_model
from solvers.cpsat.valid import floors, staircase
from solvers.search.fitting import fitting_plans
from solvers.search.incumbent import price_of

Possibility = tuple[Instance, Plan]
"""An instance with everything chosen, and a plan of it."""


@dataclass(slots=True)
class Possible:
    """Answers "is there a plan?" about variants of one instance, within limits that all questions share.

    The limits are begun.
    """

    limits: Limits
    questions: int = 0
    _known: list[Plan] = field(default_factory=list)
    _tables: dict[object, Tables] = field(default_factory=dict)

    def plan(self, instance: Instance, *, likely: bool = False, quick: bool = False) -> Possibility | None:
        """Return any plan that keeps every rule, or None if it is proved that there is none, whatever is chosen.

        The instance that comes back has the training that was chosen of those that are left open. Where a plan is
        ``likely``, more simple ones are tried first; with ``quick`` nothing else is.

        Raises StoppedError where the limits end the question, and FalseClaimError if the evaluator finds a
        rule broken. Cost: for each choice one model and one search; tables are shared by variants that differ in
        memory only. A plan of an earlier answer, or a simple one that fits, saves both.
        """
        self.limits.deadline.check()
        self.questions += 1
        # Small micro-batches take the least memory, so they are the likeliest to have a plan.
        every = sorted(instance.training.choices, key=lambda one: -one.micro_batches)
        parts = [replace(instance, training=one) for one in every]
        stopped = False
        for known in (True, False):
            for at, one in enumerate(parts):
                try:
                    asked = self.share(len(parts) - at) if len(parts) > 1 else self
                    plan = asked._known_plan(one) if known else asked._searched(one, likely=likely, quick=quick)
                except StoppedError:
                    stopped = True
                    continue
                if plan is not None:
                    return one, self._remember(plan)
        if stopped:
            raise StoppedError
        return None

    def _known_plan(self, instance: Instance) -> Plan | None:
        """Return a plan of an earlier answer that is one of this instance too."""
        known = in_time(reversed(self._known), self.limits.deadline)
        return next((plan for plan in known if evaluate(instance, plan).feasible), None)

    def _searched(self, instance: Instance, *, likely: bool, quick: bool) -> Plan | None:
        """Return any plan of one training, or None if there is none. Raises as :meth:`plan` does."""
        if instance.constraints.memory and least_total_bytes(instance) > total_capacity_bytes(instance):
            return None
        if instance.training.chunks > 1:
            raise StoppedError  # the model below knows one stage a group
        simple = fitting_plans(instance, thorough=likely, deadline=self.limits.deadline)
        for plan in in_time(simple, self.limits.deadline):
            if evaluate(instance, plan).feasible:
                return plan
        if quick:
            raise StoppedError
        try:
            tables = self._tables_of(instance)
        except ValueError as error:  # too large to be searched: nothing is known
            raise StoppedError from error
        timed = any(limit.goal in (Goal.BOTTLENECK, Goal.ITERATION_TIME) for limit in instance.constraints.at_most)
        families = [family for family in FAMILIES if timed or family not in TIME_FAMILIES]
        memory = Family(101, "staircase", staircase(floors(tables)))
        v = build_model(tables, None, [*families, memory, Family(103, "alike", post_alike)])
        status = run(solver := make_solver(self.limits), v.model, self.limits.deadline.over)
        if status == cp_model.INFEASIBLE:
            return None
        if not found(status):
            raise StoppedError
        plan = read_plan(v, solver)
        price_of(instance, plan, "explain")
        return plan

    def _remember(self, plan: Plan) -> Plan:
        """Keep a plan, the latest last."""
        if plan in self._known:
            self._known.remove(plan)
        self._known.append(plan)
        return plan

    def share(self, parts: int) -> Possible:
        """Return one that has only this part of the time that is left; what they learn, they share."""
        return replace(self, limits=self.limits.share(parts))

    def _tables_of(self, instance: Instance) -> Tables:
        """Return tables for an instance, the same for all with these groups: times depend on no other demand."""
        constraints = instance.constraints
        classes = tuple(instance.class_index(server) for server in range(len(instance.servers)))
        sizes = instance.demands.devices_per_stage
        modes = (
            constraints.recompute,
            constraints.recompute_layers,
            constraints.sharded,
            constraints.optimizer_on_host,
        )
        modes = (sizes, constraints.tensor_parallel_degrees, *modes)
        key = (constraints.placement, constraints.max_servers, *modes, classes, instance.layers, instance.training)
        if key not in self._tables:
            self._tables[key] = all_tables(instance, self.limits.deadline)
        return replace(self._tables[key], instance=instance, deadline=self.limits.deadline)


def least_total_bytes(instance: Instance) -> int:
    """Return what the devices of any plan hold together at least, however layers are divided or copied.

    The weights and their gradients, the optimiser's state, and what is kept for as many micro-batches as are in
    flight in the last stage; for none where single blocks may be computed again, one after another.
    """
    constraints = instance.constraints
    on_host = constraints.optimizer_on_host is not OnHost.NEVER
    kept = {Recompute.NEVER: Keeps.in_slot(instance.training, 0).in_flight, Recompute.BLOCKS: 0}
    return (
        MemoryParts.undivided(instance)
        .times(Keeps(versions=1, in_flight=kept.get(constraints.recompute, 1)), Mode(optimizer_on_host=on_host))
        .lasting
    )


def total_capacity_bytes(instance: Instance) -> int:
    """Return the memory of all devices together."""
    return sum(server.devices * server.device_class.memory_bytes for server in instance.servers)
