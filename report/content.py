"""Everything that a page shows, as plain data for JSON: the one source of its tables and pictures.

Times are whole nanoseconds and sizes whole bytes; a period or a share that is no whole number is a float.
The keys are described in ``docs/simulate.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from formulation import times
from formulation.groups import group_kind
from formulation.options import Combine
from formulation.outcome import Outcome
from formulation.timeline.footprint import DeviceMemory, memory_over_time
from formulation.timeline.measures import device_utilisation
from report.accounting import spent_of
from report.measures import measures_of
from report.simulation import Simulation
from report.window import EVENT_COLUMNS, events_of, shown_by_default, window_of

VERSION = 1
SAMPLES, LEAST_SAMPLES, MOST_SAMPLES = 3000, 40, 240
"""Parts of the run in which the curves of memory are drawn by the least and the most that is held: of all stages
together, and of one."""

Content = dict[str, Any]


def content_of(
    simulation: Simulation,
    *,
    scenario: str,
    outcome: Outcome | None = None,
    comparison: Mapping[str, Any] | None = None,
    shown: int | None = None,
) -> Content:
    """Return all numbers of a simulation; ``outcome`` is the claim of the solver that found the plan.

    ``comparison`` is what ``pipecut compare --json`` writes; ``shown`` how many micro-batches are drawn.
    """
    instance, training = simulation.instance, simulation.instance.training
    return {
        "format": "pipecut simulation",
        "version": VERSION,
        "scenario": scenario,
        "model": instance.name,
        "schedule": str(training.schedule),
        "micro_batches": training.micro_batches,
        "micro_batch_samples": training.micro_batch,
        "steps": simulation.steps,
        "micro_batches_run": simulation.micro_batches,
        "makespan_ns": simulation.timeline.makespan_ns,
        "claim": _claim(simulation, outcome, comparison),
        "measures": [asdict(one) for one in measures_of(simulation)],
        "servers": [
            {"name": one.name, "device_class": one.device_class.name, "devices": one.devices}
            for one in instance.servers
        ],
        "stages": _stages(simulation),
        "boundaries": _boundaries(simulation),
        "layers": _layers(simulation),
        "timeline": _timeline(simulation, shown),
        "comparison": None if comparison is None else dict(comparison),
    }


def _claim(
    simulation: Simulation, outcome: Outcome | None, comparison: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return objective, bound, gap and proof; of a given plan, with the bound that the comparison proved."""
    evaluation = simulation.evaluation
    objective = evaluation.objective
    bound = outcome.bound if outcome else (comparison or {}).get("bound")
    gap = None
    if evaluation.feasible and objective is not None and bound is not None:
        gap = (objective - bound) / objective if objective else 0.0
    largest = simulation.instance.cost.combine is Combine.MAX
    return {
        "solver": outcome.solver if outcome else None,
        "proof": str(outcome.proof) if outcome else None,
        "objective": objective,
        "meaning": f"{'the slowest' if largest else 'the sum'} of all stages and boundaries, per micro-batch",
        "bound": bound,
        "gap": gap,
        "seconds": outcome.seconds if outcome else None,
        "notes": list(outcome.notes) if outcome else [],
        "broken_rules": [f"{one.rule}: {one.message}" for one in evaluation.violations],
    }


def _stages(simulation: Simulation) -> list[dict[str, Any]]:
    instance, durations = simulation.instance, simulation.made.durations
    spent, busy = spent_of(simulation), device_utilisation(simulation.timeline)
    objective = simulation.evaluation.objective or 0
    rows: list[dict[str, Any]] = []
    for index, (stage, cost) in enumerate(zip(simulation.plan.stages, simulation.evaluation.stages, strict=True)):
        memory = memory_over_time(simulation.timeline, simulation.made.footprint, index)
        largest = instance.cost.combine is Combine.MAX and objective > 0
        rows.append(
            {
                "first_layer": instance.layers[stage.span.first].name,
                "last_layer": instance.layers[stage.span.stop - 1].name,
                "layers": len(stage.span),
                "devices": [[server, devices] for server, devices in stage.group.counts],
                "forward_ns": durations.forward_ns[index],
                "backward_ns": durations.backward_ns[index],
                "sync_ns": durations.sync_ns[index],
                "price": asdict(cost),
                "utilisation": float(busy[index]),
                "utilisation_formula": cost.total_ns / objective if largest else None,
                "peak_bytes": memory.peak_bytes,
                "peak_ns": memory.peak_ns,
                "peak_bytes_formula": cost.memory_bytes,
                "capacity_bytes": cost.capacity_bytes,
                "memory": _samples(memory, simulation),
                "spent": asdict(spent[index]),
            }
        )
    return rows


def _samples(memory: DeviceMemory, simulation: Simulation) -> list[list[int]]:
    """Return the curve as (time, bytes from then on); of a long one, the extremes of equal parts of the run."""
    limit = min(MOST_SAMPLES, max(LEAST_SAMPLES, SAMPLES // len(simulation.plan)))
    makespan = max(1, simulation.timeline.makespan_ns)
    points = list(zip(memory.time_ns.tolist(), memory.held_bytes.tolist(), strict=True))
    kept: dict[int, int] = dict(points)  # of several at one moment, the last is what goes on being held
    if memory.peak_ns in kept:
        kept[memory.peak_ns] = max(kept[memory.peak_ns], memory.peak_bytes)
    rows = [[time, held] for time, held in kept.items()]
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
    return [
        {
            "bytes": times.cut_bytes(simulation.instance, after.span.first),
            "activation_ns": durations.activation_ns[index],
            "gradient_ns": durations.gradient_ns[index],
            "price_ns": simulation.evaluation.stages[index + 1].boundary_ns,
        }
        for index, after in enumerate(stages[1:])
    ]


def _layers(simulation: Simulation) -> list[list[Any]]:
    """Return (name, stage, compute time of one micro-batch) of every layer."""
    instance = simulation.instance
    rows: list[list[Any]] = []
    for index, stage in enumerate(simulation.plan.stages):
        kind = group_kind(instance, stage.group)
        rows += [
            [instance.layers[layer].name, index, times.compute_ns(instance, layer, kind)]
            for layer in stage.span.layers
        ]
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
