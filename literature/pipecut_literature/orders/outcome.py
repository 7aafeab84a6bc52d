"""What a search for an order claims, and the check that every claim must pass.

The check executes the schedule on the timeline and counts its memory there, which shares nothing with the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipecut.formulation.outcome import FalseClaimError, Proof
from pipecut.formulation.schedules.table import PipelineSchedule, ScheduleError
from pipecut_literature.orders.fixed import Executed, execute, least_memory
from pipecut_literature.orders.problem import OrderProblem


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """The best order found, how long a step takes in it, a proven lower limit of all orders, and the proof.

    ``start`` names the fixed order that the search began with; ``notes`` say in words what a reader should know.
    """

    proof: Proof
    schedule: PipelineSchedule | None
    makespan_ns: int | None
    bound_ns: int | None
    seconds: float
    start: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float | None:
        """``(makespan - bound) / makespan``; None without both."""
        if self.makespan_ns is None or self.bound_ns is None:
            return None
        return (self.makespan_ns - self.bound_ns) / self.makespan_ns


def checked(problem: OrderProblem, outcome: OrderOutcome) -> OrderOutcome:
    """Return the outcome if its claim holds; raise FalseClaimError saying what does not.

    The schedule must do every action of the problem where it belongs, take on the timeline exactly as long as
    claimed, and keep within the memory of every rank. Proof and bound are held to their meaning. "Infeasible" is
    held to the order that needs the least memory. Cost: that of ``timeline.run``.
    """
    problems = list(_contradictions(outcome))
    if outcome.proof is Proof.INFEASIBLE and least_memory(problem).fits(problem):
        problems.append("claimed infeasible, but the naive order fits into memory")
    if outcome.schedule is not None:
        problems += _executed(problem, outcome.schedule, outcome.makespan_ns)
    if problems:
        raise FalseClaimError("order of actions: " + "; ".join(problems))
    return outcome


def _executed(problem: OrderProblem, schedule: PipelineSchedule, makespan_ns: int | None) -> list[str]:
    """Return what the timeline says against a schedule."""
    asked = {(stage, kind, m) for stage, kind in problem.passes() for m in range(problem.micro_batches)}
    done = [one for rank in range(schedule.ranks) for one in schedule.actions(rank)]
    if len(done) != len(asked) or {(one.stage, one.kind, one.micro_batch) for one in done} != asked:
        return ["the schedule's actions are not those of the problem"]
    if schedule.stage_ranks != tuple((rank,) for rank in problem.stage_ranks):
        return [f"stages are on ranks {schedule.stage_ranks}, expected {problem.stage_ranks}"]
    try:
        found = execute(problem, schedule)
    except ScheduleError as error:
        return [str(error)]
    wrong = []
    if found.makespan_ns != makespan_ns:
        wrong.append(f"claimed {makespan_ns} ns, the timeline takes {found.makespan_ns} ns")
    return wrong + list(memory_excess(problem, found))


def memory_excess(problem: OrderProblem, found: Executed) -> list[str]:
    """Return in words where an executed schedule takes more memory than there is."""
    pairs = enumerate(zip(found.peak_bytes, problem.memory_bytes or (), strict=True))
    return [
        f"rank {rank} holds {peak} bytes at its peak and has {most} bytes"
        for rank, (peak, most) in pairs
        if peak > most
    ]


def _contradictions(outcome: OrderOutcome) -> list[str]:
    """Return what is wrong with a claim in itself, whatever the problem."""
    schedule, makespan, bound, proof = outcome.schedule, outcome.makespan_ns, outcome.bound_ns, outcome.proof
    checks = (
        ((schedule is None) != (makespan is None), f"claimed {makespan} ns with schedule {schedule}"),
        (schedule is None and proof in (Proof.OPTIMAL, Proof.FEASIBLE), f"claimed {proof} without a schedule"),
        (schedule is not None and proof in (Proof.INFEASIBLE, Proof.UNKNOWN), f"claimed {proof} with a schedule"),
        (proof is Proof.OPTIMAL and bound != makespan, f"claimed optimal with bound {bound} and {makespan} ns"),
        (
            bound is not None and makespan is not None and bound > makespan,
            f"bound {bound} ns above the makespan {makespan} ns",
        ),
    )
    return [message for wrong, message in checks if wrong]
