"""A model trained as a plan says: what one process of the run does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from execution.errors import StagesError
from execution.running.channel import Channel
from execution.running.exchange import BACKWARD, FORWARD, Arriving, Exchange
from execution.running.gradients import holders_of, sum_gradients, sums_of
from execution.running.layout import RunLayout
from execution.running.passes import StageRunner
from execution.splitting.programs import HandedTensor
from execution.splitting.stages import ModelProgram, ModelStages
from formulation.problem.plan import Plan
from formulation.schedules.actions import Action, Kind
from ingest.torch.export import Inputs

__all__ = ["Pipeline"]

LossFunction = Callable[[Any, Any], torch.Tensor]
"""From the model's outputs and the targets of some samples to the mean of their losses."""


class Pipeline:
    """The stages of a plan that one process runs, and its part in a step.

    ``inputs`` are example inputs of any batch. ``layers`` are those that the plan numbers. ``loss`` takes what the
    model returns and the targets of the same samples, and returns the mean over these. Every process makes its
    pipeline with the same arguments; ``connect`` gets the sets of processes that sum gradients and returns the
    channel. The other stages' parameters are not kept: drop the model, and their memory is free. ``times`` are the
    actions of the last step, with start and stop in ns.

    Raises StagesError where the plan cannot be run so, TraceError where torch cannot follow the model.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        plan: Plan,
        layout: RunLayout,
        loss: LossFunction,
        process: int,
        connect: Callable[[Sequence[Sequence[int]]], Channel],
        *,
        layers: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        """Export and split the model, and join the other processes."""
        self.layout = layout
        device = next((one.device for one in model.parameters()), torch.device("cpu"))
        mine = layout.stages_of(process)
        self._samples = layout.samples(mine[0], process)
        stages = _split(model, inputs, plan, layers, layout, process)
        handed = [stage.gives for stage in [*stages][:-1]]
        holders = holders_of(stages, layout)
        last = layout.processes[-1]
        self._channel = connect(tuple(dict.fromkeys([*sums_of(holders), *([last] if len(last) > 1 else [])])))
        self._exchange = Exchange(layout, self._channel, handed, device)
        self._interface = stages.interface
        self._loss = loss
        self._seed, self._steps = seed, 0
        self._targets: list[Any] = []
        self.times: list[tuple[Action, int, int]] = []
        self._runners = {
            at: StageRunner(
                stages[at],
                recompute=plan.stages[at].group.recompute,
                loss=self._part_of_loss if at == len(stages) - 1 else None,
                seed=(seed, 0, self._samples.start),
            )
            for at in mine
        }
        self.parameters = {name: one for at in mine for name, one in self._runners[at].module.named_parameters()}
        self._holders = {name: holders[name] for name in self.parameters if name in holders}
        self._actions = tuple(layout.schedule.actions(layout.rank_of[process]))

    @property
    def stages(self) -> tuple[StageRunner, ...]:
        """The stages that this process runs."""
        return tuple(self._runners.values())

    def step(self, inputs: Inputs, targets: object = None) -> float | None:
        """Run all micro-batches of a step and sum the gradients, which are then in the parameters' ``grad``.

        ``inputs`` and ``targets`` are those of the whole global batch. Returns the loss in the processes of the
        last stage, None in others. Raises PeerError where another process does not keep up.
        """
        keywords = isinstance(inputs, Mapping)
        values = self._interface.named(() if keywords else tuple(inputs), dict(inputs) if keywords else {})
        for runner in self.stages:
            runner.seed = (self._seed, self._steps, self._samples.start)
        self._steps += 1
        many = self.layout.schedule.micro_batches
        self._targets = [self._cut(targets, number) for number in range(many)]
        self.times = []
        waiting: dict[int, Arriving] = {}
        for at, action in enumerate(self._actions):
            for ahead in (at, at + 1):
                if ahead < len(self._actions) and ahead not in waiting:
                    waiting[ahead] = self._expect(self._actions[ahead])
            self._do(action, waiting.pop(at), values)
        self._exchange.finish()
        sum_gradients(self.parameters, self._holders, self._channel)
        return self._total()

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
        tensors = self._exchange.arrived(arriving)
        began = time.perf_counter_ns()
        given = self._passed(action, tensors, values)
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
        if action.kind is Kind.FORWARD:
            inputs = [self._cut(values[one.name], number) for one in runner.module.inputs]
            return runner.forward(number, [one for one in tensors if one is not None], inputs)
        if action.kind is Kind.WEIGHT_GRADIENT:
            runner.weight_gradient(number)
            return ()
        return (runner.backward if action.kind is Kind.BACKWARD else runner.input_gradient)(number, tensors)

    def _cut(self, batch: object, number: int) -> Any:  # noqa: ANN401 (tensors in any structure)
        """Return this process's samples of a micro-batch."""
        first = number * self.layout.micro_batch
        return samples_of(batch, range(first + self._samples.start, first + self._samples.stop))

    def _part_of_loss(self, given: Sequence[torch.Tensor], number: int) -> torch.Tensor:
        """Return the part of the step's mean loss that these samples make."""
        loss = self._loss(self._interface.outputs(given), self._targets[number])
        return loss * (len(self._samples) / (self.layout.micro_batch * self.layout.schedule.micro_batches))

    def _total(self) -> float | None:
        last = self._runners.get(self.layout.schedule.stages - 1)
        if last is None or last.total is None:
            return None
        total, last.total = last.total, None
        self._channel.sum(total, self.layout.processes[-1])
        return float(total)


def samples_of(batch: object, rows: range) -> Any:  # noqa: ANN401 (tensors in any structure)
    """Return some samples of a batch: of every tensor in it these rows of its first dimension."""
    return pytree.tree_map(
        lambda one: one[rows.start : rows.stop] if isinstance(one, torch.Tensor) else one, batch
    )


def _split(
    model: nn.Module,
    inputs: Inputs,
    plan: Plan,
    layers: Sequence[str] | None,
    layout: RunLayout,
    process: int,
) -> ModelStages:
    """Split a model for as many samples as a process takes; look at other sizes where the widths are not equal."""
    many = len(layout.samples(layout.stages_of(process)[0], process))
    stages = ModelProgram.of(model, _resized(inputs, many)).split(plan, layers=layers)
    uneven = [
        cut
        for cut in range(len(plan) - 1)
        if len(layout.processes[cut]) != len(layout.processes[cut + 1])
        and process in (*layout.processes[cut], *layout.processes[cut + 1])
    ]
    if uneven:
        others = ModelProgram.of(model, _resized(inputs, many + 1)).split(plan, layers=layers)
        for cut in uneven:
            for one, other in zip(stages[cut].gives, others[cut].gives, strict=True):
                _check_samples_first(cut, one, other, many)
    return stages


def _check_samples_first(cut: int, one: HandedTensor, other: HandedTensor, many: int) -> None:
    if one.shape[1:] != other.shape[1:] or (one.shape[:1], other.shape[:1]) != ((many,), (many + 1,)):
        raise StagesError(
            f"the cut before stage {cut + 1}: {one.name} of shape {list(one.shape)} does not have the samples as "
            "its first dimension, so stages of unequal widths cannot share it; cut elsewhere, or use equal widths"
        )


def _resized(inputs: Inputs, many: int) -> Inputs:
    """Return example inputs of so many samples, those of the example repeated."""

    def resized(one: object) -> object:
        if not isinstance(one, torch.Tensor):
            return one
        return one[torch.arange(many, device=one.device) % one.shape[0]]

    return pytree.tree_map(resized, dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs))
