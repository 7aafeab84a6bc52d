"""Clocks that a pass is timed with: the processor time of a thread, or events in the stream of a GPU.

A GPU computes behind the program that asks it to, so a time on the host says nothing of it. An event is put into
the stream between two kernels and notes when the GPU comes to it; the events of a turn are read when all of it is
done, so that reading them keeps nobody waiting in between.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ingest.graphs.layer_profile import machine_name

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
