"""Memory in the trace: a counter for each stage, and one for each rank that holds several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from formulation.timeline.footprint import DeviceMemory, Footprint
from report.curve import curve_of
from report.simulation import Simulation
from report.trace.events import DEVICES, TraceRow, counter


def memory_counters(simulation: Simulation) -> Iterator[str]:
    """Yield what is held on the fullest device from moment to moment, stage by stage, each in order of time.

    Cost: for each rank, linear in its actions times its stages squared.
    """
    timeline, footprint = simulation.timeline, simulation.made.footprint
    for rank, stages in enumerate(simulation.ranks):
        for stage in stages:
            held = of_stage(footprint, stage).over_time(timeline, rank)
            yield from _curve(f"memory of stage {stage}", rank, held, footprint.static_bytes[stage])
        if len(stages) > 1:
            static = sum(footprint.static_bytes[stage] for stage in stages)
            yield from _curve(f"memory of rank {rank}", rank, footprint.over_time(timeline, rank), static)


def of_stage(footprint: Footprint, stage: int) -> Footprint:
    """Return a footprint in which only one stage holds anything."""
    columns = (getattr(footprint, column.name) for column in fields(footprint))
    return Footprint(
        *(tuple(value if at == stage else 0 for at, value in enumerate(column)) for column in columns)
    )


def _curve(name: str, rank: int, memory: DeviceMemory, static_bytes: int) -> Iterator[str]:
    """Yield what is held from 0 on, wherever it changes."""
    before = None
    for time_ns, held_bytes in ({0: static_bytes} | curve_of(memory)).items():
        if held_bytes != before:
            yield counter(TraceRow(DEVICES, rank), name, time_ns, held_bytes)
            before = held_bytes
