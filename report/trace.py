"""The whole run as a trace for Perfetto (ui.perfetto.dev) and ``chrome://tracing``.

Process 1 holds the devices: a row for each rank with its passes, and the memory of each stage as a counter.
Process 2 holds the network: messages between stages and synchronisations. In the Trace Event Format two slices of
one row either lie apart or one inside the other, and importers drop what does not; so whatever may happen at the
same time as another has a row of its own (``report.trace``).

Single events of the Trace Event Format, each as JSON on one line.

The format counts in microseconds; nanoseconds are written as exact decimals of them, never through a
floating-point number. Whoever writes a slice brings its ``args`` as JSON, since most of it is the same for
thousands of them.

What slices say of themselves: stage, layers, micro-batch, bytes, and whether they are critical.

``bytes`` is, of a message, what it sends; of a forward pass, what each device holds from then on for the backward
pass; of a backward pass, what each device has no more to hold; of a synchronisation or an update, the weights of
the stage.

Memory in the trace: a counter for each stage, and one for each rank that holds several.

Which row every message and synchronisation is drawn in: as few rows as keep those of one time apart.

All events of a trace, in order: names, passes, the network, arrows that follow each tensor, memory.

A run that was measured, as a trace in the form of the simulated one: both can be looked at side by side.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from pipecut.formulation.constraints.constraint import devices_of
from pipecut.formulation.costs import times
from pipecut.formulation.schedules.table import NONE, Kind
from pipecut.formulation.timeline.critical_path import critical_chain
from pipecut.formulation.timeline.measures import DeviceMemory, Footprint
from pipecut.formulation.timeline.program import JOIN, SYNC
from pipecut.report.content import curve_of
from pipecut.report.simulation import Simulation
from pipecut.report.wording import printable

DEVICES, NETWORK = 1, 2
"""The two processes."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """Where a slice is drawn: its process, and its thread there."""

    process: int
    thread: int


def microseconds(time_ns: int) -> str:
    """Return nanoseconds as an exact decimal of microseconds: 1234 is ``1.234``."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def quoted(value: object) -> str:
    """Return a value as JSON."""
    return json.dumps(value)


def process(number: int, name: str) -> list[str]:
    """Return the name of a process and its place among the processes."""
    return [
        _about("process_name", TraceRow(number, 0), "name", name),
        _order("process_sort_index", TraceRow(number, 0), number),
    ]


def thread(row: TraceRow, name: str) -> list[str]:
    """Return the name of a row and its place in its process."""
    return [_about("thread_name", row, "name", name), _order("thread_sort_index", row, row.thread)]


def _order(kind: str, row: TraceRow, place: int) -> str:
    return _about(kind, row, "sort_index", place)


def _about(kind: str, row: TraceRow, key: str, value: object) -> str:
    return json.dumps(
        {"ph": "M", "name": kind, "pid": row.process, "tid": row.thread, "args": {key: value}},
        separators=(",", ":"),
    )


def slice_of(row: TraceRow, name: str, category: str, start_ns: int, stop_ns: int, args: str) -> str:
    """Return something that lasts; ``name`` and ``category`` have no character that JSON escapes."""
    head = f'{{"ph":"X","pid":{row.process},"tid":{row.thread},"name":"{name}","cat":"{category}"'
    return f'{head},"ts":{microseconds(start_ns)},"dur":{microseconds(stop_ns - start_ns)},"args":{args}}}'


def arrow(phase: str, number: int, row: TraceRow, time_ns: int) -> str:
    """Return the start (``s``), a step (``t``) or the end (``f``) of an arrow, at a slice of this moment."""
    ends = ',"bp":"e"' if phase == "f" else ""
    head = f'{{"ph":"{phase}","id":{number},"pid":{row.process},"tid":{row.thread},"name":"tensor","cat":"tensor"'
    return f'{head},"ts":{microseconds(time_ns)}{ends}}}'


def counter(row: TraceRow, name: str, time_ns: int, size_bytes: int) -> str:
    """Return what is held from a moment on; counters belong to a process and are told apart by their names."""
    head = f'{{"ph":"C","pid":{row.process},"tid":{row.thread},"name":"{name}","ts":{microseconds(time_ns)}'
    return f'{head},"args":{{"bytes":{size_bytes}}}}}'


