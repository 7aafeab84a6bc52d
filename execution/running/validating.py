"""A plan's run held against the unsplit model: losses, gradients, buffers, random numbers and formats of steps.

What differs is told with both numbers, or in words where there are none. Every check fails for what is no number.
The unsplit model runs micro-batch by micro-batch, as a plan does; that this is the whole batch's mean is checked
apart, as what mixes samples would be cut in both.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pipecut.execution.dividing.moves import taking
from pipecut.execution.processes.local import Voice
from pipecut.execution.running.data import copied, mean_square, samples_of
from pipecut.execution.running.job import RunJob
from pipecut.execution.running.layout import RunLayout
from pipecut.execution.running.pipeline import LossFunction, Pipeline
from pipecut.ingest.torch.export import Inputs

TOLERANCE = 1e-10
"""The largest difference that rounding in float64 explains, as a share of the largest value of a gradient."""
HALF_TOLERANCE = 0.25
"""The same in 16 bits, where sums in another order differ much more: of the norm of a gradient."""
FLOOR = 1e-4
"""The least size by which gradients are compared, as a share of the model's largest one."""
MIXTURE = 1e-8
"""The largest difference that rounding explains between the loss of a batch and the mean of those of its parts."""
STEPS = 2
"""Steps that are compared: the second one shows what the first one left behind."""
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_overrideable"})


@dataclass(frozen=True, slots=True)
class Difference:
    """The value of a gradient, buffer or loss that differs most from the unsplit model's.

    By ``relative`` of the largest in it; infinite where one of the two is no number. A gradient that is 0 but for
    rounding (a bias before a softmax has one) is compared by ``FLOOR`` of the model's largest gradient.
    ``parameter`` says which it is, ``stage`` and ``step`` (from 1) where and when, ``most`` how much is allowed.
    """

    stage: int
    parameter: str
    found: float
    expected: float
    relative: float
    step: int = 1
    most: float = TOLERANCE

    @property
    def equal(self) -> bool:
        """Tell whether rounding explains it."""
        return self.relative <= self.most


@dataclass(frozen=True, slots=True)
class StepsCompared:
    """``differences`` of what one process has, equal ones too; ``faults`` in words, by the first process."""

    differences: list[Difference] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Peers(Protocol):
    """How processes tell each other what they found."""

    def gather(self, mine: object) -> list[Any]:
        """Return what every process has, in order."""
        ...

    def share(self, tensor: torch.Tensor) -> None:
        """Fill a tensor with that of process 0."""
        ...


class DistributedPeers:
    """Those of torch.distributed."""

    def gather(self, mine: object) -> list[Any]:
        """Return what every process has, in order."""
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, mine)
        return found

    def share(self, tensor: torch.Tensor) -> None:
        """Fill a tensor with that of process 0."""
        dist.broadcast(tensor, 0)


def validate(process: int, say: Voice, job: RunJob, peers: Peers | None = None) -> StepsCompared:
    """Run steps in float64, and the unsplit model in process 0; then one in the run's formats if those have less.

    Dropout is switched off, as both draw different numbers; that every micro-batch draws its own is looked at.
    Raises StagesError for what cannot be run, TraceError, PeerError.
    """
    peers = peers or DistributedPeers()
    found = StepsCompared()
    model, inputs = job.built()
    _without_dropout(model)
    inputs = pytree.tree_map(_doubled, inputs)
    _Comparing(process, say, job, peers, found).steps(model.double(), inputs)
    precision = job.precision
    if precision is not None and min(precision.weights, precision.activations) < 4:
        model, inputs = job.built()
        _without_dropout(model)
        _Comparing(process, say, job, peers, found).in_half(model, inputs)
    return found


