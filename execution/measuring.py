"""How many bytes the tensors of a process hold, and the most that they held: counted, not asked of the system.

Steps of a plan, measured: how long every pass, transfer and sum takes, and how much memory is held.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pipecut.execution.processes.channel import device_here
from pipecut.execution.processes.local import Voice
from pipecut.execution.profiling import clock_of, probe_ns, processor_name
from pipecut.execution.running.job import RunJob
from pipecut.execution.running.pipeline import Pipeline
from pipecut.execution.running.validating import StepsCompared, validate
from pipecut.ingest.torch.export import Inputs


class HeldMemory(TorchDispatchMode):
    """Counts the memory behind the results of all operators inside a ``with`` block, until it is let go.

    Tensors of ``counted`` are there from the start; those of ``beside`` are not counted at all, nor their views.
    Memory is counted once, however many tensors lie in it. ``held_bytes`` is what there is now, ``peak_bytes`` the
    most that there was. Cost: some microseconds for every operator, so measure no times meanwhile.
    """

    def __init__(self, counted: Iterable[torch.Tensor] = (), beside: Iterable[torch.Tensor] = ()) -> None:
        """Count what is there already."""
        super().__init__()
        self.held_bytes = self.peak_bytes = 0
        self._known: dict[int, int] = {}
        self._turn = threading.RLock()
        for one in beside:
            self._note(one, counts=False)
        for one in counted:
            self._note(one, counts=True)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 (what the operator returns)
        """Run an operator and note where its results lie."""
        del types
        found = func(*args, **(kwargs or {}))
        for one in pytree.tree_leaves(found):
            if isinstance(one, torch.Tensor):
                self._note(one, counts=True)
        return found

    def _note(self, tensor: torch.Tensor, *, counts: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        with self._turn:
            if key in self._known:
                return
            size = storage.nbytes() if counts else 0
            self._known[key] = size
            self.held_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
            weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        with self._turn:
            self.held_bytes -= self._known.pop(key, 0)


WARM_UP = 2
"""Steps that are run before those that count: memory is taken and threads are started in them."""
ECHOES = 10
"""How often a tensor is sent there and back to learn how long it takes."""


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """What one process measured; times in ns, one entry for each step.

    ``passes`` has for each stage and kind of pass (``F``, ``B``, ``I``, ``W``) the mean over the micro-batches.
    ``steps`` begin and end for all processes together; ``sums`` of gradients include the wait for others.
    ``transfers`` is the time of what crosses the cuts behind stages of this process, one way. ``peak_bytes`` is
    the most memory that tensors held during a step, the samples of the step among them as far as they are in
    flight. ``probes`` are the times of a probe around each step, as the profile takes them around its turns, and
    ``processor`` is what computed them.
    """

    process: int
    passes: dict[tuple[int, str], list[int]]
    steps: list[int]
    sums: list[int]
    updates: list[int]
    transfers: dict[int, int]
    peak_bytes: int
    probes: list[int]
    processor: str


@dataclass(frozen=True, slots=True)
class Validation:
    """What one process found beside the unsplit model, and what all processes measured (empty: not wanted)."""

    compared: StepsCompared
    measured: list[MeasuredSteps]


def validate_and_measure(process: int, say: Voice, job: RunJob) -> Validation:
    """Compare steps with the unsplit model, then measure ``job.steps`` steps in the model's own formats.

    Raises StagesError, TraceError, PeerError.
    """
    compared = validate(process, say, job)
    if job.steps == 0:
        return Validation(compared, [])
    mine = _measure(process, say, job)
    everyone: list[Any] = [None] * job.layout.size
    dist.all_gather_object(everyone, mine)
    return Validation(compared, everyone)


def _measure(process: int, say: Voice, job: RunJob) -> MeasuredSteps:
    model, inputs = job.built()
    pipeline = job.pipeline(process, model, inputs, precision=job.precision)
    del model
    pipeline.doing = say.doing
    optimizer = job.optimizer_of(pipeline)
    clock = clock_of(device_here())
    found = MeasuredSteps(process, defaultdict(list), [], [], [], {}, 0, [], processor_name(clock.device))
    for step in range(WARM_UP + job.steps):
        batch = job.batch(inputs, step)
        before = probe_ns(clock)  # who probes for longest is waited for, so all begin the step together
        pipeline.together()
        began = time.perf_counter_ns()
        pipeline.step(batch, batch)
        stepped = time.perf_counter_ns()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        updated = time.perf_counter_ns()
        pipeline.together()
        spent = time.perf_counter_ns() - began
        after = probe_ns(clock)
        if step >= WARM_UP:
            found.steps.append(spent)
            found.probes.append(round((before + after) / 2))
            found.updates.append(updated - stepped)
            found.sums.append(pipeline.sum_ns)
            _note_passes(pipeline, found.passes)
    found.transfers.update(_transfers(process, job, pipeline))
    whole = job.batch(inputs, 0)
    peak = peak_bytes(pipeline, whole, whole)
    return replace(found, passes=dict(found.passes), peak_bytes=peak)


def _note_passes(pipeline: Pipeline, passes: dict[tuple[int, str], list[int]]) -> None:
    """Add the mean time of each kind of pass of the last step."""
    times: dict[tuple[int, str], list[int]] = defaultdict(list)
    for action, start, stop in pipeline.times:
        times[action.stage, action.kind.letter].append(stop - start)
    for key, spent in times.items():
        passes[key].append(sum(spent) // len(spent))


def _transfers(process: int, job: RunJob, pipeline: Pipeline) -> dict[int, int]:
    """Return how long what crosses each cut takes from the first process before it to the first one behind it."""
    found = {}
    for cut, sizes in enumerate(pipeline.crossing_bytes):
        first, second = job.layout.processes[cut][0], job.layout.processes[cut + 1][0]
        size = [sizes]
        dist.broadcast_object_list(size, first)
        if first != second and process in (first, second):
            tensor = torch.zeros(max(1, size[0]), dtype=torch.uint8)
            taken = [_echo(process == first, tensor, second if process == first else first) for _ in range(ECHOES)]
            if process == first:
                found[cut] = sorted(taken)[len(taken) // 2] // 2
    return found


def _echo(first: bool, tensor: torch.Tensor, peer: int) -> int:
    """Send a tensor there and back again, or the other way round; return the time of both."""
    began = time.perf_counter_ns()
    for sends in (first, not first):
        (dist.send if sends else dist.recv)(tensor, peer)
    return time.perf_counter_ns() - began


def peak_bytes(pipeline: Pipeline, batch: Inputs, targets: object = None) -> int:
    """Return the most bytes that tensors hold in a step whose micro-batches come from elsewhere one by one."""
    given = [one for one in pytree.tree_leaves((batch, targets)) if isinstance(one, torch.Tensor)]
    held = [one for runner in pipeline.stages for one in runner.module.state_dict(keep_vars=True).values()]
    pipeline.copy_samples = True
    with HeldMemory(held, given) as memory:
        pipeline.step(batch, targets)
    pipeline.copy_samples = False
    return memory.peak_bytes
