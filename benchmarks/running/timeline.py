"""How fast the timeline is: actions and transfers a second, for 64 stages with 10,000 micro-batches.

Run it with ``python -m benchmarks.running.timeline``; ``--micro-batches 500`` is quicker.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

from pipecut.formulation.schedules.async_one_f_one_b import async_one_f_one_b
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.naive import naive
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import PipelineSchedule, validate
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.timeline.critical_path import critical_chain
from pipecut.formulation.timeline.durations import Contention, Execution
from pipecut.formulation.timeline.measures import Footprint
from pipecut.formulation.timeline.timeline import Timeline, run
from tests.timelines import uniform

STAGES = 64

T = TypeVar("T")


def builders(micro_batches: int) -> dict[str, Callable[[], PipelineSchedule]]:
    """Return every schedule of 64 stages, by name."""
    whole = micro_batches - micro_batches % 32
    return {
        "naive": lambda: naive(STAGES, micro_batches),
        "gpipe": lambda: gpipe(STAGES, micro_batches),
        "one_f_one_b": lambda: one_f_one_b(STAGES, micro_batches),
        "async, 1 replica each": lambda: async_one_f_one_b(STAGES, micro_batches),
        "async, 1 to 3 replicas": lambda: async_one_f_one_b(
            STAGES, micro_batches, [1 + at % 3 for at in range(STAGES)]
        ),
        "interleaved, 32 x 2": lambda: interleaved(32, 2, whole),
        "zero_bubble_h1": lambda: zero_bubble_h1(STAGES, micro_batches),
    }


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what work returns, and the seconds it took."""
    start = time.perf_counter()
    done = work()
    return done, time.perf_counter() - start


def measure(timeline: Timeline) -> None:
    """Take the memory of all devices and the critical chain of a timeline."""
    footprint = Footprint((1,) * STAGES, (1,) * STAGES)
    for rank in range(timeline.schedule.ranks):
        footprint.over_time(timeline, rank)
    critical_chain(timeline)


def main() -> None:
    """Print a table: seconds of every step, and actions and transfers a second of the execution."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batches", type=int, default=10_000)
    micro_batches = parser.parse_args().micro_batches
    durations = uniform(STAGES, 100, 200, 10)
    print(
        f"{'schedule':<24}{'actions':>10}{'build':>8}{'check':>8}{'run':>8}{'events/s':>12}{'measure':>9}{'fifo':>8}"
    )
    for name, build in builders(micro_batches).items():
        schedule, building = timed(build)
        _, checking = timed(lambda one=schedule: validate(one))
        timeline, running = timed(lambda one=schedule: run(one, durations))
        events = len(schedule) + int((timeline.program.link >= 0).sum())
        _, measuring = timed(lambda one=timeline: measure(one))
        _, queueing = timed(lambda one=schedule: run(one, durations, Execution(Contention.FIFO)))
        print(
            f"{name:<24}{len(schedule):>10,}{building:>7.2f}s{checking:>7.2f}s{running:>7.2f}s"
            f"{events / running:>12,.0f}{measuring:>8.2f}s{queueing:>7.2f}s"
        )


if __name__ == "__main__":
    main()
