"""A model trained as a plan says: what one process of the run does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipecut.execution.dividing.moves import Indices
from pipecut.execution.processes.channel import Channel, settle
from pipecut.execution.running.data import check_mean, check_samples, copied, samples_of
from pipecut.execution.running.exchange import Arriving, Exchange
from pipecut.execution.running.layout import BACKWARD, FORWARD, RunLayout
from pipecut.execution.running.parts_of_model import Earlier, groups_of, parts_of, sum_gradients
from pipecut.execution.running.passes import StageRunner
from pipecut.execution.running.precision import Formats, FullCopies
from pipecut.execution.running.snapshots import Snapshot, entry, latest, settings_of, write
from pipecut.execution.splitting.stages import StageModule
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.schedules.table import Action, Kind
from pipecut.ingest.torch.export import Inputs

LossFunction = Callable[[Any, Any], torch.Tensor]
"""From the model's outputs and the targets of some samples to the mean of their losses."""


_PASSES = {
    Kind.FORWARD: "forward pass",
    Kind.BACKWARD: "backward pass",
    Kind.INPUT_GRADIENT: "first half of the backward pass",
    Kind.WEIGHT_GRADIENT: "second half of the backward pass",
}


class Pipeline:
    """The stages of a plan that one process runs, and its part in a step.

    ``inputs`` are example inputs of any batch. ``layers`` are those that the plan numbers. ``loss`` takes what the
    model returns and the targets of the same samples, and returns the mean over these. Every process makes its
    pipeline with the same arguments; with ``precision`` the model is changed to compute in it, and ``parameters``
    are what the optimiser works on. ``connect`` gets the sets of processes that sum gradients, with a model on a
    GPU also ``lanes`` and ``device`` (``DistributedChannel``), and returns the channel. The other stages'
    parameters are not kept: drop the model, and their memory is free. ``times`` are the actions of the last step,
    with start and stop in ns, ``sum_ns`` the time of its sum of gradients, the wait for others included. ``doing``
    is told what is done just now. With ``copy_samples`` the samples of a micro-batch are copied out of the batch
    when it goes forward. With ``checks_loss`` the first loss is held against those of parts of its samples.

    Raises StagesError where the plan cannot be run so, TraceError where torch cannot follow the model.
    """

    copy_samples = False
    checks_loss = True
    sum_ns = 0

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        plan: Plan,
        layout: RunLayout,
        loss: LossFunction,
        process: int,
        connect: Callable[..., Channel],
        *,
        layers: Sequence[str] | None = None,
        seed: int = 0,
        precision: Precision | None = None,
    ) -> None:
        """Export and split the model, and join the other processes."""
        self._formats = Formats(precision)
        self._formats.prepare(model)
        inputs = self._formats.arriving(inputs)
        self.layout = layout
        self._device = device = next((one.device for one in model.parameters()), torch.device("cpu"))
        mine = layout.stages_of(process)
        parts = parts_of(model, inputs, plan, layout, process, layers)
        apart = {"lanes": layout.lanes(), "device": device} if device.type == "cuda" else {}
        self._channel = connect(groups_of(parts, layout), **apart)
        for team in parts.teams.values():
            team.channel = self._channel
        self._exchange = Exchange(layout, self._channel, parts.stages, device)
        self._interface = parts.interface
        self._loss = loss
        self._seed, self._process = seed, process
        self.steps = 0
        self.doing: Callable[[str], None] = _untold
        self._targets: list[Any] = []
        self.times: list[tuple[Action, int, int]] = []
        self._runners = {at: self._runner(parts.stages, plan, at) for at in mine}
        weights = {name: one for at in mine for name, one in self._runners[at].module.named_parameters()}
        self._copies = FullCopies(weights) if self._formats.copies else None
        self.parameters = weights if self._copies is None else weights | self._copies.parameters
        self.held = parts.held
        self._holders = {name: parts.holders[name] for name in self.parameters if name in parts.holders}
        self._actions = tuple(layout.schedule.actions(layout.rank_of[process]))

    def _runner(self, stages: Sequence[StageModule], plan: Plan, at: int) -> StageRunner:
        loss = self._part_of_loss if at == len(stages) - 1 else None
        return StageRunner(stages[at], recompute=plan.stages[at].group.mode.recompute is True, loss=loss)

    @property
    def crossing_bytes(self) -> tuple[int, ...]:
        """The bytes of the tensors that cross each cut, of as many samples as this process takes."""
        return self._exchange.crossing_bytes

    @property
    def stages(self) -> tuple[StageRunner, ...]:
        """The stages that this process runs."""
        return tuple(self._runners.values())

    def step(self, inputs: Inputs, targets: object = None) -> float | None:
        """Run all micro-batches of a step and sum the gradients, which are added to the parameters' ``grad``.

        ``inputs`` and ``targets`` are those of the whole global batch. Returns the loss in the processes of the
        last stage, None in others. Raises PeerError where another process does not keep up, StagesError for a
        batch of another size than planned, and where the loss is no mean over samples.
        """
        values = self._begun(inputs, targets)
        waiting: dict[int, Arriving] = {}
        for at, action in enumerate(self._actions):
            for ahead in (at, at + 1):
                if ahead < len(self._actions) and ahead not in waiting:
                    waiting[ahead] = self._expect(self._actions[ahead])
            self._do(action, waiting.pop(at), values)
        self.doing("waiting until others have what was sent")
        self._exchange.finish()
        return self._ended()

    def _begun(self, inputs: Inputs, targets: object) -> dict[str, Any]:
        """Begin a step; return the model's inputs by name."""
        many = self.layout.micro_batch * self.layout.schedule.micro_batches
        check_samples(inputs, "input", many)
        check_samples(targets, "target", many)
        self._earlier = Earlier(self.parameters)
        if self._copies is not None:
            self._copies.hand_out()
        inputs = self._formats.arriving(inputs)
        keywords = isinstance(inputs, Mapping)
        values = self._interface.named(() if keywords else tuple(inputs), dict(inputs) if keywords else {})
        for at, runner in self._runners.items():
            runner.seed = (self._seed, self.steps, self.layout.rows_of_team(at, self._process).start)
        self.steps += 1
        self._targets = []
        if (last := self.layout.schedule.stages - 1) in self._runners:
            rows, numbers = self.layout.samples(last, self._process), range(self.layout.schedule.micro_batches)
            self._targets = [self._cut(targets, number, rows) for number in numbers]
        self.times = []
        return values

    def _ended(self) -> float | None:
        """End a step: sum the gradients and the loss."""
        self.doing("sum of gradients")
        began = time.perf_counter_ns()
        if self._copies is not None:
            self._copies.collect()
        sum_gradients(self.parameters, self._holders, self._channel)
        self._earlier.add()
        self.sum_ns = time.perf_counter_ns() - began
        total = self._total()
        self.doing("between steps")
        return total

    def save(self, folder: Path, optimizer: torch.optim.Optimizer | None = None) -> Path:
        """Write a snapshot of the run into a folder that all processes see, and return its own folder there.

        It holds weights, buffers, what the optimiser of ``parameters`` keeps with its settings for each (learning
        rate, momentum), and the number of steps. Every process calls this at once. Raises OSError where it cannot
        be written, StagesError where it would replace another.
        """
        kinds = ("weights", "buffers", "optimizer", "settings")
        found: dict[str, Any] = {"processes": self.layout.size, **{kind: {} for kind in kinds}}
        settings = settings_of(optimizer)
        for name, one in self.parameters.items():
            if self._holders.get(name, (self._process,))[0] == self._process:
                found["weights"][name] = entry(one, self.held.get(name))
                state = {} if optimizer is None else optimizer.state.get(one, {})
                found["optimizer"][name] = {
                    key: _kept(one, value, self.held.get(name)) for key, value in state.items()
                }
                if one in settings:
                    found["settings"][name] = settings[one]
        for name, one in self._buffers():
            found["buffers"][name] = entry(one, self.held.get(name))
        return write(folder, self.steps, self._process, found, self._channel.together)

    @torch.no_grad()
    def load(self, folder: Path, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Go on from the latest snapshot in a folder, which another plan of the same model may have written.

        The optimiser gets what it kept, and the settings that it had (learning rate, momentum) for each of its
        groups. Raises StagesError where there is no snapshot, it is of another model or another kind of optimiser,
        or a group of the optimiser holds parameters that had different settings.
        """
        found = Snapshot(latest(folder))
        for name, one in self.parameters.items():
            part = self.held.get(name)
            one.copy_(found.tensor("weights", name, part, one))
            if optimizer is not None and (state := found.optimizer_state(name, part)):
                optimizer.state[one] = state
        if optimizer is not None:
            found.restore_settings(optimizer, {one: name for name, one in self.parameters.items()})
        for name, one in self._buffers():
            one.copy_(found.tensor("buffers", name, self.held.get(name), one))
        self.steps = found.step

    def _buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Return the buffers of this process's stages of which a state dict tells."""
        names = {name for runner in self.stages for name, _ in runner.module.named_parameters()}
        states = [runner.module.state_dict(keep_vars=True) for runner in self.stages]
        return [(name, one) for state in states for name, one in state.items() if name not in names]

    def together(self) -> None:
        """Wait for all processes. Raises PeerError where one does not come."""
        self._channel.together()

    def _expect(self, action: Action) -> Arriving:
        """Begin to receive what an action needs from other stages."""
        stage, number = action.stage, action.micro_batch
        if action.kind is Kind.FORWARD and stage > 0:
            return self._exchange.expect(FORWARD, stage - 1, number)
        if action.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT) and stage < self.layout.schedule.stages - 1:
            return self._exchange.expect(BACKWARD, stage, number)
        return Arriving([])

    def _do(self, action: Action, arriving: Arriving, values: Mapping[str, Any]) -> None:
        """Do an action when what it needs is there, and send on what it gives."""
        stage, number = action.stage, action.micro_batch
        self.doing(f"stage {stage}: waiting for what {_PASSES[action.kind]} of micro-batch {number} needs")
        tensors = self._exchange.arrived(arriving)
        self.doing(f"stage {stage}: {_PASSES[action.kind]} of micro-batch {number}")
        began = time.perf_counter_ns()
        given = self._passed(action, tensors, values)
        settle(self._device)
        self.times.append((action, began, time.perf_counter_ns()))
        if action.kind is Kind.FORWARD and given:
            self._exchange.send(FORWARD, stage, number, given)
        elif action.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT) and stage > 0:
            self._exchange.send(BACKWARD, stage - 1, number, given)

    def _passed(
        self, action: Action, tensors: Sequence[torch.Tensor | None], values: Mapping[str, Any]
    ) -> Sequence[torch.Tensor | None]:
        """Run a pass; return what it gives to the stage after or before."""
        runner, number = self._runners[action.stage], action.micro_batch
        if self.layout.rests(action.stage, self._process):
            return ()
        if action.kind is Kind.FORWARD:
            rows = self.layout.rows_of_team(action.stage, self._process)
            inputs = [self._cut(values[one.name], number, rows) for one in runner.module.inputs]
            return runner.forward(number, [one for one in tensors if one is not None], inputs)
        if action.kind is Kind.WEIGHT_GRADIENT:
            runner.weight_gradient(number)
            found: Sequence[torch.Tensor | None] = ()
        else:
            found = (runner.backward if action.kind is Kind.BACKWARD else runner.input_gradient)(number, tensors)
        if self._copies is not None:
            self._copies.collect()
        return found

    def _cut(self, batch: object, number: int, rows: range) -> Any:  # noqa: ANN401 (tensors in any structure)
        """Return some samples of a micro-batch."""
        first = number * self.layout.micro_batch
        found = samples_of(batch, range(first + rows.start, first + rows.stop))
        return copied(found) if self.copy_samples else found

    def _part_of_loss(self, given: Sequence[torch.Tensor], number: int) -> torch.Tensor:
        """Return the part of the step's mean loss that these samples make."""
        samples = len(self.layout.samples(self.layout.schedule.stages - 1, self._process))
        if not samples:  # the mean over nothing is no number, but others wait for the gradients of what this made
            return torch.stack([one.sum() for one in given]).sum()
        outputs = self._interface.outputs(given)
        loss = self._loss(outputs, self._targets[number])
        if self.checks_loss:
            self.checks_loss = False
            check_mean(self._loss, outputs, self._targets[number], loss.detach(), samples)
        return loss * (samples / (self.layout.micro_batch * self.layout.schedule.micro_batches))

    def _total(self) -> float | None:
        last = self._runners.get(self.layout.schedule.stages - 1)
        if last is None or (last.total is None and not self._rests_at_the_end()):
            return None
        total, last.total = torch.zeros(()) if last.total is None else last.total, None
        total = total.to(self._device, torch.double)  # who rests does not know the format of the loss
        if not self.layout.speaks(self.layout.schedule.stages - 1, self._process):
            total = torch.zeros_like(total)
        self._channel.sum(total, self.layout.processes[-1], "sum of losses")
        return float(total)

    def _rests_at_the_end(self) -> bool:
        return self.layout.rests(self.layout.schedule.stages - 1, self._process)


def _untold(what: str) -> None:
    """Tell nobody what is done."""


def _kept(parameter: torch.Tensor, value: object, part: tuple[int, Indices] | None) -> object:
    """Return what an optimiser keeps of a parameter, with its place where it is as large as that."""
    if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.dim():
        return entry(value, part)
    return value
