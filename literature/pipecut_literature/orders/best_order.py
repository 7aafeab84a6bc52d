"""The best order of a plan's actions: searched for, proved, and set beside the fixed orders of the same stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipecut.commands.searched_order import BEST
from pipecut.commands.terminal import terminal as human
from pipecut.formulation.costs.memory import capacity_bytes
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.schedules.table import PipelineSchedule, ScheduleError
from pipecut.formulation.timeline.from_plan import PlanRun
from pipecut.report.measures import Measure, Relation

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan
    from pipecut_literature.orders.fixed import OrderOutcome
    from pipecut_literature.orders.problem import OrderProblem
    from pipecut_literature.orders.solve import Comparison

PROOFS = {
    Proof.OPTIMAL: "proved: no order of these actions is shorter",
    Proof.FEASIBLE: "not proved: a shorter order may exist",
    Proof.INFEASIBLE: "proved: no order fits into memory",
}


class UnfitError(ScheduleError):
    """No order of a plan's actions fits into memory; the message says which rank lacks how many bytes."""


@dataclass(frozen=True, slots=True)
class BestOrder:
    """What the search for an order found: its outcome beside the fixed orders, and which of these was planned."""

    comparison: Comparison
    planned: str

    @property
    def outcome(self) -> OrderOutcome:
        """The claim of the search."""
        return self.comparison.outcome

    @property
    def proof(self) -> Proof:
        """What is proved of the order, or that there is none."""
        return self.outcome.proof

    @property
    def order(self) -> PipelineSchedule | None:
        """The best order, under the name of the fixed one that it is; None where none fits into memory."""
        return self.outcome.schedule

    @property
    def schedule(self) -> PipelineSchedule:
        """The best order found, also where it is a fixed one. Raises UnfitError where none fits into memory."""
        if self.outcome.schedule is None:
            raise UnfitError(f"schedule {BEST}: {'; '.join(self.shortfalls())}")
        return replace(self.outcome.schedule, name=BEST)

    def shortfalls(self) -> list[str]:
        """Say which ranks lack how many bytes even in the order that needs least, one micro-batch at a time."""
        from pipecut_literature.orders.fixed import least_memory

        problem = self.comparison.problem
        pairs = zip(least_memory(problem).peak_bytes, problem.memory_bytes or (), strict=True)
        return [
            f"no order fits into memory: rank {rank} lacks {peak - most:,} bytes; it has {most:,} and holds "
            f"{peak:,} even with one micro-batch at a time"
            for rank, (peak, most) in enumerate(pairs)
            if peak > most
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as plain data: times in ns; ``loss`` is a share of the best time, or null."""
        outcome, comparison = self.outcome, self.comparison
        losses = {name: comparison.loss(name) for name in comparison.fixed}
        return {
            "proof": str(outcome.proof),
            "makespan_ns": outcome.makespan_ns,
            "bound_ns": outcome.bound_ns,
            "gap": outcome.gap,
            "seconds": outcome.seconds,
            "planned": self.planned,
            "fixed": [
                {
                    "schedule": name,
                    "makespan_ns": executed.makespan_ns,
                    "fits": comparison.fits(name),
                    "loss": None if losses[name] is None else float(losses[name] or 0),
                }
                for name, executed in comparison.fixed.items()
            ],
            "notes": [*outcome.notes, *(self.shortfalls() if outcome.schedule is None else ())],
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return lines as pairs of key and words: what was proved of the order, and what each fixed one takes."""
        outcome = self.outcome
        if outcome.makespan_ns is None or outcome.bound_ns is None:
            return [("order", PROOFS[outcome.proof]), *(("", line) for line in self.shortfalls())]
        rows = [("order", f"{human.exact_duration(outcome.makespan_ns)} for one step, {PROOFS[outcome.proof]}")]
        if outcome.proof is not Proof.OPTIMAL:
            rows.append(("", f"no order is shorter than {human.exact_duration(outcome.bound_ns)}"))
        rows.append(("", f"searched in {outcome.seconds:.2f} s: {'; '.join(outcome.notes)}"))
        return rows + [("", line) for line in self.sentences()]

    def sentences(self) -> list[str]:
        """Say what every fixed order takes and loses, the planned one first."""
        names = sorted(self.comparison.fixed, key=lambda name: name != self.planned)
        return [self._sentence(name) for name in names]

    def _sentence(self, name: str) -> str:
        executed, loss = self.comparison.fixed[name], self.comparison.loss(name)
        taken = f"{name} takes {human.exact_duration(executed.makespan_ns)}"
        if not self.comparison.fits(name):
            return f"{taken}, but does not fit into memory"
        return f"{taken}, {human.gap(float(loss))} longer" if loss else f"{taken}, as short"

    def measures(self) -> list[Measure]:
        """Return the makespan beside the proved bound of any order, and beside the planned order that fits."""
        outcome = self.outcome
        if outcome.makespan_ns is None or outcome.bound_ns is None:
            return []
        relation = Relation.EXACT if outcome.proof is Proof.OPTIMAL else Relation.LEAST
        rows = [(relation, outcome.bound_ns, "proved: no order of these actions is shorter")]
        planned = self.comparison.fixed[self.planned]
        fits = self.comparison.fits(self.planned)
        words = f"{self.planned}, the same stages" + ("" if fits else ", which does not fit into memory")
        rows.append((Relation.MOST if fits else Relation.RELATED, planned.makespan_ns, words))
        return [
            Measure("makespan", "makespan of one step", "ns", outcome.makespan_ns, relation, number, source)
            for relation, number, source in rows
        ]

    def notes(self) -> list[str]:
        """Return what is said of the order in the notes of a claim: its proof, and what fixed orders take."""
        return [f"best order: {PROOFS[self.proof]}", *self.sentences()]


def best_order_of(instance: Instance, plan: Plan, limits: Limits) -> BestOrder:
    """Search for the order of the actions of one step in which it ends first, each stage a rank of its own.

    Backward passes are whole. Memory is a limit where the instance has it be one. A training without a flush is
    taken as 1F1B with one, as for every order that is given. Raises OrderError where no order can be sought, and
    FalseClaimError for a defect. Cost: that of ``pipecut_literature.orders.solve.solve``.
    """
    from pipecut_literature.orders.problem import OrderError
    from pipecut_literature.orders.solve import compare

    schedule, chunks = instance.training.schedule, instance.training.chunks
    if chunks > 1:
        raise OrderError(
            f"it searches orders of stages on devices of their own, and each group holds {chunks}: run the plan in"
            " the order of its training, or plan with training.chunks: 1 and a schedule other than zero_bubble_v"
        )
    planned = schedule if schedule.flushes else Schedule.ONE_F_ONE_B
    flushing = replace(instance, training=replace(instance.training, schedule=planned))
    return BestOrder(compare(_problem_of(flushing, plan), limits), str(planned))


def _problem_of(instance: Instance, plan: Plan) -> OrderProblem:
    from pipecut_literature.orders.problem import OrderProblem

    made = PlanRun.of(instance, plan)
    limited = instance.constraints.memory
    return OrderProblem(
        durations=made.durations,
        execution=made.execution,
        micro_batches=made.schedule.micro_batches,
        stage_ranks=tuple(range(len(plan))),
        footprint=made.footprint if limited else None,
        memory_bytes=tuple(capacity_bytes(instance, stage.group) for stage in plan.stages) if limited else None,
    )