@dataclass(frozen=True, slots=True)
class About:
    """The ``args`` of slices, as JSON. ``bytes_of[stage][kind]`` of passes, ``weights[stage]`` of updates."""

    stages: tuple[str, ...]
    bytes_of: tuple[dict[int, int], ...]
    weights: tuple[int, ...]
    cuts: tuple[int, ...]
    critical: frozenset[tuple[int, bool]]

    @classmethod
    def of(cls, simulation: Simulation) -> About:
        """Collect what is the same for all slices of a stage."""
        instance, plan = simulation.instance, simulation.plan
        footprint = simulation.made.footprint
        spans = [stage.span for stage in plan.stages]
        names: list[str] = []
        for index, span in enumerate(spans):
            first, last = (printable(instance.layers[at].name) for at in (span.first, span.stop - 1))
            layers = first if len(span) == 1 else f"{first} … {last} ({len(span)})"
            names.append(f'"stage":{index},"layers":{quoted(layers)}')
        return cls(
            stages=tuple(names),
            bytes_of=tuple(
                {
                    Kind.FORWARD: whole,
                    Kind.BACKWARD: whole,
                    Kind.INPUT_GRADIENT: whole - rest,
                    Kind.WEIGHT_GRADIENT: rest,
                }
                for whole, rest in zip(footprint.stash_bytes, footprint.weight_stash_bytes, strict=True)
            ),
            weights=tuple(sum(instance.parameter_bytes[span.first : span.stop]) for span in spans),
            cuts=tuple(times.cut_bytes(instance, span.first) for span in spans[1:]),
            critical=frozenset((event.entry, event.transfer) for event in critical_chain(simulation.timeline)),
        )

    def entry(self, at: int, stage: int, kind: int, micro_batch: int) -> str:
        """Return the args of a pass, a synchronisation or an update."""
        size = self.bytes_of[stage].get(kind, self.weights[stage])
        return self._args(f"{self.stages[stage]}", micro_batch, size, (at, False))

    def message(self, at: int, stage: int, forward: bool, micro_batch: int) -> str:
        """Return the args of the message that an entry of a stage sends."""
        to, boundary = (stage + 1, stage) if forward else (stage - 1, stage - 1)
        return self._args(f'{self.stages[stage]},"to_stage":{to}', micro_batch, self.cuts[boundary], (at, True))

    def _args(self, head: str, micro_batch: int, size: int, step: tuple[int, bool]) -> str:
        critical = "true" if step in self.critical else "false"
        return f'{{{head},"micro_batch":{micro_batch},"bytes":{size},"critical":{critical}}}'


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


@dataclass(frozen=True, slots=True)
class Lasting:
    """An entry of the program, or its message, that lasts; ``family`` orders and ``name`` names its rows."""

    entry: int
    family: tuple[int, ...]
    name: str
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class NetworkRows:
    """The rows of the network: their names in order, and the row of every entry."""

    names: tuple[str, ...]
    row_of: dict[int, TraceRow]

    def described(self) -> Iterator[str]:
        """Yield the metadata events of all rows."""
        for at, name in enumerate(self.names):
            yield from thread(TraceRow(NETWORK, at), name)


def rows_of(lasting: Iterable[Lasting]) -> NetworkRows:
    """Put everything that lasts into rows. Cost: n log n.

    The first row of a family has its name; further ones, which are there only if things of the family happen at
    the same time, have a number behind it, from 2 on.
    """
    families: dict[tuple[int, ...], list[Lasting]] = {}
    for one in lasting:
        families.setdefault(one.family, []).append(one)
    names: list[str] = []
    row_of: dict[int, TraceRow] = {}
    for family in sorted(families):
        members = families[family]
        lanes = lanes_of([(one.start_ns, one.stop_ns) for one in members])
        for one, lane in zip(members, lanes, strict=True):
            row_of[one.entry] = TraceRow(NETWORK, len(names) + lane)
        name = members[0].name
        names += [name if lane == 0 else f"{name} ({lane + 1})" for lane in range(max(lanes) + 1)]
    return NetworkRows(tuple(names), row_of)


def lanes_of(intervals: list[tuple[int, int]]) -> list[int]:
    """Return a lane for each interval (start, stop), always the lowest free one, so that none overlap in a lane.

    Taken by start, this needs no more lanes than there are intervals at the busiest moment. One that stops when
    another starts does not overlap it. Cost: n log n.
    """
    lanes = [0] * len(intervals)
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # (stop, lane), the first to stop on top
    opened = 0
    for at in sorted(range(len(intervals)), key=lambda one: intervals[one]):
        start, stop = intervals[at]
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if free:
            lanes[at] = heapq.heappop(free)
        else:
            lanes[at], opened = opened, opened + 1
        heapq.heappush(taken, (stop, lanes[at]))
    return lanes


CATEGORIES = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "S": "synchronisation",
    "U": "optimiser",
}


def trace_of(simulation: Simulation) -> str:
    """Return the trace as JSON text, one event a line. Cost: linear in actions, n log n in messages."""
    events = [*_Writer.of(simulation).events(), *memory_counters(simulation)]
    return '{"displayTimeUnit":"ns","traceEvents":[\n' + ",\n".join(events) + "\n]}\n"


