"""The fixed orders on any placement: where a search starts, and what its result is compared with.

What a search for an order claims, and the check that every claim must pass.

The check executes the schedule on the timeline and counts its memory there, which shares nothing with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipecut.formulation.outcome import FalseClaimError, Proof
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.naive import naive
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import Action, Kind, PipelineSchedule, ScheduleError
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.timeline.timeline import run
from pipecut_literature.orders.problem import OrderProblem

FIXED: tuple[Callable[[int, int], PipelineSchedule], ...] = (naive, gpipe, one_f_one_b, zero_bubble_h1)
"""Builders: stages and micro-batches in, schedule out. Only the last has split backward passes."""


@dataclass(frozen=True, slots=True)
class Executed:
    """A schedule, how long it takes by the timeline, and the peak of each rank (none without a footprint)."""

    schedule: PipelineSchedule
    makespan_ns: int
    peak_bytes: tuple[int, ...]

    def fits(self, problem: OrderProblem) -> bool:
        """Tell whether every rank has the memory."""
        return all(peak <= most for peak, most in zip(self.peak_bytes, problem.memory_bytes or (), strict=True))


def execute(problem: OrderProblem, schedule: PipelineSchedule) -> Executed:
    """Run a schedule on the timeline. Raises what ``timeline.run`` raises. Cost: that of ``timeline.run``."""
    timeline = run(schedule, problem.durations, problem.execution)
    footprint = problem.footprint
    ranks = range(problem.ranks) if footprint is not None else ()
    peaks = (footprint.over_time(timeline, rank).peak_bytes for rank in ranks if footprint is not None)
    return Executed(schedule, timeline.makespan_ns, tuple(peaks))


def fixed_orders(problem: OrderProblem) -> dict[str, Executed]:
    """Return every fixed order that answers the problem, by name, whether it fits into memory or not.

    A schedule of whole backward passes answers a split problem too: ``W`` right after ``I``, as if they were one
    (its gradients travel a little earlier than those of ``B``). One with split passes answers split problems only.
    Where stages share ranks, a rank takes its stages' actions as they would begin on ranks of their own, with
    times stretched: as everything takes time then, that order begins nothing before what it needs. Cost: linear in
    actions, and sorting.
    """
    found: dict[str, Executed] = {}
    for make in FIXED:
        schedule = make(problem.stages, problem.micro_batches)
        is_split = any(action.kind is Kind.INPUT_GRADIENT for action in schedule.actions(0))
        if is_split and not problem.split:
            continue
        found[schedule.name] = execute(problem, _placed(problem, schedule))
    interleaved_order = _interleaved(problem)
    if interleaved_order is not None:
        found[interleaved_order.name] = execute(problem, interleaved_order)
    return found


def _interleaved(problem: OrderProblem) -> PipelineSchedule | None:
    """Return Megatron's interleaved 1F1B if the placement is its own and the ranks divide the micro-batches."""
    ranks, stages = problem.ranks, problem.stages
    in_rounds = problem.stage_ranks == tuple(stage % ranks for stage in range(stages))
    if not in_rounds or ranks == stages or stages % ranks or problem.micro_batches % ranks:
        return None
    schedule = interleaved(ranks, stages // ranks, problem.micro_batches)
    rows = [list(schedule.actions(rank)) for rank in range(ranks)]
    return PipelineSchedule.of_actions(
        schedule.name, [[half for one in row for half in _halves(problem, one)] for row in rows]
    )


def least_memory(problem: OrderProblem) -> Executed:
    """Return the naive order, with the least peak on every rank that any order can have.

    In any order a micro-batch at the last stage is in flight at every stage before, and on its way back it holds
    at every stage what it holds in the naive order; there nothing else is held beside it.
    """
    return execute(problem, _placed(problem, naive(problem.stages, problem.micro_batches)))


def _placed(problem: OrderProblem, schedule: PipelineSchedule) -> PipelineSchedule:
    rows: list[list[tuple[int, Action]]] = [[] for _ in range(problem.ranks)]
    timeline = run(schedule, problem.stretched().durations, problem.execution)
    for stage, rank in enumerate(problem.stage_ranks):
        rows[rank] += [(start, action) for action, start, _ in timeline.actions(stage)]
    ordered = [[action for _, action in sorted(row, key=lambda one: one[0])] for row in rows]
    return PipelineSchedule.of_actions(
        schedule.name, [[half for one in row for half in _halves(problem, one)] for row in ordered]
    )


def _halves(problem: OrderProblem, action: Action) -> list[Action]:
    """Return the actions that take the place of one: both halves of a backward pass where they are apart."""
    if action.kind is not Kind.BACKWARD or not problem.split:
        return [action]
    kinds = Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT
    return [Action(action.stage, kind, action.micro_batch) for kind in kinds]


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
