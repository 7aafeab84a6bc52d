"""Clocks that a pass is timed with: the processor time of a thread, or events in the stream of a GPU.

A GPU computes behind the program that asks it to, so a time on the host says nothing of it. An event is put into
the stream between two kernels and notes when the GPU comes to it; the events of a turn are read when all of it is
done, so that reading them keeps nobody waiting in between.

A segment of a model run as a stage is, with the clock read at every change of layer.

Three kinds of passes take turns: one with the forward pass read, between its operators; one with the backward pass
read, where it comes to the operators of a layer; and one that nobody reads, against which sums can be held. The
clock is the processor time of the one thread that computes, or a GPU's (``execution.profiling``).

Times of single layers on this machine, taken inside segments of a model that are run as stages are.

A layer that is timed alone, on tensors of its own, takes longer than among its neighbours; so whole segments run
(``execution.profiling``), in an order drawn anew for every round. How fast the machine was just then is told
by a small matrix product; times are scaled to its median, and medians over the rounds count. A GPU computes where
torch finds one; the first round, nine passes of each segment, warms up.

Times of layers and of a link of this machine, measured in fresh processes and refused where unsteady.
"""

from __future__ import annotations

import copy
import itertools
import random
import resource
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import fx
from torch.utils import _pytree as pytree

from pipecut.execution.errors import RunFailedError
from pipecut.execution.processes.local import in_processes
from pipecut.execution.running.data import samples_like
from pipecut.execution.splitting.stages import ModelProgram, ModelStages, StageModule
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.ingest.graphs.layer_profile import LayerProfile, machine_name
from pipecut.ingest.torch.export import Inputs
from pipecut.ingest.torch.hugging_face import Configured
from pipecut.ingest.torch.source import load_model

CPU = torch.device("cpu")
COLD, PROBES = 2, 10
"""Products of a probe, one after another: first those that fill caches and do not count, then those that do."""
NS_PER_MS = 10**6


class PassClock(Protocol):
    """Stamps, and the ns between two of them once they are settled; ``device`` computes, ``side`` is a probe's."""

    @property
    def device(self) -> torch.device:
        """Where passes compute."""
        ...

    @property
    def side(self) -> int:
        """The side of the square matrices that a probe multiplies."""
        ...

    def stamp(self) -> Any:  # noqa: ANN401 (what only the clock can read)
        """Return now, to be compared once it is settled."""
        ...

    def settled(self) -> None:
        """Wait until all stamps so far can be read."""
        ...

    def between(self, one: Any, other: Any) -> float:  # noqa: ANN401
        """Return the ns from one settled stamp to a later one."""
        ...


@dataclass(frozen=True, slots=True)
class ThreadClock:
    """The processor time of this thread, which computes everything itself."""

    device: torch.device = CPU
    side: int = 192

    def stamp(self) -> int:
        """Return the time."""
        return time.thread_time_ns()

    def settled(self) -> None:
        """Wait for nothing."""

    def between(self, one: int, other: int) -> float:
        """Return the ns from one stamp to another."""
        return other - one


@dataclass(frozen=True, slots=True)
class StreamClock:
    """Events in the current stream of a GPU."""

    device: torch.device
    side: int = 4096

    def stamp(self) -> torch.cuda.Event:
        """Put an event behind what was asked for so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settled(self) -> None:
        """Wait until the GPU has done everything."""
        torch.cuda.synchronize(self.device)

    def between(self, one: torch.cuda.Event, other: torch.cuda.Event) -> float:
        """Return the ns from one event to another."""
        return one.elapsed_time(other) * NS_PER_MS


def clock_here() -> PassClock:
    """Return the clock of the device that is profiled here: the first GPU where torch finds one, else the CPU."""
    return clock_of(torch.device("cuda", 0) if torch.cuda.is_available() else CPU)


def clock_of(device: torch.device) -> PassClock:
    """Return the clock that passes on a device are timed with."""
    return StreamClock(device) if device.type == "cuda" else ThreadClock()


def processor_name(device: torch.device) -> str:
    """Return what a device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else machine_name()