@dataclass(frozen=True, slots=True)
class _Writer:
    """The columns of a timeline as lists, which give up single numbers quickly, and what its slices say."""

    simulation: Simulation
    about: About
    rank_of: dict[int, int]
    stage: list[int]
    kind: list[int]
    micro_batch: list[int]
    link: list[int]
    start_ns: list[int]
    stop_ns: list[int]
    depart_ns: list[int]
    arrive_ns: list[int]

    @classmethod
    def of(cls, simulation: Simulation) -> _Writer:
        program, times = simulation.timeline.program, simulation.timeline.times
        columns = [program.stage, program.kind, program.micro_batch, program.link]
        columns += [times.start_ns, times.stop_ns, times.depart_ns, times.arrive_ns]
        rank_of = {stage: rank for rank, stages in enumerate(simulation.ranks) for stage in stages}
        return cls(simulation, About.of(simulation), rank_of, *(column.tolist() for column in columns))

    def events(self) -> Iterator[str]:
        """Yield everything but memory."""
        network = rows_of([*self._messages(), *self._synchronisations()])
        yield from self._names(network)
        for at, kind in enumerate(self.kind):
            if kind != JOIN:
                yield self._entry(at, kind, network)
        yield from self._sent(network)

    def _names(self, network: NetworkRows) -> Iterator[str]:
        instance, plan = self.simulation.instance, self.simulation.plan
        yield from process(DEVICES, "devices")
        for rank, stages in enumerate(self.simulation.ranks):
            group = printable(devices_of(instance, plan.stages[stages[0]].group.counts))
            held = f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
            yield from thread(TraceRow(DEVICES, rank), f"{held}: {group}")
        if network.names:
            yield from process(NETWORK, "network")
        yield from network.described()

    def _messages(self) -> Iterator[Lasting]:
        """Yield the messages; their rows are in order of boundaries, activations first."""
        for at in self._senders():
            stage, forward = self.stage[at], self.kind[at] == Kind.FORWARD
            name = f"activations {stage} to {stage + 1}" if forward else f"gradients {stage} to {stage - 1}"
            family = (0, stage, 0) if forward else (0, stage - 1, 1)
            yield Lasting(at, family, name, self.depart_ns[at], self.arrive_ns[at])

    def _synchronisations(self) -> Iterator[Lasting]:
        """Yield the synchronisations, which may go on beside the passes of their devices."""
        for at, kind in enumerate(self.kind):
            if kind == SYNC:
                stage = self.stage[at]
                name = f"synchronisation of stage {stage}"
                yield Lasting(at, (1, stage), name, self.start_ns[at], self.stop_ns[at])

    def _senders(self) -> list[int]:
        return [at for at, link in enumerate(self.link) if link != NONE]

    def _entry(self, at: int, kind: int, network: NetworkRows) -> str:
        stage, micro_batch, letter = (
            self.stage[at],
            self.micro_batch[at],
            self.simulation.timeline.program.letter(at),
        )
        row = network.row_of[at] if kind == SYNC else TraceRow(DEVICES, self.rank_of[stage])
        args = self.about.entry(at, stage, kind, micro_batch)
        name = f"{stage}{letter}{micro_batch}"
        return slice_of(row, name, CATEGORIES[letter], self.start_ns[at], self.stop_ns[at], args)

    def _sent(self, network: NetworkRows) -> Iterator[str]:
        """Yield the messages, each with its arrow: from its pass over its row to the pass that takes it."""
        needs = self.simulation.timeline.program.needs.tolist()
        taker = {source: at for at, source in enumerate(needs) if source != NONE}
        for at in self._senders():
            stage, forward, micro_batch = self.stage[at], self.kind[at] == Kind.FORWARD, self.micro_batch[at]
            row, depart = network.row_of[at], self.depart_ns[at]
            name = f"{'activation' if forward else 'gradient'} {micro_batch}"
            args = self.about.message(at, stage, forward, micro_batch)
            yield slice_of(row, name, "transfer", depart, self.arrive_ns[at], args)
            target = taker[at]
            # An arrow belongs to the slice at its moment; at the stop of a pass that is the next one already.
            yield arrow(
                "s", at, TraceRow(DEVICES, self.rank_of[stage]), max(self.start_ns[at], self.stop_ns[at] - 1)
            )
            yield arrow("t", at, row, depart)
            yield arrow("f", at, TraceRow(DEVICES, self.rank_of[self.stage[target]]), self.start_ns[target])


def measured_trace(rows: Sequence[tuple[str, Iterable[tuple[str, str, int, int]]]]) -> str:
    """Return the trace of a step as JSON text, one event a line.

    ``rows`` are the devices: what each is called, and its actions with their tokens (``2F0``), the letter of their
    kind, start and stop in ns of one clock. The first start is time 0. Cost: linear in actions.
    """
    devices = [(name, list(actions)) for name, actions in rows]
    zero = min((start for _, actions in devices for _, _, start, _ in actions), default=0)
    events = process(DEVICES, "devices")
    for at, (name, actions) in enumerate(devices):
        row = TraceRow(DEVICES, at)
        events += thread(row, printable(name))
        events += [
            slice_of(row, token, CATEGORIES[letter], start - zero, stop - zero, "{}")
            for token, letter, start, stop in actions
        ]
    return '{"displayTimeUnit":"ns","traceEvents":[\n' + ",\n".join(events) + "\n]}\n"
