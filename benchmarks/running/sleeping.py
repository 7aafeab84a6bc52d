"""How closely the runtime keeps to the timeline: stages that sleep instead of computing, run by processes.

Run it with ``python -m benchmarks.running.sleeping``; it needs PyTorch. Every stage takes a given time for each of
its passes, so the machine's speed has no part in it: what is left of the difference is what the runtime itself
spends, its transfers between processes among it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.table import print_rows
from pipecut.execution.processes.channel import DistributedChannel
from pipecut.execution.processes.local import in_processes
from pipecut.execution.running.data import mean_square
from pipecut.execution.running.layout import layout_of
from pipecut.execution.running.passes import StageRunner
from pipecut.execution.running.pipeline import Pipeline
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.timeline.durations import Durations
from pipecut.formulation.timeline.timeline import run

FORWARD_S = (0.060, 0.080, 0.040, 0.070)
BACKWARD_S = (0.120, 0.140, 0.100, 0.120)
"""Seconds of a pass of each stage; a half of a backward pass takes half of it."""
MICRO_BATCHES = 8


def schedules() -> dict[str, PipelineSchedule]:
    """Return the orders that are run."""
    return {
        "gpipe": gpipe(4, MICRO_BATCHES),
        "one_f_one_b": one_f_one_b(4, MICRO_BATCHES),
        "zero_bubble_h1": zero_bubble_h1(4, MICRO_BATCHES),
        "interleaved 2 x 2": interleaved(2, 2, MICRO_BATCHES),
    }


def predicted_ns(schedule: PipelineSchedule) -> int:
    """Return the makespan by the timeline, with transfers that take no time."""
    in_ns = [tuple(round(one * 1e9) for one in times) for times in (FORWARD_S, BACKWARD_S)]
    none = (0,) * (schedule.stages - 1)
    durations = Durations(
        forward_ns=in_ns[0],
        backward_ns=in_ns[1],
        recompute_ns=(0,) * schedule.stages,
        sync_ns=(0,) * schedule.stages,
        activation_ns=none,
        gradient_ns=none,
        activation_link=tuple(range(len(none))),
        gradient_link=tuple(range(len(none), 2 * len(none))),
    )
    return run(schedule, durations).makespan_ns


class _Sleeping:
    """Makes passes take the times of their stages, what they compute being much less."""

    def __init__(self) -> None:
        self._inside = False

    def taking(self, method: Callable[..., Any], times_s: Sequence[float]) -> Callable[..., Any]:
        """Return a pass that takes so long; one that it calls itself is a part of it."""

        @wraps(method)
        def wrapper(runner: StageRunner, *arguments: Any) -> Any:  # noqa: ANN401 (as the pass)
            if self._inside:
                return method(runner, *arguments)
            until = time.perf_counter() + times_s[runner.module.index]
            self._inside = True
            result = method(runner, *arguments)
            self._inside = False
            time.sleep(max(0.0, until - time.perf_counter()))
            return result

        return wrapper


def steps(
    process: int, say: Callable[[Any], None], schedule: PipelineSchedule, many: int, enough_ns: int = 0
) -> list[int]:
    """Run some steps of sleeping stages, until one takes ``enough_ns`` or less; return the time of each in ns."""
    del say
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    plan = Plan(tuple(Stage(Span(at, at + 1), Group(((at, 1),)), (0,)) for at in range(4)))
    layout = layout_of(plan, schedule, 1)
    batch = torch.zeros(MICRO_BATCHES, 8)
    connect = partial(DistributedChannel, timeout_s=120)
    pipeline = Pipeline(model, (batch[:1],), plan, layout, mean_square, process, connect)
    pipeline.step((batch,))
    half = tuple(one / 2 for one in BACKWARD_S)
    passes = {"forward": FORWARD_S, "backward": BACKWARD_S, "input_gradient": half, "weight_gradient": half}
    sleeping, awake = _Sleeping(), {name: getattr(StageRunner, name) for name in passes}
    for name, times_s in passes.items():
        setattr(StageRunner, name, sleeping.taking(awake[name], times_s))
    found = []
    for _ in range(many):
        dist.barrier()
        began = time.perf_counter_ns()
        pipeline.step((batch,))
        dist.barrier()
        longest = torch.tensor(time.perf_counter_ns() - began)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        found.append(int(longest))
        if found[-1] <= enough_ns:
            break
    for name, method in awake.items():
        setattr(StageRunner, name, method)
    return found


def rows(many: int) -> Iterator[dict[str, Any]]:
    """Yield a row for every schedule: predicted, and the median and the best step of a run."""
    for name, schedule in schedules().items():
        found = in_processes(schedule.ranks, steps, (schedule, many))[0]
        expected = predicted_ns(schedule)
        median = statistics.median(found)
        yield {
            "schedule": name,
            "predicted ms": f"{expected / 1e6:.1f}",
            "median ms": f"{median / 1e6:.1f}",
            "best ms": f"{min(found) / 1e6:.1f}",
            "median off %": f"{100 * (median / expected - 1):+.1f}",
            "best off %": f"{100 * (min(found) / expected - 1):+.1f}",
        }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="The runtime beside the timeline, with stages that sleep.")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    print_rows(rows(arguments.steps), as_json=arguments.json)


if __name__ == "__main__":
    main()
