"""A GPU is timed by events in its stream: with events that stand in for those of a GPU that is not there."""

from __future__ import annotations

import itertools
import re
import statistics

import pytest

pytest.importorskip("torch")

import torch

from pipecut.execution import profiling as clocks
from pipecut.execution import profiling as profile
from pipecut.execution.errors import RunFailedError
from pipecut.execution.profiling import (
    ProfiledPasses,
    StreamClock,
    ThreadClock,
    _times,
    clock_here,
    probe_ns,
    segments_of,
    turn,
)
from pipecut.execution.splitting.stages import ModelProgram
from tests.execution import models
from tests.execution.cases import equal_plan

CPU = torch.device("cpu")


class Stream:
    """A stream that is 1 ms further at every event; an event can be read when the stream was waited for."""

    def __init__(self) -> None:
        self.comes_to, self.done = itertools.count(), -1
        self.last = -1

    def event(self, *, enable_timing: bool) -> Event:
        assert enable_timing, "events without a time cannot be read"
        return Event(self)

    def synchronize(self, device: object) -> None:
        assert device == CPU
        self.done = self.last


class Event:
    """An event of such a stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.at = stream, -1

    def record(self) -> None:
        self.at = self.stream.last = next(self.stream.comes_to)

    def elapsed_time(self, other: Event) -> float:
        assert 0 <= self.at <= other.at <= self.stream.done, "read before the GPU was there"
        return float(other.at - self.at)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    found = Stream()
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    monkeypatch.setattr(torch.cuda, "synchronize", found.synchronize)
    return found


def test_layers_are_timed_by_events_that_are_read_when_all_is_done(stream: Stream) -> None:
    """Every change of layer is an event, 1 ms behind the one before: a layer takes as many ms as it has marks."""
    model, inputs = models.resnet()
    program = ModelProgram.of(model, inputs)
    clock = StreamClock(CPU, side=8)
    for segment in segments_of(program, program.split(equal_plan(len(program.layers), (1, 1))), inputs, clock):
        found = turn(segment)
        assert set(found.forward) == set(segment.stage.layers)
        assert all(one >= 1e6 and one % 1e6 == 0 for one in (*found.forward.values(), *found.backward.values()))
        assert found.whole == (1e6, 1e6), "nobody reads the clock within the third kind of pass"
        assert found.probe_ns == 1e6
    assert stream.done == stream.last


def test_the_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert isinstance(clock_here(), ThreadClock)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert clock_here() == StreamClock(torch.device("cuda", 0))


def test_a_probe_waits_for_what_came_before_and_for_itself(stream: Stream) -> None:
    assert probe_ns(StreamClock(CPU, side=8)) == 1e6
    assert clocks.probe_ns(ThreadClock(side=8)) > 0


class Slowly:
    """A clock that reads these times, one after another."""

    device, side = CPU, 8

    def __init__(self, times: list[int]) -> None:
        self.times, self.threads = iter(times), set[int]()

    def stamp(self) -> int:
        self.threads.add(torch.get_num_threads())
        return next(self.times)

    def settled(self) -> None: ...

    def between(self, one: int, other: int) -> float:
        return other - one


def test_a_probe_is_the_median_of_products_on_one_thread_once_caches_are_filled() -> None:
    """Cold products and one that was interrupted do not count, nor does how many threads a process has."""
    each = [900, 500, *([7] * (clocks.PROBES - 1)), 800]
    clock, before = Slowly([0, *itertools.accumulate(each)]), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert probe_ns(clock) == 7
        assert clock.threads == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_clock_that_moves_is_refused_with_both_numbers() -> None:
    said = "spreads over 8.0% of their median, at most 5% is taken: the clock of the GPU moves"
    with pytest.raises(RunFailedError, match=re.escape(said)):
        profile._check_steady(ProfiledPasses(4, {}, (1, 1), 0.01, 0, 1, drift=0.08), 0.15)
    profile._check_steady(ProfiledPasses(4, {}, (1, 1), 0.01, 0, 1, drift=0.04), 0.15)


def test_processes_at_once_count_by_their_mean_and_the_least_steady() -> None:
    one = ProfiledPasses(4, {"a": (10, 20), "b": (0, 3)}, (11, 25), 0.02, 5, 100)
    other = ProfiledPasses(4, {"a": (20, 24), "b": (0, 4)}, (21, 27), 0.01, 7, 300)
    found = profile._together([one, other])
    assert found == ProfiledPasses(4, {"a": (15, 22), "b": (0, 4)}, (16, 26), 0.02, 7, 200)
    assert profile._together([one]) == one


@pytest.mark.slow
def test_only_a_gpu_has_a_clock_that_should_not_move(stream: Stream) -> None:
    model, inputs = models.resnet()
    program = ModelProgram.of(model, inputs)
    stages = program.split(equal_plan(len(program.layers), (1,)))
    (own,) = segments_of(program, stages, inputs, ThreadClock(side=8))
    turns = [[turn(own)] for _ in range(2)]
    found = _times(2, [own], turns)
    assert found.drift == 0
    assert found.probe_ns == statistics.median(one.probe_ns for (one,) in turns)
