"""One point of a sweep, planned: what a process or a machine of a scheduler is given, and what it returns."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from commands.parts.answered import answered
from formulation.costs.goals import goal_value
from formulation.evaluate import evaluate
from formulation.outcome import FalseClaimError, Limits, Outcome
from formulation.problem.constraints import Goal
from formulation.problem.instance import Instance
from formulation.problem.options import Combine
from formulation.problem.plan import Plan
from formulation.problem.units import NS_PER_SECOND
from planners.catalogue import find_any
from solvers.auto.solve import plan
from solvers.choices.decide import decide
from solvers.choices.standing import Standing

_STOP: list[threading.Event] = []
"""In a process of the pool: set once nobody waits for it any more. One that a scheduler started has none."""


@dataclass(frozen=True, slots=True)
class SweepWork:
    """An instance, and how it is searched; ``cross_check`` as in ``pipecut plan``."""

    instance: Instance
    solver: str
    time_limit_s: float | None
    workers: int
    seed: int
    cross_check: bool

    def search(self) -> dict[str, Any]:
        """Return how it is searched, as plain data: what is not proved depends on it."""
        return {
            "solver": self.solver,
            "time_limit_s": self.time_limit_s,
            "workers": self.workers,
            "seed": self.seed,
            "cross_check": self.cross_check,
        }


def begun(stop: Connection) -> None:
    """Prepare a process of the pool: Ctrl-C is for the command, and when that has gone so does the process.

    ``stop`` is the end of a pipe that nobody writes to; its other end is closed when the searches are to end. An
    event of ``multiprocessing`` would not do: it has a lock, and a process that is killed while it looks keeps it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = threading.Event()
    _STOP[:] = [told]
    parent = multiprocessing.parent_process()

    def wait() -> None:
        stop.poll(None)
        told.set()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def solved(work: SweepWork) -> dict[str, Any]:
    """Find the best plan and return it as plain data. A mistake of the search is part of that, not raised."""
    method, began_s = find_any(work.solver), time.monotonic()
    stopped: Callable[[], bool] = _STOP[0].is_set if _STOP else lambda: False
    limits = Limits(work.time_limit_s, work.workers, work.seed, stopped=stopped)

    def ask(instance: Instance, within: Limits) -> Outcome:
        return plan(instance, within, method, cross_check=work.cross_check)

    try:
        instance, outcome = answered(
            lambda within: decide(work.instance, ask, within, cross_check=work.cross_check),
            limits,
            Standing(work.instance),
            method.name,
        )
    except FalseClaimError as error:
        return failed(f"a claim failed its check: {error}", time.monotonic() - began_s)
    except ValueError as error:
        return failed(str(error), time.monotonic() - began_s)
    return _row(instance, outcome)


def failed(reason: str, seconds: float = 0.0) -> dict[str, Any]:
    """Return what is known of a point that nothing was found out about."""
    empty = dict.fromkeys(("proof", "solver", "objective", "bound", "gap", "throughput", "plan_price_per_hour"))
    unknown = {"devices": None, "used_devices": None, "price_per_hour": None, "micro_batches": None}
    return {**empty, **unknown, "goals": [], "stages": [], "seconds": seconds, "notes": [], "reason": reason}


def _row(instance: Instance, outcome: Outcome) -> dict[str, Any]:
    plan_found = outcome.plan
    servers = instance.cluster.servers
    found = {
        "proof": str(outcome.proof),
        "solver": outcome.solver,
        "objective": outcome.objective,
        "bound": outcome.bound,
        "gap": outcome.gap,
        "goals": [
            {"goal": str(one.goal), "unit": one.goal.unit, "value": one.value, "bound": one.bound}
            for one in outcome.claims
        ],
        "devices": sum(server.devices for server in servers),
        "price_per_hour": sum(server.devices * server.device_class.price_per_hour for server in servers),
        "micro_batches": instance.training.micro_batches,
        "seconds": outcome.seconds,
        "notes": list(outcome.notes),
    }
    return failed("") | found | ({} if plan_found is None else _of_plan(instance, plan_found))


def _of_plan(instance: Instance, found: Plan) -> dict[str, Any]:
    costs = evaluate(instance, found).stages
    training = instance.training
    goal, samples = _paces(instance), training.micro_batch
    if goal in (Goal.ITERATION_TIME, Goal.STEP_TIME):
        samples = training.global_batch
    time_ns = goal_value(goal, instance, found, costs)
    return {
        "throughput": samples * NS_PER_SECOND / time_ns if time_ns else None,
        "plan_price_per_hour": goal_value(Goal.COST, instance, found, costs),
        "used_devices": goal_value(Goal.DEVICES, instance, found, costs),
        "stages": [
            {
                "first": instance.layers[stage.span.first].name,
                "last": instance.layers[stage.span.stop - 1].name,
                "devices": {instance.servers[at].name: count for at, count in stage.group.counts},
                "replicas": stage.group.mode.replicas,
                "recompute": stage.fields([layer.name for layer in instance.layers])["recompute"],
            }
            for stage in found.stages
        ],
    }


def _paces(instance: Instance) -> Goal:
    """Return by which time samples are counted: the executed one if that is minimised, else a formula."""
    if instance.goals[0].executed:
        return instance.goals[0]
    return Goal.ITERATION_TIME if instance.cost.combine is Combine.MAX else Goal.BOTTLENECK
