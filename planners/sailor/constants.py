"""The two constants of a machine that need runs: the spread of its replicas, and its own share of memory.

Both are medians over runs on the same kinds of card (where there is none: that share a kind with the plan), so no
single run decides. The run that is predicted is left out of its own estimate (``same_work``): what is reported is
held out.

* **Spread**: (measured gradient synchronisation - predicted copies and all-reduce) / (predicted pipeline x
  sqrt(2 ln n)), of every run with n > 1 replicas. Iteration times are not looked at. A run whose measured
  synchronisation and predicted pipeline are together more than a quarter longer than its iteration does not count:
  that synchronisation is not one (its timer must have counted passes that were still running). 0 without any run.
* **Machine bytes**: measured peak - predicted bytes of the plan, of every run. Without any run, the share that
  Sailor's own planner reserves: 2 GB for cards that work alone, 3 GB in a tensor-parallel group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from planners.sailor.memory import predict_memory
from planners.sailor.profile import ProfiledMachine
from planners.sailor.run import SailorPlan
from planners.sailor.time import PredictedTime, order_statistic, predict_time

__all__: list[str] = []

ALONE_BYTES = 2_000_000_000
GROUP_BYTES = 3_000_000_000
IMPLAUSIBLE = 1.25
"""Synchronisation and pipeline over the iteration, above which the measured synchronisation is not believed."""


@dataclass(frozen=True, slots=True)
class SailorRun:
    """A plan, what was measured of it, and what is predicted of it without any constant."""

    plan: SailorPlan
    time: PredictedTime
    plan_bytes: int

    @classmethod
    def of(cls, machine: ProfiledMachine, plan: SailorPlan) -> SailorRun:
        """Predict a plan. Raises NotProfiledError for what was not measured."""
        return cls(plan, predict_time(machine, plan), predict_memory(machine, plan).plan_bytes)

    @property
    def spread(self) -> float | None:
        """The spread of replicas that this run shows; None if it shows none."""
        run, replicas = self.plan.measured, self.plan.replicas
        if run is None or run.gradient_sync_ns is None or replicas < 2 or not self.sync_is_plausible:
            return None
        if self.time.pipeline_ns == 0:
            return None
        waited = run.gradient_sync_ns - self.time.copies_ns - self.time.all_reduce_ns
        return max(0, waited) / (self.time.pipeline_ns * order_statistic(replicas))

    @property
    def sync_is_plausible(self) -> bool:
        """Whether the measured synchronisation leaves room for the passes in the measured iteration."""
        run = self.plan.measured
        if run is None or run.gradient_sync_ns is None or run.iteration_ns is None:
            return True
        return run.gradient_sync_ns + self.time.pipeline_ns <= IMPLAUSIBLE * run.iteration_ns

    @property
    def machine_bytes(self) -> int | None:
        """What was measured beyond the plan's own bytes; None if memory was not measured."""
        run = self.plan.measured
        return None if run is None or run.peak_memory_bytes is None else run.peak_memory_bytes - self.plan_bytes


@dataclass(frozen=True, slots=True)
class MachineConstants:
    """The spread of replicas, the machine's own bytes, and how many runs each rests on."""

    spread: float
    machine_bytes: int
    spread_runs: int
    memory_runs: int


def constants_for(plan: SailorPlan, runs: Sequence[SailorRun]) -> MachineConstants:
    """Return the constants with which to predict a plan: from all other runs on the same kinds of card."""
    return constants_of(plan, [run for run in runs if not run.plan.same_work(plan)])


def constants_of(plan: SailorPlan, runs: Sequence[SailorRun]) -> MachineConstants:
    """Return the constants of a plan's machine, from all of these runs on the same kinds of card."""
    spreads = [run.spread for run in _on_machine(plan, [run for run in runs if run.spread is not None])]
    own = [run.machine_bytes for run in _on_machine(plan, [run for run in runs if run.machine_bytes is not None])]
    degrees = {
        one.tensor_parallel_degree for stages in plan.pipelines for stage in stages for one in stage.replicas
    }
    default = GROUP_BYTES if max(degrees) > 1 else ALONE_BYTES
    return MachineConstants(
        median(one for one in spreads if one is not None) if spreads else 0.0,
        max(0, int(median(one for one in own if one is not None))) if own else default,
        len(spreads),
        len(own),
    )


def _on_machine(plan: SailorPlan, runs: Sequence[SailorRun]) -> list[SailorRun]:
    """Return the runs on the kinds of card of a plan; where there is none, those that share a kind with it."""
    same = [run for run in runs if run.plan.machine == plan.machine]
    return same or [run for run in runs if not set(run.plan.machine).isdisjoint(plan.machine)]
