"""Everything that a page shows, as plain data for JSON: the one source of its tables and pictures.

Times are whole nanoseconds and sizes whole bytes; a period or a share that is no whole number is a float.
The keys are described in ``docs/simulate.md``.

What a device holds over time, each moment once.

How the objective follows from the times of stages and boundaries, which a page lists.

Which part of a long run is drawn: its beginning and its end; and what happens in them, event by event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipecut.formulation.constraints.constraint import told
from pipecut.formulation.costs import times
from pipecut.formulation.costs.prices import form_of, updates_ns
from pipecut.formulation.outcome import GoalClaim, Outcome
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.schedules.table import NONE, Integers, Kind, positions
from pipecut.formulation.timeline.critical_path import critical_chain, parts_of_chain
from pipecut.formulation.timeline.measures import DeviceMemory, TimelineMeasures
from pipecut.formulation.timeline.program import JOIN
from pipecut.formulation.timeline.timeline import Timeline
from pipecut.report.claims import (
    boundaries_paid,
    claims_to_list,
    meaning_of,
    scope_to_dict,
    slowest,
    slowest_in_words,
    split_in_words,
)
from pipecut.report.measures import Measure, spent_of, throughput_of
from pipecut.report.simulation import Simulation, peak_formula_bytes


def curve_of(memory: DeviceMemory) -> dict[int, int]:
    """Return the bytes that are held from each moment on, in order of time.

    Of several values at one moment the last goes on being held. At the first moment of the peak it is the peak,
    also where an action that takes no time gives it back at once.
    """
    curve = dict(zip(memory.time_ns.tolist(), memory.held_bytes.tolist(), strict=True))
    curve[memory.peak_ns] = memory.peak_bytes
    return curve


def sums_of(simulation: Simulation) -> dict[str, Any]:
    """Return the sum and the largest of all times, and how the objective follows; None where it does not.

    With what the largest is ``called`` for this goal, and what it ``means``.
    """
    costs, instance = simulation.evaluation.stages, simulation.instance
    terms = [cost.total_ns for cost in costs]
    if boundaries_paid(instance):
        terms += [cost.boundary_ns for cost in costs[1:]]
    together, largest = sum(terms), max(terms)
    value, words = _objective(simulation, together, largest)
    follows = words if simulation.evaluation.objective == value else None
    called, means = slowest_in_words(instance)
    return {"sum_ns": together, "largest_ns": largest, "follows": follows, "called": called, "means": means}


def _objective(simulation: Simulation, together: int, largest: int) -> tuple[int | None, str]:
    """Return what the first goal should be worth by these times, and that in words."""
    instance = simulation.instance
    training, steps = instance.training, instance.training.micro_batches
    goal = instance.goals[0]
    if goal is Goal.BOTTLENECK:
        if instance.cost.combine is Combine.SUM:
            return together, "the sum of all times"
        return largest, "the largest time"
    if goal is not Goal.ITERATION_TIME:
        return None, ""
    if not training.schedule.flushes:
        return steps * largest, f"{steps:,} times the largest time, once a micro-batch"
    if training.schedule is Schedule.NAIVE:
        return steps * together, f"{steps:,} times the sum of all times, once a micro-batch"
    return together + (steps - 1) * largest, f"the sum of all times, and {steps - 1:,} times the largest"


ACTIVATION, GRADIENT = "a", "g"
"""Kinds of events of messages; passes and updates have the letters of their actions."""
EVENT_COLUMNS = ("kind", "stage", "micro_batch", "start_ns", "stop_ns", "critical")
"""What an event is, as a row of data; ``stage`` of a message is the one before the boundary that it crosses."""
MOST_SHOWN = 32
LEAST_SHOWN = 8
EVENTS_SHOWN = 1200
"""Passes that a picture should not exceed by much."""
LEAST_HIDDEN = 8
"""A gap in the picture has to leave out at least a share of 1 / LEAST_HIDDEN of the time."""

Row = list[int | str]


@dataclass(frozen=True, slots=True)
class Window:
    """The time that is drawn: up to ``head_stop_ns``, and from ``tail_start_ns`` on; equal: everything."""

    head_stop_ns: int
    tail_start_ns: int

    @property
    def whole(self) -> bool:
        """Tell whether nothing is left out."""
        return self.head_stop_ns == self.tail_start_ns


def shown_by_default(stages: int) -> int:
    """Return how many micro-batches a readable picture of so many stages shows."""
    return min(MOST_SHOWN, max(LEAST_SHOWN, EVENTS_SHOWN // (2 * stages)))


def window_of(timeline: Timeline, shown: int) -> Window:
    """Return the time until half of ``shown`` micro-batches reach the last stage, and that from the last half on.

    A run that has no more than ``shown`` of them, or where hardly anything would be left out, is drawn whole.
    """
    total, makespan = timeline.schedule.micro_batches, timeline.makespan_ns
    half = max(1, shown // 2)
    if total > shown and total >= 2 * half:
        forward = positions(timeline.schedule, Kind.FORWARD)[-1, half - 1]
        backward = positions(timeline.schedule, Kind.BACKWARD, Kind.INPUT_GRADIENT)[-1, total - half]
        head, tail = int(timeline.times.stop_ns[forward]), int(timeline.times.start_ns[backward])
        if (tail - head) * LEAST_HIDDEN > makespan:
            return Window(head, tail)
    return Window(makespan, makespan)


def events_of(timeline: Timeline, window: Window) -> list[Row]:
    """Return passes, updates and messages that touch the window, as rows of EVENT_COLUMNS."""
    critical = {(event.entry, event.transfer) for event in critical_chain(timeline)}
    return [*_entries(timeline, window, critical), *_messages(timeline, window, critical)]


Critical = set[tuple[int, bool]]


def _entries(timeline: Timeline, window: Window, critical: Critical) -> Iterator[Row]:
    program, times = timeline.program, timeline.times
    for at in _touching(times.start_ns, times.stop_ns, window):
        if program.kind[at] == JOIN:
            continue
        yield [
            program.letter(at),
            int(program.stage[at]),
            int(program.micro_batch[at]),
            int(times.start_ns[at]),
            int(times.stop_ns[at]),
            int((at, False) in critical),
        ]


def _messages(timeline: Timeline, window: Window, critical: Critical) -> Iterator[Row]:
    program, times = timeline.program, timeline.times
    for at in _touching(times.depart_ns, times.arrive_ns, window):
        if program.link[at] == NONE:
            continue
        forward = int(program.kind[at]) == Kind.FORWARD
        yield [
            ACTIVATION if forward else GRADIENT,
            int(program.stage[at]) - (0 if forward else 1),
            int(program.micro_batch[at]),
            int(times.depart_ns[at]),
            int(times.arrive_ns[at]),
            int((at, True) in critical),
        ]


def _touching(start_ns: Integers, stop_ns: Integers, window: Window) -> list[int]:
    """Return the indices of those that lie in the window, at least in part."""
    return ((start_ns < window.head_stop_ns) | (stop_ns > window.tail_start_ns)).nonzero()[0].tolist()


VERSION = 2
SAMPLES, LEAST_SAMPLES, MOST_SAMPLES = 3000, 40, 240
"""Parts of the run in which the curves of memory are drawn by the least and the most that is held: of all ranks
together, and of one."""

Content = dict[str, Any]


def content_of(
    simulation: Simulation,
    *,
    scenario: str,
    outcome: Outcome | None = None,
    comparison: Mapping[str, Any] | None = None,
    shown: int | None = None,
    against: Mapping[str, Any] | None = None,
    plan_name: str | None = None,
) -> Content:
    """Return all numbers of a simulation; ``outcome`` is the claim of the solver that found the plan.

    ``comparison`` is what ``pipecut compare --json`` writes; ``shown`` how many micro-batches are drawn;
    ``against`` the content of another plan of the same problem, to be shown beside this one; ``plan_name`` what a
    given plan is called.
    """
    instance = simulation.instance
    numbers, plan = summary_of(simulation), simulation.plan
    updates = [updates_ns(instance, stage)[0] for stage in plan.stages]
    ranks = numbers.pop("ranks")
    measures = numbers.pop("measures")
    return {
        "format": "pipecut simulation",
        "version": VERSION,
        "scenario": scenario,
        "model": instance.name,
        "plan": plan_name,
        "peak_bytes": max(rank["peak_bytes"] for rank in ranks),
        "devices_used": sum(simulation.plan.stages[rank["stages"][0]].group.devices for rank in ranks),
        **numbers,
        "claim": _claim(simulation, outcome, comparison) | {"sums": sums_of(simulation)},
        "measures": measures,
        "servers": [
            {"name": one.name, "device_class": one.device_class.name, "devices": one.devices}
            for one in instance.servers
        ],
        "stages": _stages(simulation),
        "ranks": [rank | {"memory": _memory(simulation, at)} for at, rank in enumerate(ranks)],
        "boundaries": _boundaries(simulation),
        "layers": _layers(simulation),
        "splits": {str(form): words for form, words in simulation.plan.splits().items()},
        "chain": [asdict(part) for part in parts_of_chain(simulation.timeline, updates)],
        "timeline": _timeline(simulation, shown),
        "against": None if against is None else dict(against),
        "comparison": None if comparison is None else dict(comparison),
    }


def summary_of(simulation: Simulation) -> Content:
    """Return the run in numbers, without what is only drawn: ``measures``, and ``ranks`` without their curves."""
    training, ranks = simulation.instance.training, _ranks(simulation)
    groups = [simulation.plan.stages[rank["stages"][0]].group for rank in ranks]
    samples, took = simulation.micro_batches * training.micro_batch, simulation.timeline.makespan_ns
    return {
        "schedule": simulation.schedule,
        "micro_batches": training.micro_batches,
        "micro_batch_samples": training.micro_batch,
        "steps": simulation.steps,
        "micro_batches_run": simulation.micro_batches,
        "makespan_ns": took,
        "throughput": throughput_of(simulation.instance, groups, samples, took, simulation.steps),
        "measures": [asdict(one) for one in Measure.all_of(simulation)],
        "ranks": ranks,
    }


def _claim(
    simulation: Simulation, outcome: Outcome | None, comparison: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return objective, bound, gap and proof; of a given plan, with the bound that the comparison proved."""
    evaluation = simulation.evaluation
    objective = evaluation.objective
    bound = outcome.bound if outcome else (comparison or {}).get("bound")
    gap, claims = None, () if outcome is None else outcome.claims
    comparable = simulation.priced or outcome is not None  # no bound speaks of a plan that shares its devices
    if comparable and evaluation.feasible and objective is not None and bound is not None:
        gap = GoalClaim(simulation.instance.goals[0], objective, bound).gap
    goal, *_ = simulation.instance.goals
    return {
        "solver": outcome.solver if outcome else None,
        "proof": str(outcome.proof) if outcome else None,
        "objective": objective,
        "goal": str(goal),
        "unit": goal.unit,
        "meaning": meaning_of(simulation.instance),
        "further": claims_to_list(claims[1:]) or _values(simulation),
        "scope": scope_to_dict(simulation.instance),
        "bound": bound,
        "gap": gap,
        "seconds": outcome.seconds if outcome else None,
        "notes": [*(outcome.notes if outcome else ()), *_priced_otherwise(simulation)],
        "broken_rules": [f"{one.rule}: {one.message}" for one in evaluation.violations],
        "breaks": [f"{rule}: {message}" for rule, message in told(evaluation.violations)],
    }