class _Comparing:
    """Compares the steps of one pipeline with those of one unsplit model."""

    def __init__(self, process: int, say: Voice, job: RunJob, peers: Peers, found: StepsCompared) -> None:
        self._process, self._say, self._job, self._peers, self._found = process, say, job, peers, found
        self._loss = job.loss_function()
        own = job.loss is not None
        self._weighted = _per_micro_batch(self._loss) if own else _weighted_square
        self._weights = _weights(job.layout, per_sample=not own)

    def steps(self, model: nn.Module, inputs: Inputs) -> None:
        """Compare steps in float64, with a change of the weights between them."""
        first = self._process == 0
        unsplit = _Unsplit(copy.deepcopy(model), self._job, self._weighted) if first else None
        batches = [self._job.batch(inputs, step) for step in range(STEPS)]
        if unsplit is not None and (mixture := unsplit.mixture(batches[0], self._loss)) is not None:
            self._found.faults.append(mixture)
        self._say("reference")
        pipeline = self._pipeline(model, inputs, precision=False)
        drawn = _Drawn(pipeline, self._job.layout, self._process)
        optimizer = _descent(pipeline.parameters.values())
        for step, batch in enumerate(batches, 1):
            expected = None if unsplit is None else unsplit.step(batch, self._weights)
            loss = pipeline.step(batch, (batch, self._weights))
            self._compare(step, pipeline, model, loss, expected, TOLERANCE)
            drawn.end_step(step)
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        told = self._peers.gather(drawn.told)
        if self._process == 0 and not self._job.by_torch:  # torch's own runtime draws as it likes
            self._found.faults.extend(
                _drawn_alike(itertools.chain(*told), self._job.layout.schedule.micro_batches)
            )

    def in_half(self, model: nn.Module, inputs: Inputs) -> None:
        """Compare a step in the formats of the run, and the formats in which products are computed."""
        batch = self._job.batch(inputs, 0)
        expected, theirs = None, _Products()
        if self._process == 0:
            unsplit = _Unsplit(copy.deepcopy(model), self._job, self._weighted, half=True)
            with theirs:
                expected = unsplit.step(batch, self._weights)
        pipeline, ours = self._pipeline(model, inputs, precision=True), _Products()
        with ours:
            loss = pipeline.step(batch, (batch, self._weights))
        self._compare(1, pipeline, model, loss, expected, HALF_TOLERANCE)
        stages = ", ".join(map(str, self._job.layout.stages_of(self._process)))
        told = self._peers.gather((stages, ours.found))
        if self._process == 0:
            lines = itertools.chain.from_iterable(theirs.lacking(stage, found) for stage, found in told)
            self._found.faults.extend(dict.fromkeys(lines))

    def _pipeline(self, model: nn.Module, inputs: Inputs, *, precision: bool) -> Pipeline:
        wanted = self._job.precision if precision else None
        made = self._job.pipeline(self._process, model, inputs, precision=wanted, loss=self._weighted)
        made.doing, made.checks_loss = self._say.doing, False  # a mixture is told with what it makes of the step
        return made

    def _compare(
        self,
        step: int,
        pipeline: Pipeline,
        model: nn.Module,
        loss: float | None,
        expected: Expected | None,
        most: float,
    ) -> None:
        """Compare a loss, gradients and buffers, and see that nothing is missing."""
        wanted = torch.tensor([0.0, 0.0] if expected is None else [expected.loss, expected.largest()])
        self._peers.share(wanted := wanted.double())
        if loss is not None:
            self._note(step, len(self._job.plan) - 1, "loss", torch.tensor(loss), wanted[0], 0.0, most)
        stages = {name: one.module.index for one in pipeline.stages for name, _ in one.module.named_parameters()}
        buffers = {name: one for stage in pipeline.stages for name, one in stage.module.named_buffers()}
        where = {name: one.module.index for one in pipeline.stages for name, _ in one.module.named_buffers()}
        told = {name: pipeline.held.get(name) for name in pipeline.parameters if name in stages}
        for name, whole in model.named_parameters():
            reference = self._shared(whole, expected, "gradients", name)
            if name in told:
                ours = pipeline.parameters[name].grad
                reference = _part(pipeline, name, reference)
                ours = torch.zeros_like(reference) if ours is None else ours
                self._note(step, stages[name], name, ours, reference, FLOOR * float(wanted[1]), most)
        for name, whole in model.named_buffers():
            reference = self._shared(whole, expected, "buffers", name)
            if name in buffers:
                ours, wanted_buffer = buffers[name], _part(pipeline, name, reference)
                self._note(step, where[name], f"buffer {name}", ours, wanted_buffer, 0.0, most)
        everyone = self._peers.gather(told)
        if expected is not None and step == 1:
            self._found.faults.extend(_untold(expected, everyone))

    def _shared(self, like: torch.Tensor, expected: Expected | None, kind: str, name: str) -> torch.Tensor:
        """Return a gradient or buffer of the unsplit model in every process, in float64."""
        found = torch.zeros(like.shape, dtype=torch.double, device=like.device)
        if expected is not None and name in (held := getattr(expected, kind)):
            found.copy_(held[name])
        self._peers.share(found)
        return found

    def _note(
        self,
        step: int,
        stage: int,
        name: str,
        ours: torch.Tensor,
        reference: torch.Tensor,
        least: float,
        most: float,
    ) -> None:
        if ours.shape != reference.shape:
            shapes = f"has shape {list(ours.shape)}, the unsplit model's {list(reference.shape)}"
            self._found.faults.append(f"stage {stage}: {name} {shapes}")
        elif ours.numel():
            apart = _norms if most > TOLERANCE else _difference
            found, expected, relative = apart(ours.detach().double(), reference, least)
            self._found.differences.append(Difference(stage, name, found, expected, relative, step, most))


