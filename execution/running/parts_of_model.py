"""The stages of a model for one process of a run: its own ones for as many samples as it takes, divided or not.

Gradients summed over the processes that hold a parameter: replicas of a stage, all stages of a tied weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils import _pytree as pytree

from pipecut.execution.dividing.deciding import Decided, StageForms, decide, places_of
from pipecut.execution.dividing.divided_programs import DividedStage, divided_stage
from pipecut.execution.dividing.moves import ROWS, WHOLE, Indices, Team, taking
from pipecut.execution.dividing.values import Rows, StageWork
from pipecut.execution.errors import StagesError
from pipecut.execution.processes.channel import Channel
from pipecut.execution.running.layout import RunLayout
from pipecut.execution.splitting.programs import HandedTensor
from pipecut.execution.splitting.stages import ModelInterface, ModelProgram, ModelStages, StageModule
from pipecut.formulation.problem.plan import Plan
from pipecut.ingest.torch.export import Inputs


def holders_of(stages: Iterable[StageModule], layout: RunLayout) -> dict[str, tuple[int, ...]]:
    """Return for every trained parameter the processes that hold it, in order."""
    found: dict[str, set[int]] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            if parameter.requires_grad:
                found.setdefault(name, set()).update(layout.processes[stage.index])
    return {name: tuple(sorted(holders)) for name, holders in found.items()}


def sums_of(holders: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the sets of processes that sum gradients, the same list in every process."""
    return tuple(sorted({one for one in holders.values() if len(one) > 1}))


class Earlier:
    """Gradients that are there before a step: they have been summed, and must not be summed again."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Take them out of the parameters."""
        self._kept = [(one, one.grad) for one in parameters.values() if one.grad is not None]
        for one, _ in self._kept:
            one.grad = None

    @torch.no_grad()
    def add(self) -> None:
        """Add the gradients of the step to them."""
        for one, earlier in self._kept:
            one.grad = earlier if one.grad is None else earlier.add_(one.grad)
        self._kept.clear()


def sum_gradients(
    parameters: Mapping[str, nn.Parameter], holders: Mapping[str, tuple[int, ...]], channel: Channel
) -> None:
    """Sum the gradients of this process's parameters, each over its holders: one buffer for each set of these.

    A parameter without a gradient counts as one of zeros. Raises PeerError.
    """
    for members in sums_of(holders):
        if channel.process not in members:
            continue
        summed = [parameters[name] for name, held in sorted(holders.items()) if held == members]
        for dtype in sorted({one.dtype for one in summed}, key=str):
            _sum_of([one for one in summed if one.dtype == dtype], members, channel)


def _sum_of(parameters: Sequence[nn.Parameter], members: Sequence[int], channel: Channel) -> None:
    flat = torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).reshape(-1) for one in parameters])
    channel.sum(flat, members, "sum of gradients")
    for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


@dataclass(slots=True)
class PartsOfModel:
    """What a process has of a model.

    ``stages`` are all stages, of which only its own run here; ``teams`` the replicas of its divided ones;
    ``holders`` says of each parameter which processes sum its gradient, ``held`` of which it has only a part:
    dimension and indices.
    """

    stages: list[StageModule]
    interface: ModelInterface
    holders: dict[str, tuple[int, ...]]
    teams: dict[int, Team] = field(default_factory=dict)
    held: dict[str, tuple[int, Indices]] = field(default_factory=dict)


def groups_of(parts: PartsOfModel, layout: RunLayout) -> tuple[tuple[int, ...], ...]:
    """Return all sets of processes that exchange or sum something together, the same list in every process."""
    found = {one for one in parts.holders.values()} | {layout.processes[-1]}
    for stage, devices in enumerate(layout.stages):
        for process in devices.processes if devices.degree > 1 else ():
            found |= {layout.team(stage, process), layout.counterparts(stage, process)}
    return tuple(sorted(one for one in found if len(one) > 1))


def parts_of(
    model: nn.Module, inputs: Inputs, plan: Plan, layout: RunLayout, process: int, layers: Sequence[str] | None
) -> PartsOfModel:
    """Split a model as a process runs it. Cost: an export of the model for each number of samples.

    Raises StagesError where the plan cannot be run so, TraceError where torch cannot follow the model.
    """
    return _Splitting(model, inputs, plan, layout, process, layers).parts()


def check_parts(
    model: nn.Module, inputs: Inputs, plan: Plan, layout: RunLayout, layers: Sequence[str] | None
) -> None:
    """Split a model, which may have no weights, as one process of each stage would, and run nothing.

    Cost: an export of the model for each number of samples. Raises as :func:`parts_of` does.
    """
    splitting = _Splitting(model, inputs, plan, layout, 0, layers)
    for process in sorted({devices.processes[0] for devices in layout.stages}):
        splitting.process = process
        splitting.parts()


