"""From a model and a plan to the modules of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import fx, nn

from execution.errors import StagesError
from execution.splitting.crossing import PartNodes, nodes_of_stages
from execution.splitting.effects import Effects, arguments_of, effects_of
from execution.splitting.flat import FlatGraph, flattened
from execution.splitting.interface import ModelInterface, interface_of
from execution.splitting.programs import Again, stage_program
from execution.splitting.stage import StageModule
from formulation.problem.layers import Split
from formulation.problem.plan import Plan
from ingest.operators.nodes import operator_of
from ingest.torch.export import Inputs
from ingest.torch.groups import group, names
from ingest.torch.record import Followed, canonical_names


class ModelStages(Sequence[StageModule]):
    """The stages of a model in pipeline order.

    Called as the model is called it runs them one after another and returns what the model returns. For a loop of
    your own: :meth:`inputs` gives the model's inputs by name, every stage says what it takes and gives, and
    :meth:`outputs` puts what the last stage gives into the form that the model returns.
    """

    def __init__(self, modules: Sequence[StageModule], interface: ModelInterface) -> None:
        """Keep the stages with how the model is called."""
        self._modules = tuple(modules)
        self.interface = interface

    @overload
    def __getitem__(self, at: int) -> StageModule: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[StageModule, ...]: ...
    def __getitem__(self, at: int | slice) -> StageModule | tuple[StageModule, ...]:
        """Return a stage by its place in the pipeline."""
        return self._modules[at]

    def __len__(self) -> int:
        """Return the number of stages."""
        return len(self._modules)

    def __iter__(self) -> Iterator[StageModule]:
        """Yield the stages in pipeline order."""
        return iter(self._modules)

    def inputs(self, *args: Any, **keywords: Any) -> dict[str, Any]:  # noqa: ANN401 (as the model takes them)
        """Return the model's arguments by the names that the stages call them.

        Raises StagesError for arguments of another structure than those of the example.
        """
        return self.interface.named(args, keywords)

    def outputs(self, given: Sequence[torch.Tensor]) -> Any:  # noqa: ANN401 (what the model returns)
        """Return what the model returns, from what the last stage gives."""
        return self.interface.outputs(given)

    def __call__(self, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401 (as the model)
        """Run all stages in this process and return what the model returns."""
        values = self.inputs(*args, **keywords)
        given: tuple[torch.Tensor, ...] = ()
        for stage in self:
            given = stage(*given, *(values[one.name] for one in stage.inputs))
        return self.outputs(given)


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """A model followed once, for one size of batch: it can be split in many ways.

    ``layers`` are the names of its layers in execution order, ``splits`` how each takes part in parallel forms.
    """

    model: nn.Module
    followed: Followed
    flat: FlatGraph
    effects: Effects
    layers: tuple[str, ...]
    splits: tuple[Split, ...]

    @classmethod
    def of(cls, model: nn.Module, inputs: Inputs) -> ModelProgram:
        """Export a model. Raises ``ingest.errors.TraceError`` where torch cannot follow it, and StagesError."""
        followed = Followed.of(model, inputs, type(model).__name__)
        runs, home = group(followed.recording)
        layer = {node: home[at] for at, node in enumerate(followed.nodes) if at in home}
        flat = flattened(followed.program, model, canonical_names(model), layer)
        called, splits = tuple(name for name, _ in names(runs)), tuple(run.split()[0] for run in runs)
        for operation in followed.recording.operations:
            if operation.function is not None:
                at = called[home[operation.position]]
                raise StagesError(
                    f"layer {at}: a torch.autograd.Function has a gradient of its own, and a stage would learn by"
                    " that of its forward pass: write it as plain operators to run plans"
                )
        return cls(model, followed, flat, effects_of(flat), called, splits)

    def split(
        self,
        plan: Plan,
        into: ModelStages | None = None,
        *,
        layers: Sequence[str] | None = None,
        again: Mapping[str, int] | None = None,
    ) -> ModelStages:
        """Return the stages of a plan, or teach those of another size of batch this one as well.

        ``layers`` are the layers that the plan numbers; without them they are the model's in execution order.
        Those in ``again`` keep nothing and are computed again in the backward pass, neighbours of one number at
        once. Raises StagesError where the plan does not fit the model, or a cut cannot be made. Cost: linear in
        nodes.
        """
        named = self.layers if layers is None else tuple(layers)
        parts = self.parts(plan, named)
        modules = (
            [*into]
            if into is not None
            else [
                StageModule(at, named[stage.span.first : stage.span.stop]) for at, stage in enumerate(plan.stages)
            ]
        )
        for module, part in zip(modules, parts, strict=True):
            which = Again(self.numbers(again or {}), f"stage {module.index}")
            program = stage_program(self.flat, part, self.effects, which)
            module.learn(program, self.flat.attributes, self.unsaved)
        return into if into is not None else ModelStages(modules, self._interface())

    def numbers(self, runs: Mapping[str, int]) -> Mapping[int, int]:
        """Return runs of layers by the number of the layer in execution order, given them by name."""
        return {at: runs[name] for at, name in enumerate(self.layers) if name in runs}

    def parts(self, plan: Plan, layers: Sequence[str]) -> tuple[PartNodes, ...]:
        """Return the nodes of every stage of a plan that numbers these layers. Raises StagesError."""
        _check_layers(plan, self.layers, layers)
        stage_of_name = {layers[one]: at for at, stage in enumerate(plan.stages) for one in stage.span.layers}
        return nodes_of_stages(self.flat, self.effects, [stage_of_name[name] for name in self.layers])

    @property
    def statistics(self) -> frozenset[fx.Node]:
        """The nodes that take statistics over all samples, as batch normalisation does in training."""
        found = (node for node in self.flat.nodes if "batch_norm" in operator_of(node))
        return frozenset(node for node in found if arguments_of(node).get("training"))

    @property
    def unsaved(self) -> set[str]:
        """The buffers and constants of which the model's state dict says nothing."""
        return set(self.flat.attributes) - set(self.followed.program.state_dict)

    def _interface(self) -> ModelInterface:
        called = self.followed.program.call_spec
        return interface_of(self.flat, called.in_spec, called.out_spec)