def _difference(ours: torch.Tensor, reference: torch.Tensor, least: float) -> tuple[float, float, float]:
    """Return the two values that differ most, and by how much of the largest one, at least of ``least``."""
    apart = (ours - reference).abs().reshape(-1)
    at = int(apart.argmax())  # of what is no number, if there is such
    largest = max(float(reference.abs().max()), least)
    relative = float(apart[at]) / largest if largest else float(apart[at])
    values = float(ours.reshape(-1)[at]), float(reference.reshape(-1)[at])
    return *values, relative if math.isfinite(relative) else math.inf


def _norms(ours: torch.Tensor, reference: torch.Tensor, least: float) -> tuple[float, float, float]:
    """Return both norms, and that of the difference as a share."""
    size = max(float(reference.norm()), least * reference.numel() ** 0.5)
    relative = float((ours - reference).norm()) / size if size else float(ours.norm())
    return float(ours.norm()), float(reference.norm()), relative if math.isfinite(relative) else math.inf


def _part(pipeline: Pipeline, name: str, whole: torch.Tensor) -> torch.Tensor:
    held = pipeline.held.get(name)
    return whole if held is None else taking(whole, *held)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the unsplit model makes of a step; a parameter that gets no gradient is not there."""

    loss: float
    gradients: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]

    def largest(self) -> float:
        """Return the largest value of all gradients."""
        return max((float(one.abs().max()) for one in self.gradients.values() if one.numel()), default=0.0)


class _Unsplit:
    """The unsplit model, trained as a plan trains it. It shares no code with the formats of a run."""

    def __init__(self, model: nn.Module, job: RunJob, loss: LossFunction, *, half: bool = False) -> None:
        self._model, self._layout, self._loss = model.train(), job.layout, loss
        precision = job.precision if half else None
        self._converts = precision is not None and precision.weights == 2
        self._autocasts = precision is not None and precision.weights == 4
        if self._converts:
            model.to(torch.bfloat16)
        self._optimizer = _descent(model.parameters())

    def step(self, batch: Inputs, weights: torch.Tensor) -> Expected:
        """Return what a step makes, and change the weights by it."""
        layout, total = self._layout, 0.0
        sums: dict[str, torch.Tensor] = {}
        for number in range(layout.schedule.micro_batches):
            rows = range(number * layout.micro_batch, (number + 1) * layout.micro_batch)
            part = copied(samples_of((self._arriving(batch), weights), rows))
            loss = self._loss(self._called(copied(part[0])), part) / layout.schedule.micro_batches
            loss.backward()
            total += float(loss.detach())
            for name, one in self._model.named_parameters():
                if one.grad is not None and self._converts:  # added up in 32 bits or in 16: the tolerance has room
                    sums[name] = sums.get(name, 0.0) + one.grad.double()
                    one.grad = None
        held = self._model.named_parameters()
        found = sums or {name: one.grad.clone() for name, one in held if one.grad is not None}
        buffers = {name: one.clone() for name, one in self._model.named_buffers()}
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        return Expected(total, found, buffers)

    def mixture(self, batch: Inputs, loss: LossFunction) -> str | None:
        """Tell of a model or loss that mixes samples: the whole batch has another loss than its parts on average.

        Batch normalisation takes the statistics of each micro-batch, as training in micro-batches does: with it,
        only the loss of the outputs of all micro-batches together is looked at.
        """
        many, parts = self._layout.micro_batch * self._layout.schedule.micro_batches, _parts(self._layout)
        kept = copy.deepcopy(dict(self._model.named_buffers()))
        with torch.no_grad():
            with (taken := _Statistics()):
                outputs = [self._called(copied(samples_of(batch, rows))) for rows in parts]
            whole = _joined(outputs, parts) if taken.found else self._called(copied(batch))
            if whole is None:
                return None
            losses = [float(loss(one, samples_of(batch, rows))) for one, rows in zip(outputs, parts, strict=True)]
            together = float(loss(whole, batch))
            for name, one in self._model.named_buffers():
                one.copy_(kept[name])
        apart = sum(one * len(rows) for one, rows in zip(losses, parts, strict=True)) / many
        if abs(together - apart) <= MIXTURE * max(abs(together), abs(apart)):
            return None
        return (
            f"the loss of all {many} samples at once is {together:.10g}, and that of the {len(parts)} parts into"
            f" which the plan cuts them {apart:.10g} on average: the model or its loss mixes samples, or is no "
            "mean over them (a contrastive loss is none), so micro-batches compute something else"
        )

    def _called(self, part: Any) -> Any:  # noqa: ANN401 (what the model returns)
        device = next((one.device.type for one in self._model.parameters()), "cpu")
        mode = torch.autocast(device, dtype=torch.bfloat16) if self._autocasts else contextlib.nullcontext()
        with mode:
            return self._model(**part) if isinstance(part, Mapping) else self._model(*part)

    def _arriving(self, batch: Any) -> Any:  # noqa: ANN401 (tensors in any structure)
        if not self._converts:
            return batch
        return pytree.tree_map(_halved, batch)


def _parts(layout: RunLayout) -> list[range]:
    """Return the parts of a batch that are computed apart: micro-batches, and in them what devices share."""
    inside = {0, layout.micro_batch}
    for stage, devices in enumerate(layout.stages):
        inside |= {layout.rows_of_team(stage, one).start for one in devices.processes}
        if not devices.together:
            inside |= {layout.rows(stage, one).start for one in devices.processes}
    ends = itertools.pairwise(sorted(inside))
    starts = range(0, layout.micro_batch * layout.schedule.micro_batches, layout.micro_batch)
    pairs = list(ends)
    return [range(start + first, start + stop) for start in starts for first, stop in pairs]


def _joined(outputs: Sequence[Any], parts: Sequence[range]) -> Any:  # noqa: ANN401 (as the model returns)
    """Return the outputs of parts of a batch as those of all; None where samples are not their first dimension."""
    leaves = [pytree.tree_leaves(one) for one in outputs]
    spec = pytree.tree_structure(outputs[0])
    found = []
    for same in zip(*leaves, strict=True):
        if not isinstance(same[0], torch.Tensor):
            found.append(same[0])
            continue
        if any(not one.dim() or len(one) % len(rows) for one, rows in zip(same, parts, strict=True)):
            return None
        found.append(torch.cat(same))
    return pytree.tree_unflatten(found, spec)


def _untold(expected: Expected, everyone: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the parameters with a gradient that no stage has, or only parts of."""
    for name, gradient in expected.gradients.items():
        parts = [one[name] for one in everyone if name in one]
        if not parts:
            most = float(gradient.abs().max()) if gradient.numel() else 0.0
            yield f"parameter {name}: no stage trains it, and the unsplit model's gradient is up to {most:.6g}"
            continue
        if None in parts:
            continue
        dimension = parts[0][0]
        held = set[int]().union(*(set(indices) for _, indices in parts))
        if len(held) != gradient.shape[dimension]:
            size = gradient.shape[dimension]
            yield f"parameter {name}: its stages have {len(held)} of {size} indices of dimension {dimension}"


