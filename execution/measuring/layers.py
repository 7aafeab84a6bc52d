"""Times of single layers on this machine, taken inside segments of a model that are run as stages are.

A layer that is timed alone, on tensors of its own, takes longer than among its neighbours; so whole segments run
(``execution.measuring.turns``), in an order drawn anew for every round. How fast the machine was just then is told
by a small matrix product; times are scaled to its median, and medians over the rounds count. A GPU computes where
torch finds one; the first round, nine passes of each segment, warms up.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from execution.measuring.clocks import clock_here
from execution.measuring.turns import Segment, Turn, segments_of, turn
from execution.running.data import samples_like
from execution.splitting.stages import ModelProgram
from formulation.problem.groups import Group
from formulation.problem.plan import Plan, Span, Stage
from ingest.torch.hugging_face import Configured
from ingest.torch.source import load_model

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