def stages(model: nn.Module, inputs: Inputs, plan: Plan, *, layers: Sequence[str] | None = None) -> ModelStages:
    """Return the modules of a plan's stages, which share the parameters and buffers of the model.

    ``inputs`` are example inputs of the batch that the stages will get (a tuple, or a mapping of keywords).
    ``layers`` are the names of the layers that the plan numbers, in its order; they are compared with the model's,
    whose order of execution counts where they are left out.
    Forms, replicas and recomputation of the plan say how a stage is run, not what it computes: a stage is whole
    here. Raises ``ingest.errors.TraceError`` where torch cannot follow the model, and StagesError where the plan
    does not fit it or a cut cannot be made. Cost: one ``torch.export``.
    """
    return ModelProgram.of(model, inputs).split(plan, layers=layers)


def _check_layers(plan: Plan, called: Sequence[str], named: Sequence[str]) -> None:
    """Raise StagesError unless a plan's stages hold all layers of a model, each once and in the plan's order."""
    for one, other, whose in ((called, named, "plan"), (named, called, "model")):
        lacking = [name for name in one if name not in set(other)]
        if lacking:
            raise StagesError(
                f"layer {lacking[0]} is not in the {whose}: the plan was made from another model, or with inputs "
                "of another form"
            )
    listed = [layer for stage in plan.stages for layer in stage.span.layers]
    if not plan.stages or listed != list(range(len(called))):
        spans = ", ".join(f"{stage.span.first} to {stage.span.stop - 1}" for stage in plan.stages)
        raise StagesError(
            f"the plan's stages hold layers {spans or 'of no stage'}; the model has {len(called)} layers, and "
            "each must be in one stage: make the plan from this model with inputs of this form"
        )