@dataclass(frozen=True, slots=True)
class _States:
    """The states of the random numbers with which a stage began its passes in a step.

    ``first`` is the first sample of its replica, whose devices draw the same.
    """

    step: int
    stage: int
    first: int
    states: frozenset[str]


class _Drawn:
    """Notes the random numbers of the stages of a process; ``told`` is what it noted."""

    def __init__(self, pipeline: Pipeline, layout: RunLayout, process: int) -> None:
        rows = {one.module.index: layout.rows_of_team(one.module.index, process) for one in pipeline.stages}
        self._first = {at: own.start for at, own in rows.items() if own}  # who has no sample draws nothing
        self._now: dict[int, set[str]] = {at: set() for at in self._first}
        for one in pipeline.stages:
            if (states := self._now.get(one.module.index)) is not None:
                one.module.register_forward_pre_hook(self._noting(states))
        self.told: list[_States] = []

    def _noting(self, states: set[str]) -> Callable[..., None]:
        def note(*_: object) -> None:
            states.add(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())

        return note

    def end_step(self, step: int) -> None:
        """Keep what a step drew with."""
        for stage, states in self._now.items():
            self.told.append(_States(step, stage, self._first[stage], frozenset(states)))
            states.clear()


def _drawn_alike(told: Iterable[_States], many: int) -> Iterator[str]:
    """Yield the stages whose micro-batches, replicas or steps draw the same random numbers."""
    seen: dict[str, tuple[int, int, int]] = {}
    for one in told:
        if len(one.states) != many:
            yield (
                f"stage {one.stage}: step {one.step}: its {many} micro-batches draw random numbers from "
                f"{len(one.states)} states: each needs its own, also when it is computed again"
            )
        key = (one.step, one.stage, one.first)
        for other in {seen.setdefault(state, key) for state in one.states} - {key}:
            yield (
                f"stage {one.stage}: it draws in step {one.step} for samples from {one.first} on what stage "
                f"{other[1]} draws in step {other[0]} for samples from {other[2]} on"
            )