def probe_ns(clock: PassClock) -> float:
    """Return the time of a small matrix product on one thread, the median of several: how fast the machine is now.

    What ran just before makes little difference to it. It does not go through the memory: the time of a large copy
    moves by several times what passes do, so that it told less of them.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    one = torch.ones(clock.side, clock.side, device=clock.device)
    clock.settled()
    stamps = [clock.stamp()]
    for _ in range(COLD + PROBES):
        one = one @ one * (1 / clock.side)
        stamps.append(clock.stamp())
    clock.settled()
    torch.set_num_threads(threads)
    return statistics.median(clock.between(*both) for both in itertools.pairwise(stamps[COLD:]))


THREAD = ThreadClock()
LIVE = 2
"""Micro-batches that went forward before one goes backward."""
READ_FORWARD, READ_BACKWARD, NOT_READ = range(3)
MICRO_BATCHES = 9
"""Of one turn: three of each kind."""
Marks = list[tuple[str, Any]]
"""Layers, each with the stamp of the clock at which it began."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """A pass of a kind from stamp to stamp, and the marks in it."""

    kind: int
    marks: Marks
    began: Any
    ended: Any


@dataclass(slots=True)
class _Passes:
    """The passes of a turn, forward and backward, to be read when the clock has settled."""

    forward: list[_Pass] = field(default_factory=list)
    backward: list[_Pass] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn of a segment took, in ns for a micro-batch: by layer, and the whole of what nobody read.

    ``probe_ns`` is the time of a small matrix product just then, ``faults`` the pages that the system gave.
    """

    forward: Mapping[str, float]
    backward: Mapping[str, float]
    whole: tuple[float, float]
    probe_ns: float
    faults: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A stage, the layer of each of its operators, what arrives at it, the gradients that come back, a clock."""

    stage: StageModule
    layer_of: Mapping[str, str]
    taken: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    gradients: Sequence[torch.Tensor]
    clock: PassClock


def segments_of(
    program: ModelProgram, stages: ModelStages, batch: Inputs, clock: PassClock = THREAD
) -> list[Segment]:
    """Return the stages of a model with what arrives at them. Cost: a forward pass."""
    layer_of = {node.name: program.layers[layer] for node, layer in program.flat.layer.items()}
    keywords = isinstance(batch, Mapping)
    values = stages.inputs(*(() if keywords else batch), **(dict(batch) if keywords else {}))
    found, given = [], ()
    for stage in stages:
        inputs = [values[one.name] for one in stage.inputs]
        taken = [one.detach() for one in given]
        with torch.no_grad():
            given = stage(*(one.clone() for one in taken), *inputs)
        gradients = [torch.randn_like(one) if one.is_floating_point() else one for one in given]
        found.append(Segment(stage, layer_of, taken, inputs, gradients, clock))
    return found


def turn(segment: Segment) -> Turn:
    """Run a turn of a segment, and forget its gradients."""
    clock = segment.clock
    pages, before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, probe_ns(clock)
    passes = _Passes()
    live: deque[tuple[int, Any, Marks]] = deque()
    for number in range(MICRO_BATCHES + LIVE):
        if number < MICRO_BATCHES:
            live.append(_forward(segment, number % 3, passes.forward))
        if number >= LIVE:
            _backward(segment, *live.popleft(), passes.backward)
    clock.settled()
    for one in segment.stage.parameters():
        one.grad = None
    both = (before + probe_ns(clock)) / 2
    faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages) / MICRO_BATCHES
    forward = _by_layer([one for one in passes.forward if one.kind == READ_FORWARD], clock)
    backward = _by_layer([one for one in passes.backward if one.kind == READ_BACKWARD], clock)
    unread = [[one for one in rows if one.kind == NOT_READ] for rows in (passes.forward, passes.backward)]
    whole = [_mean([clock.between(one.began, one.ended) for one in rows]) for rows in unread]
    return Turn(forward, backward, (whole[0], whole[1]), both, faults)


def _forward(segment: Segment, kind: int, passes: list[_Pass]) -> tuple[int, Any, Marks]:
    takes = segment.stage.takes
    both = zip(segment.taken, takes, strict=True)
    leaves = [one.detach().requires_grad_(handed.differentiable) for one, handed in both]
    arguments = segment.stage.arguments(*leaves, *segment.inputs)
    program = segment.stage.program_for([*leaves, *segment.inputs]).module
    marks: Marks = []
    if kind != NOT_READ:
        read = _read_forward if kind == READ_FORWARD else _read_backward
        program = read(program, segment.layer_of, marks, segment.clock)
    began = segment.clock.stamp()
    given = program(*arguments)
    passes.append(_Pass(kind, marks, began, segment.clock.stamp()))
    return kind, given, marks


def _backward(
    segment: Segment,
    kind: int,
    given: Sequence[torch.Tensor],
    marks: Marks,
    passes: list[_Pass],
) -> None:
    pairs = [(one, back) for one, back in zip(given, segment.gradients, strict=True) if one.requires_grad]
    if not pairs:
        return
    began = segment.clock.stamp()
    torch.autograd.backward([one for one, _ in pairs], [back for _, back in pairs])
    passes.append(_Pass(kind, marks, began, segment.clock.stamp()))


def _by_layer(passes: Sequence[_Pass], clock: PassClock) -> dict[str, float]:
    """Return the mean time of every layer in a pass: from each of its marks to the next one of any layer."""
    times: dict[str, list[float]] = defaultdict(list)
    for one in passes:
        spent: dict[str, float] = defaultdict(float)
        starts = [one.began, *(start for _, start in one.marks[1:])]
        for (layer, _), start, stop in zip(one.marks, starts, [*starts[1:], one.ended], strict=True):
            spent[layer] += clock.between(start, stop)
        for layer, taken in spent.items():
            times[layer].append(taken)
    return {layer: _mean(taken) for layer, taken in times.items()}


def _read_forward(
    program: fx.GraphModule, layer_of: Mapping[str, str], marks: Marks, clock: PassClock
) -> fx.GraphModule:
    """Return a program that marks the layer whenever it comes to another one."""

    def mark(layer: str) -> None:
        marks.append((layer, clock.stamp()))

    read, now = copy.deepcopy(program), ""
    for node in list(read.graph.nodes):
        layer = layer_of.get(node.name, now) if node.op == "call_function" else now
        if layer != now:
            with read.graph.inserting_before(node):
                read.graph.call_function(mark, (layer,))
        now = layer
    read.recompile()
    return read


def _read_backward(
    program: fx.GraphModule, layer_of: Mapping[str, str], marks: Marks, clock: PassClock
) -> fx.GraphModule:
    """Return a program whose backward passes mark the layer of every operator that they come to."""

    def hook(found: object, layer: str) -> None:
        for one in pytree.tree_leaves(found):
            if isinstance(one, torch.Tensor) and one.grad_fn is not None:
                one.grad_fn.register_prehook(lambda _: marks.append((layer, clock.stamp())))

    read = copy.deepcopy(program)
    for node in list(read.graph.nodes):
        if node.op == "call_function" and node.name in layer_of:
            with read.graph.inserting_after(node):
                read.graph.call_function(hook, (node, layer_of[node.name]))
    read.recompile()
    return read


def _mean(values: Iterable[float]) -> float:
    rows = list(values)
    return sum(rows) / len(rows) if rows else 0.0


LINK_BYTES = (1, 2**24)
ECHOES = 20


@dataclass(frozen=True, slots=True)
class ProfileJob:
    """What is to be profiled, in words that a new process understands; ``samples`` are sizes of micro-batches.

    ``at_once``: so many processes measure the same at the same time, as stages on devices do that share a memory.
    """

    model: str
    configured: Configured | None
    folder: Path
    samples: tuple[int, ...]
    segments: int
    rounds: int
    seed: int
    at_once: int = 1


@dataclass(frozen=True, slots=True)
class ProfiledPasses:
    """Times in ns for micro-batches of ``samples``: (forward, backward) of each layer, and of the whole model.

    ``spread`` is the distance of the quartiles of whole rounds, as a share of their median; ``faults`` the pages
    that the system gave for a micro-batch, on average; ``probe_ns`` the median time of the probes, to which all
    is scaled; ``drift`` the distance of their quartiles as a share of it, on a GPU, whose clocks should not move.
    """

    samples: int
    layers: dict[str, tuple[int, int]]
    whole: tuple[int, int]
    spread: float
    faults: float
    probe_ns: float
    drift: float = 0.0


def profile_layers(process: int, say: Callable[[Any], None], job: ProfileJob) -> list[ProfiledPasses]:
    """Measure the layers of a model for each size of micro-batch, with one thread. Raises ModelError.

    Where several processes do so at once, each draws orders of its own, and rounds begin together.

    Cost: an export for each size, and ``rounds`` times nine passes of the model.
    """
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    model, inputs = load_model(job.model, job.configured, job.folder)
    clock = clock_here()
    model.train().to(clock.device)
    found = []
    for many in job.samples:
        batch = pytree.tree_map_only(
            torch.Tensor, lambda one: one.to(clock.device), samples_like(inputs, many, job.seed)
        )
        program = ModelProgram.of(model, batch)
        stages = program.split(_equal_segments(len(program.layers), job.segments))
        segments = segments_of(program, stages, batch, clock)
        found.append(_times(many, segments, _rounds(segments, job, process)))
        say(many)
    return found


def _rounds(segments: Sequence[Segment], job: ProfileJob, process: int) -> list[list[Turn]]:
    """Return the turns of all segments, round by round; the first round, which warms up, is left out."""
    chance, rounds = random.Random(job.seed + process), []  # noqa: S311 (an order)
    for _ in range(job.rounds + 1):
        if job.at_once > 1:
            dist.barrier()
        order = chance.sample(range(len(segments)), len(segments))
        turns = {at: turn(segments[at]) for at in order}
        rounds.append([turns[at] for at in range(len(segments))])
    return rounds[1:]


def _times(samples: int, segments: Sequence[Segment], rounds: Sequence[Sequence[Turn]]) -> ProfiledPasses:
    """Return medians over rounds, each turn scaled by how fast the machine was."""
    usual = statistics.median(one.probe_ns for turns in rounds for one in turns)
    layers: dict[str, tuple[int, int]] = {}
    whole = [0.0, 0.0]
    for at, segment in enumerate(segments):
        scaled = [(turns[at], usual / turns[at].probe_ns) for turns in rounds]
        for name in segment.stage.layers:
            forward = _median(one.forward.get(name, 0) * factor for one, factor in scaled)
            layers[name] = forward, _median(one.backward.get(name, 0) * factor for one, factor in scaled)
        for way in (0, 1):
            whole[way] += _median(one.whole[way] * factor for one, factor in scaled)
    sums = [sum(sum(one.whole) * usual / one.probe_ns for one in turns) for turns in rounds]
    probes = [one.probe_ns for turns in rounds for one in turns]
    drift = _distance(probes) if segments[0].clock.device.type == "cuda" else 0.0
    faults = statistics.mean(one.faults for turns in rounds for one in turns)
    return ProfiledPasses(
        samples, layers, (round(whole[0]), round(whole[1])), _distance(sums), faults, usual, drift
    )


def _distance(values: Sequence[float]) -> float:
    """Return the distance of the quartiles as a share of the median."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return (high - low) / middle


