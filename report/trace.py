"""The whole run as a trace for Perfetto (ui.perfetto.dev) and ``chrome://tracing``.

The Trace Event Format counts in microseconds; nanoseconds are written as exact decimals of them, never through a
floating-point number. Process 1 holds the devices, process 2 the links; arrows lead a tensor from the pass that
makes it over its link to the pass that takes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from formulation.actions import FORWARD
from formulation.schedules.dependencies import NONE
from formulation.timeline.program import LETTERS
from formulation.timeline.updates import JOIN
from report.simulation import Simulation

DEVICES, LINKS = 1, 2
CATEGORIES = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "S": "synchronisation",
    "U": "optimiser",
}


def trace_of(simulation: Simulation) -> str:
    """Return the trace as JSON text, one event a line."""
    events = [*_names(simulation), *_entries(simulation), *_messages(simulation)]
    return '{"displayTimeUnit":"ns","traceEvents":[\n' + ",\n".join(events) + "\n]}\n"


def microseconds(time_ns: int) -> str:
    """Return nanoseconds as an exact decimal of microseconds: 1234 is ``1.234``."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _names(simulation: Simulation) -> Iterator[str]:
    servers = simulation.instance.servers
    yield _name("process_name", DEVICES, 0, "devices")
    for rank, stages in enumerate(simulation.ranks):
        counts = simulation.plan.stages[stages[0]].group.counts
        group = " + ".join(f"{count} x {servers[server].name}" for server, count in counts)
        held = f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
        yield _name("thread_name", DEVICES, rank, f"{held}: {group}")
    if len(simulation.plan) > 1:
        yield _name("process_name", LINKS, 0, "links")
    for boundary in range(len(simulation.plan) - 1):
        yield _name("thread_name", LINKS, 2 * boundary, f"activations {boundary} to {boundary + 1}")
        yield _name("thread_name", LINKS, 2 * boundary + 1, f"gradients {boundary + 1} to {boundary}")


def _name(kind: str, process: int, thread: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}})


def _entries(simulation: Simulation) -> Iterator[str]:
    program, moments = simulation.timeline.program, simulation.timeline.times
    rank_of = _rank_of(simulation)
    for at in (program.kind != JOIN).nonzero()[0].tolist():
        category = CATEGORIES[LETTERS[int(program.kind[at])]]
        yield _slice(
            (DEVICES, rank_of[int(program.stage[at])]),
            program.label(at),
            category,
            int(moments.start_ns[at]),
            int(moments.stop_ns[at]),
        )


def _messages(simulation: Simulation) -> Iterator[str]:
    program, moments = simulation.timeline.program, simulation.timeline.times
    rank_of = _rank_of(simulation)
    taker = {source: at for at, source in enumerate(program.needs.tolist()) if source != NONE}
    for at in (program.link != NONE).nonzero()[0].tolist():
        forward, stage = int(program.kind[at]) == FORWARD, int(program.stage[at])
        place = (LINKS, 2 * stage if forward else 2 * stage - 1)
        depart, arrive = int(moments.depart_ns[at]), int(moments.arrive_ns[at])
        name = f"{'activation' if forward else 'gradient'} {int(program.micro_batch[at])}"
        yield _slice(place, name, "transfer", depart, arrive)
        if at in taker:
            target = taker[at]
            yield _arrow("s", at, place, depart)
            yield _arrow("f", at, (DEVICES, rank_of[int(program.stage[target])]), int(moments.start_ns[target]))


def _rank_of(simulation: Simulation) -> dict[int, int]:
    """Return the rank that holds each stage."""
    return {stage: rank for rank, stages in enumerate(simulation.ranks) for stage in stages}


def _slice(place: tuple[int, int], name: str, category: str, start: int, stop: int) -> str:
    head = f'{{"ph":"X","pid":{place[0]},"tid":{place[1]},"name":{json.dumps(name)},"cat":{json.dumps(category)}'
    return f'{head},"ts":{microseconds(start)},"dur":{microseconds(stop - start)}}}'


def _arrow(phase: str, number: int, place: tuple[int, int], time_ns: int) -> str:
    ends = ',"bp":"e"' if phase == "f" else ""
    head = f'{{"ph":"{phase}","id":{number},"pid":{place[0]},"tid":{place[1]},"name":"tensor","cat":"tensor"'
    return f'{head},"ts":{microseconds(time_ns)}{ends}}}'
