"""All events of a trace, in order: names, passes, the network, arrows that follow each tensor, memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from formulation.schedules.actions import Kind
from formulation.schedules.dependencies import NONE
from formulation.timeline.updates import JOIN, SYNC
from report.simulation import Simulation
from report.trace.about import About
from report.trace.events import DEVICES, NETWORK, TraceRow, arrow, process, slice_of, thread
from report.trace.memory import memory_counters
from report.trace.rows import Lasting, NetworkRows, rows_of
from report.wording import printable

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
        servers, plan = self.simulation.instance.servers, self.simulation.plan
        yield from process(DEVICES, "devices")
        for rank, stages in enumerate(self.simulation.ranks):
            counts = plan.stages[stages[0]].group.counts
            group = " + ".join(f"{count} x {printable(servers[server].name)}" for server, count in counts)
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