def measure_link(process: int, say: Callable[[Any], None]) -> tuple[int, int]:
    """Return latency in ns and bandwidth in bit/s between two processes, by sending tensors there and back."""
    del say
    taken = []
    for size in LINK_BYTES:
        tensor, times = torch.zeros(size, dtype=torch.uint8), []
        for _ in range(ECHOES):
            began = time.perf_counter_ns()
            for sends in (process == 0, process == 1):
                (dist.send if sends else dist.recv)(tensor, 1 - process)
            times.append((time.perf_counter_ns() - began) / 2)
        taken.append(min(times))
    more_ns = max(1.0, taken[1] - taken[0])
    return round(taken[0]), round(8e9 * (LINK_BYTES[1] - LINK_BYTES[0]) / more_ns)


def _equal_segments(layers: int, segments: int) -> Plan:
    """Return a plan of stages with about equally many layers, on a device each."""
    many = min(segments, layers)
    ends = [at * layers // many for at in range(many + 1)]
    return Plan(
        tuple(
            Stage(Span(first, stop), Group(((at, 1),)), (0,) * (stop - first))
            for at, (first, stop) in enumerate(itertools.pairwise(ends))
        )
    )


def _median(values: Iterable[float]) -> int:
    return round(statistics.median(values))


MOST_DRIFT = 0.05
"""Over which share of their median the middle half of equal products may spread on a GPU."""
MOST_FAULTS = 2000
"""Pages that the system may give to one micro-batch, before that is what is measured."""


def profiled(
    job: ProfileJob, device_class: str, most_spread: float, say: Callable[[int, Any], None]
) -> LayerProfile:
    """Return the times of a model's layers on this machine, as those of a device class, and of a link within it.

    ``say`` hears a process and a size of micro-batches that is measured. Raises RunFailedError where a process
    fails, where the middle half of the rounds spreads over more than ``most_spread`` of their median, where memory
    is short, and where the clock of a GPU moves: such times say more about the machine than about the layers.
    Cost: that of :func:`execution.profiling.profile_layers`.
    """
    if job.at_once > 1 and torch.cuda.is_available():
        raise RunFailedError(f"{job.at_once} processes at once: a GPU has its memory to itself, profile one alone")
    each = in_processes(job.at_once, profile_layers, (job,), say)
    found = [_together(rows) for rows in zip(*each, strict=True)]
    latency_ns, bits_per_second = in_processes(2, measure_link)[0]
    for one in found:
        _check_steady(one, most_spread)
    return LayerProfile.model_validate(
        {
            "model": job.model,
            "device_class": device_class,
            "machine": processor_name(clock_here().device),
            "torch": torch.__version__,
            "threads": 1,
            "at_once": job.at_once,
            "link": {"latency_ns": latency_ns, "bits_per_second": bits_per_second},
            "times": [_times_profile(one) for one in found],
        }
    )


def _together(rows: Sequence[ProfiledPasses]) -> ProfiledPasses:
    """Return the mean of what processes measured at the same time; the least steady of them counts."""

    def mean(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
        forward, backward = zip(*pairs, strict=True)
        return round(statistics.mean(forward)), round(statistics.mean(backward))

    return ProfiledPasses(
        rows[0].samples,
        {name: mean(one.layers[name] for one in rows) for name in rows[0].layers},
        mean(one.whole for one in rows),
        max(one.spread for one in rows),
        max(one.faults for one in rows),
        statistics.mean(one.probe_ns for one in rows),
        max(one.drift for one in rows),
    )


def _check_steady(found: ProfiledPasses, most: float) -> None:
    where = f"micro-batches of {found.samples}"
    if found.spread > most:
        raise RunFailedError(
            f"{where}: the middle half of the rounds spreads over {found.spread:.1%} of their median, at most"
            f" {most:.1%} is taken: leave the machine alone, take more --rounds, or allow more with --most-spread"
        )
    if found.drift > MOST_DRIFT:
        raise RunFailedError(
            f"{where}: the middle half of equal matrix products spreads over {found.drift:.1%} of their median, at"
            f" most {MOST_DRIFT:.0%} is taken: the clock of the GPU moves, fix it (nvidia-smi --lock-gpu-clocks)"
        )
    if found.faults > MOST_FAULTS:
        raise RunFailedError(
            f"{where}: {found.faults:.0f} page faults each, at most {MOST_FAULTS} are taken: the memory is short,"
            " or MALLOC_ variables of the environment let the C library give it back"
        )


def _times_profile(found: ProfiledPasses) -> dict[str, Any]:
    """Return the times of one size as a profile has them."""
    layers = found.layers.items()
    return {
        "samples": found.samples,
        "whole_forward_ns": found.whole[0],
        "whole_backward_ns": found.whole[1],
        "spread": found.spread,
        "probe_ns": round(found.probe_ns),
        "layers": [{"name": name, "forward_ns": one, "backward_ns": two} for name, (one, two) in layers],
    }
