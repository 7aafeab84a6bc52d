"""One point of a sweep, planned: what a process or a machine of a scheduler is given, and what it returns.

Who plans the points of a sweep: processes of this machine, or the machines of a dask scheduler.

Work given to an executor, and results as they come, however often a process of it is killed.

Anything with the interface of ``concurrent.futures.Executor`` will do. Where a process dies the executor is broken
and another one takes its place: what was being worked on is asked again, one after another, so that the one point
that kills its process (out of memory, say) is known, and told, and the others are not lost with it.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from pipecut.commands.parts.answered import decided_alone
from pipecut.commands.terminal.failures import InputError
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.units import NS_PER_SECOND
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import find_any

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
        return plan(instance, within, method, cross_check=False)

    try:
        instance, outcome = decided_alone(work.instance, ask, limits, method.name, cross_check=work.cross_check)
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
        "notes": [*outcome.notes, *outcome.checks],
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


AHEAD = 2
"""Points that are ready for every process, so that none waits for the next."""
CONNECT_S = 10
"""How long a scheduler may take to answer."""
AT_ONCE = 1000
"""Points that a scheduler may have; it knows how many machines share them."""


@contextlib.contextmanager
def processes(number: int | None) -> Iterator[tuple[Callable[[], Executor], int]]:
    """Provide what starts so many processes (None: one for each core), and how many points they may have at once.

    They are new ones, that share nothing with this one. In the end they are asked to stop their searches.
    """
    context = multiprocessing.get_context("spawn")
    stop, open_end = context.Pipe(duplex=False)
    many = number or len(os.sched_getaffinity(0))
    try:
        yield lambda: ProcessPoolExecutor(many, context, begun, (stop,)), AHEAD * many
    finally:
        open_end.close()


@contextlib.contextmanager
def scheduler(address: str) -> Iterator[tuple[Callable[[], Executor], int]]:
    """Provide the executor of a dask scheduler, as :func:`processes`. Raises InputError where there is none."""
    try:
        distributed: Any = importlib.import_module("distributed")  # not everybody has it
    except ImportError as error:
        raise InputError("--scheduler needs dask, which is not installed: pip install 'pipecut[dask]'") from error
    try:
        client = distributed.Client(address, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise InputError(f"--scheduler {address}: {error}") from error
    try:
        yield lambda: client.get_executor(pure=False), AT_ONCE
    finally:
        client.close()


POLL_S = 0.1
"""How often somebody who asks to stop is heard."""
DIED = "the process that planned it died (killed, or out of memory), twice"
Item = tuple[str, SweepWork]
"""What is known by a key, and is to be planned."""


@dataclass(slots=True)
class WorkPool:
    """``make`` returns a new executor; at most ``at_once`` items are given to it at a time."""

    make: Callable[[], Executor]
    work: Callable[[SweepWork], dict[str, Any]]
    at_once: int
    stopped: Callable[[], bool]
    _executor: Executor | None = None
    _running: dict[Future[dict[str, Any]], Item] = field(default_factory=dict)
    _suspects: deque[Item] = field(default_factory=deque)

    def results(self, items: Iterable[Item]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield key and result of every item as they come; end early once somebody asks to stop."""
        coming = iter(items)
        try:
            while not self.stopped():
                self._fill(coming)
                if not self._running:
                    return
                done, _ = wait(self._running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                yield from self._taken(done)
        finally:
            self._leave()

    def _fill(self, coming: Iterator[Item]) -> None:
        """Give the executor as much as it may have; a suspect alone."""
        if self._suspects:
            if not self._running:
                self._submit(self._suspects[0])
            return
        while len(self._running) < self.at_once and not self.stopped():
            item = next(coming, None)
            if item is None or not self._submit(item):
                return

    def _submit(self, item: Item) -> bool:
        if self._executor is None:
            self._executor = self.make()
        try:
            future = self._executor.submit(self.work, item[1])
        except BrokenExecutor as error:  # it broke since it was last asked, so this one is told like those it had
            future = Future()
            future.set_exception(error)
        self._running[future] = item
        return not _lost(future)

    def _taken(self, done: Iterable[Future[dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
        broken = False
        for future in done:
            key, work = self._running.pop(future)
            alone = bool(self._suspects) and self._suspects[0][0] == key
            try:
                result = future.result()
            except (BrokenExecutor, CancelledError):
                broken = True
                if not alone:
                    self._suspects.append((key, work))
                    continue
                result = failed(DIED)
            except Exception as error:  # of an executor that has its own ways to fail: a worker that is lost
                result = failed(f"{type(error).__name__}: {error}")
            if alone:
                self._suspects.popleft()
            yield key, result
        if broken:
            self._broken()

    def _broken(self) -> None:
        """Leave an executor that has lost a process, and remember what it was working on but what is done."""
        finished = {one: item for one, item in self._running.items() if one.done() and not _lost(one)}
        self._suspects.extend(item for one, item in self._running.items() if one not in finished)
        self._leave()
        self._running.update(finished)

    def _leave(self) -> None:
        """Take back what the executor has not begun, and leave it; not all take it back as they are shut down."""
        for future in self._running:
            future.cancel()
        self._running.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        self._executor = None


def _lost(future: Future[dict[str, Any]]) -> bool:
    """Say whether a future ended with its executor, and not with work that was done."""
    return future.done() and (future.cancelled() or isinstance(future.exception(), BrokenExecutor))