def _values(simulation: Simulation) -> list[dict[str, Any]]:
    """Return the values of the goals after the first, about which nothing is claimed."""
    further = zip(simulation.instance.goals[1:], simulation.evaluation.further, strict=True)
    return claims_to_list([GoalClaim(goal, value, None, looked_at=False) for goal, value in further])


def _priced_otherwise(simulation: Simulation) -> list[str]:
    """Say of a plan in another order that its objective is not that of this run."""
    if simulation.priced:
        return []
    planned = simulation.instance.training.schedule
    return [f"priced under {planned}, each stage on devices of its own; run as {simulation.schedule}"]


def _stages(simulation: Simulation) -> list[dict[str, Any]]:
    instance, durations = simulation.instance, simulation.made.durations
    largest, _ = slowest(instance, simulation.evaluation.stages)
    chunk, total = instance.training.chunk_in_words, len(simulation.plan)
    rank_of = {stage: rank for rank, stages in enumerate(simulation.ranks) for stage in stages}
    return [
        {
            "rank": rank_of[index],
            "first_layer": instance.layers[stage.span.first].name,
            "last_layer": instance.layers[stage.span.stop - 1].name,
            "layers": len(stage.span),
            "devices": [[server, devices] for server, devices in stage.group.counts],
            **stage.fields([layer.name for layer in instance.layers]),
            "degree": stage.group.tensor_parallel_degree,
            "warm_up": stage.warm_up,
            "shared": ", ".join(filter(None, (chunk(index, total), stage.shared_in_words))),
            "split": split_in_words(instance, stage),
            "forward_ns": durations.forward_ns[index],
            "backward_ns": durations.backward_ns[index],
            "recompute_ns": durations.recompute_ns[index],
            "sync_ns": durations.sync_ns[index],
            "price": cost.fields(),
            "memory": asdict(cost.memory),
            "slowest": largest[index],
        }
        for index, (stage, cost) in enumerate(
            zip(simulation.plan.stages, simulation.evaluation.stages, strict=True)
        )
    ]