class _Splitting:
    """Splits a model; ``_programs`` and ``_splits`` are kept by the number of samples."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        plan: Plan,
        layout: RunLayout,
        process: int,
        layers: Sequence[str] | None,
    ) -> None:
        self._model, self._inputs, self._plan, self._layout = model, inputs, plan, layout
        self.process, self._layers = process, layers
        self._programs: dict[int, ModelProgram] = {}
        self._splits: dict[int, ModelStages] = {}

    def parts(self) -> PartsOfModel:
        """Return what the process has."""
        layout, mine = self._layout, self._layout.stages_of(self.process)
        # A device without samples holds what one with a sample does.
        sizes = {at: len(layout.samples(at, self.process)) or 1 for at in mine}
        every = self._split(sizes[mine[0]])
        stages = [self._split(sizes.get(at, sizes[mine[0]]))[at] for at in range(len(every))]
        found = PartsOfModel(stages, every.interface, holders_of(every, layout))
        program = self._program(sizes[mine[0]])
        for at, devices in enumerate(layout.stages):  # every process refuses what is the same in all
            if devices.degree == 1:
                self._check_statistics(at, program)
            elif at in mine:
                self._divide(at, found)
        self._check_cuts(stages, mine)
        return found

    def _divide(self, at: int, found: PartsOfModel) -> None:
        """Replace a stage by this device's part of it."""
        layout, process = self._layout, self.process
        team = Team(members := layout.team(at, process), members.index(process))
        others = {name for one in self._split(next(iter(self._splits))) if one.index != at for name in _named(one)}
        shares, degree = layout.stages[at].shares, layout.stages[at].degree
        alike = len({shares[first : first + degree] for first in range(0, len(shares), degree)}) == 1
        divided, program = self._divided(at, team, others, alike=alike)
        whole = program.flat.attributes
        tensors = {name: _part_of(one, divided.held.get(name)) for name, one in whole.items()}
        module = StageModule(at, found.stages[at].layers)
        module.learn(divided.program, tensors, program.unsaved)
        found.stages[at], found.teams[at] = module, team
        found.held |= divided.held
        for name in (*divided.held, *divided.alike):
            if name in found.holders:
                found.holders[name] = layout.counterparts(at, process)

    def _divided(self, at: int, team: Team, others: set[str], *, alike: bool) -> tuple[DividedStage, ModelProgram]:
        layout, process = self._layout, self.process
        devices, all_of = layout.stages[at], layout.rows_of_team(at, process)
        program = self._program(len(all_of) or 1)
        named = program.layers if self._layers is None else tuple(self._layers)
        forms = {name: self._plan.stages[at].form(one) for one, name in enumerate(named) if self._has(at, one)}
        if devices.together:  # what is summed to rows, or gathered from them, is whole
            forms = {name: {3: 1, 4: 2}.get(form, form) for name, form in forms.items()}
        rows = [layout.rows(at, one) for one in team.members]
        flat, part = program.flat, program.parts(self._plan, named)[at]
        shares = tuple(devices.shares[devices.processes.index(one)] for one in team.members)
        given = WHOLE if devices.together else ROWS
        kinds = enumerate(zip(program.layers, program.splits, strict=True))
        layers = {one: (name, split, forms[name]) for one, (name, split) in kinds if name in forms}
        stage = StageForms(at, layers, shares, given)
        decided = decide(flat, part, program.effects, stage, places_of(flat.nodes, program.effects.batched))
        self._check_statistics(at, program, decided)
        mine = None
        if not devices.together and all_of:
            mine = {node.name: node for node in self._program(len(layout.rows(at, process))).flat.nodes}
        samples = tuple(range(one.start - all_of.start, one.stop - all_of.start) for one in rows)
        again = program.numbers(self._layout.again)
        work = StageWork(
            flat, part, program.effects, decided, team, Rows(samples, mine), given, f"stage {at}", again
        )
        return divided_stage(work, lambda name: alike and name not in others), program

    def _check_statistics(self, at: int, program: ModelProgram, decided: Decided | None = None) -> None:
        """Raise StagesError where a device would take statistics over a part of the samples of a micro-batch."""
        layout, many = self._layout, self._layout.micro_batch
        named = program.layers if self._layers is None else tuple(self._layers)
        for node in program.parts(self._plan, named)[at].nodes if program.statistics else ():
            rows = layout.rows if decided is None or decided.lies.get(node) == ROWS else layout.rows_of_team
            held = [len(rows(at, one)) for one in layout.processes[at]]
            if node in program.statistics and min(held) < many:
                layer, shares = program.layers[program.flat.layer[node]], ", ".join(map(str, held))
                raise StagesError(
                    f"stage {at}: layer {layer} takes the statistics of the samples that it gets (batch "
                    f"normalisation), and the devices have {shares} of the {many} of a micro-batch, so gradients "
                    "would differ from the unsplit model's: plan with constraints.devices_per_stage: [1], or "
                    "normalise each sample by itself (group normalisation)"
                )

    def _has(self, stage: int, layer: int) -> bool:
        return layer in self._plan.stages[stage].span

    def _program(self, many: int) -> ModelProgram:
        if many not in self._programs:
            self._programs[many] = ModelProgram.of(self._model, _resized(self._inputs, many))
        return self._programs[many]

    def _split(self, many: int) -> ModelStages:
        if many not in self._splits:
            self._splits[many] = self._program(many).split(
                self._plan, layers=self._layers, again=self._layout.again
            )
        return self._splits[many]

    def _check_cuts(self, stages: Sequence[StageModule], mine: Sequence[int]) -> None:
        """Look at another number of samples where neighbours do not take the same ones."""
        layout = self._layout
        uneven = [
            cut
            for cut in range(len(stages) - 1)
            if (cut in mine or cut + 1 in mine)
            and [layout.samples(cut, one) for one in layout.processes[cut]]
            != [layout.samples(cut + 1, one) for one in layout.processes[cut + 1]]
        ]
        if not uneven:
            return
        many = next(iter(self._splits))
        one, other = self._split(many), self._split(many + 1)
        for cut in uneven:
            for first, second in zip(one[cut].gives, other[cut].gives, strict=True):
                _check_samples_first(cut, first, second, many)


def _named(stage: StageModule) -> list[str]:
    return [name for name, _ in (*stage.named_parameters(), *stage.named_buffers())]


def _part_of(tensor: torch.Tensor, held: tuple[int, Indices] | None) -> torch.Tensor:
    """Return a part of a parameter or buffer, in memory of its own."""
    if held is None:
        return tensor
    part = taking(tensor.detach(), *held).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(part, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else part


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