class _Products(TorchDispatchMode):
    """Notes the formats in which products are computed: ``found`` has operators and formats."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, torch.dtype]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run an operator, and note its format if it is a product."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if name in PRODUCTS and isinstance(result, torch.Tensor):
            self.found.add((name, result.dtype))
        return result

    def lacking(self, stages: str, found: set[tuple[str, torch.dtype]]) -> Iterator[str]:
        """Yield the products of a process in a format that those of this mode do not have."""
        formats = {dtype for _, dtype in self.found}
        for name, dtype in sorted(found, key=str):
            known = {other for one, other in self.found if one == name} or formats
            if dtype not in known:
                wanted = " or ".join(sorted(map(str, known)))
                yield f"stage {stages}: products ({name}) are computed in {dtype}, the unsplit model's in {wanted}"


class _Statistics(TorchDispatchMode):
    """Notes in ``found`` whether an operator takes statistics over all samples, as batch normalisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run an operator, and look at what it is given if it is a batch normalisation."""
        if "batch_norm" in func._schema.name:
            given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | (kwargs or {})
            self.found |= bool(given.get("training"))
        return func(*args, **(kwargs or {}))


def _weights(layout: RunLayout, *, per_sample: bool) -> torch.Tensor:
    """Return a weight for the loss of every sample or micro-batch: each has its own, so no other stands in."""
    many = layout.micro_batch * layout.schedule.micro_batches
    numbers = torch.arange(many) if per_sample else torch.arange(many) // layout.micro_batch
    return 0.5 + torch.frac((numbers + 1).double() * 0.6180339887498949)


def _per_micro_batch(loss: LossFunction) -> LossFunction:
    """Return a loss of one's own times the weight of the micro-batch."""

    def weighted(outputs: Any, targets: Any) -> torch.Tensor:  # noqa: ANN401 (what a model returns)
        return loss(outputs, targets[0]) * targets[1].mean()

    return weighted


def _weighted_square(outputs: Any, targets: Any) -> torch.Tensor:  # noqa: ANN401 (what a model returns)
    """Return the mean square of all outputs, of each sample by its weight."""
    weights = targets[1]

    def scaled(one: Any) -> Any:  # noqa: ANN401 (any leaf)
        if not isinstance(one, torch.Tensor) or not one.is_floating_point():
            return one
        if not one.dim() or len(one) % len(weights):
            return one
        wide = weights.sqrt().repeat_interleave(len(one) // len(weights)).to(one.device)
        return one * wide.view(-1, *[1] * (one.dim() - 1))

    return mean_square(pytree.tree_map(scaled, outputs), None)


def _descent(parameters: Any) -> torch.optim.Optimizer | None:  # noqa: ANN401 (any iterable of parameters)
    trained = [one for one in parameters if one.requires_grad]
    return torch.optim.SGD(trained, lr=0.01) if trained else None


def _without_dropout(model: nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, _DropoutNd):
            part.p = 0.0


def _doubled(one: Any) -> Any:  # noqa: ANN401 (any leaf)
    return one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one


def _halved(one: Any) -> Any:  # noqa: ANN401 (any leaf)
    return one.to(torch.bfloat16) if isinstance(one, torch.Tensor) and one.is_floating_point() else one