def _ranks(simulation: Simulation) -> list[dict[str, Any]]:
    costs, bottleneck = simulation.evaluation.stages, simulation.bottleneck_ns
    spent, busy, peaks = (
        spent_of(simulation),
        TimelineMeasures(simulation.timeline).device_utilisation,
        peak_formula_bytes(simulation),
    )
    rows: list[dict[str, Any]] = []
    for rank, stages in enumerate(simulation.ranks):
        memory = simulation.made.footprint.over_time(simulation.timeline, rank)
        rows.append(
            {
                "stages": list(stages),
                "utilisation": float(busy[rank]),
                "utilisation_formula": sum(costs[at].total_ns for at in stages) / bottleneck
                if bottleneck
                else None,
                "peak_bytes": memory.peak_bytes,
                "peak_ns": memory.peak_ns,
                "peak_bytes_formula": peaks[rank],
                "capacity_bytes": costs[stages[0]].capacity_bytes,
                "spent": asdict(spent[rank]),
            }
        )
    return rows


def _memory(simulation: Simulation, rank: int) -> list[list[int]]:
    return _samples(simulation.made.footprint.over_time(simulation.timeline, rank), simulation)


def _samples(memory: DeviceMemory, simulation: Simulation) -> list[list[int]]:
    """Return the curve as (time, bytes from then on); of a long one, the extremes of equal parts of the run."""
    limit = min(MOST_SAMPLES, max(LEAST_SAMPLES, SAMPLES // len(simulation.ranks)))
    makespan = max(1, simulation.timeline.makespan_ns)
    rows = [[time, held] for time, held in curve_of(memory).items()]
    if len(rows) <= 2 * limit:
        return rows
    parts: dict[int, list[list[int]]] = {}
    for row in rows:
        parts.setdefault(row[0] * limit // makespan, []).append(row)
    drawn: list[list[int]] = []
    for part in parts.values():
        ends = {id(row): row for row in (min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1]))}
        drawn += sorted(ends.values())
    return drawn


def _boundaries(simulation: Simulation) -> list[dict[str, Any]]:
    durations, stages = simulation.made.durations, simulation.plan.stages
    costs, paid = simulation.evaluation.stages, boundaries_paid(simulation.instance)
    _, largest = slowest(simulation.instance, costs)
    return [
        {
            "bytes": times.cut_bytes(simulation.instance, after.span.first),
            "activation_ns": durations.activation_ns[index],
            "gradient_ns": durations.gradient_ns[index],
            "price_ns": costs[index + 1].boundary_ns,
            "paid": paid,
            "slowest": largest[index + 1],
        }
        for index, after in enumerate(stages[1:])
    ]


def _layers(simulation: Simulation) -> list[list[Any]]:
    """Return (name, stage, compute time of one micro-batch, bytes of parameters, form) of every layer.

    The form is null for a layer that is not split, or that follows the one before it.
    """
    instance = simulation.instance
    rows: list[list[Any]] = []
    for index, stage in enumerate(simulation.plan.stages):
        kind = GroupKind.of(instance, stage.group)
        divided = stage.group.tensor_parallel_degree > 1
        for layer, form in zip(stage.span.layers, stage.forms, strict=True):
            spent = times.compute_ns(instance, layer, form_of(instance, stage, layer), kind)
            one = instance.layers[layer]
            shown = form if divided and one.split is not Split.FOLLOW else None
            rows.append([one.name, index, spent, one.parameter_bytes, shown])
    return rows


def _timeline(simulation: Simulation, shown: int | None) -> dict[str, Any]:
    timeline = simulation.timeline
    window = window_of(timeline, shown or shown_by_default(len(simulation.plan)))
    return {
        "head_stop_ns": window.head_stop_ns,
        "tail_start_ns": window.tail_start_ns,
        "whole": window.whole,
        "event_columns": list(EVENT_COLUMNS),
        "events": events_of(timeline, window),
    }
