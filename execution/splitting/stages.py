"""From a model and a plan to the modules of its stages.

How a split model is called and what it returns: its inputs by name, its outputs in the form of the model.

One stage of a plan as a torch module, with the model's own parameters under their own names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from pipecut.execution.errors import StagesError
from pipecut.execution.splitting.crossing import PartNodes, nodes_of_stages
from pipecut.execution.splitting.flat import Effects, FlatGraph, arguments_of, effects_of, flattened
from pipecut.execution.splitting.programs import Again, HandedTensor, StageProgram, stage_program
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.plan import Plan
from pipecut.ingest.operators.nodes import operator_of
from pipecut.ingest.torch.export import Inputs
from pipecut.ingest.torch.groups import group, names
from pipecut.ingest.torch.record import Followed, canonical_names


@dataclass(frozen=True, slots=True)
class ModelInterface:
    """``names`` are the inputs in the order of the flattened arguments, ``taken`` their structure.

    ``returned`` says for each output which of the tensors of the last stage it is (None: the value beside it),
    ``given`` the structure of the outputs.
    """

    names: tuple[str, ...]
    taken: pytree.TreeSpec | None
    returned: tuple[tuple[int | None, Any], ...]
    given: pytree.TreeSpec | None

    def named(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's arguments by name. Raises StagesError for another structure than the example's."""
        leaves, found = pytree.tree_flatten((tuple(args), dict(keywords)))
        if self.taken is not None and found != self.taken:
            raise StagesError(f"the model was split for arguments {self.taken}, got {found}")
        return dict(zip(self.names, leaves, strict=True))

    def outputs(self, tensors: Sequence[torch.Tensor]) -> Any:  # noqa: ANN401 (what the model returns)
        """Return what the model returns, from what the last stage gives."""
        leaves = [value if at is None else tensors[at] for at, value in self.returned]
        return leaves if self.given is None else pytree.tree_unflatten(leaves, self.given)


def interface_of(flat: FlatGraph, taken: pytree.TreeSpec | None, given: pytree.TreeSpec | None) -> ModelInterface:
    """Return how a model is called, by its graph and the structures of its arguments and outputs."""
    nodes = [one for one in flat.outputs if isinstance(one, fx.Node)]
    place = {node: at for at, node in enumerate(dict.fromkeys(nodes))}
    returned = tuple((place[one], None) if isinstance(one, fx.Node) else (None, one) for one in flat.outputs)
    return ModelInterface(tuple(node.name for node in flat.inputs), taken, returned, given)


Held = TypeVar("Held")


class StageModule(nn.Module):
    """A run of layers of a model.

    Its parameters and buffers are the model's own tensors under their own names, so its ``state_dict`` is a subset
    of the model's, and a checkpoint of the model loads with ``strict=False``. Called with the tensors of ``takes``
    and then those of ``inputs``, it returns a tuple of those of ``gives``. It computes what the model computes in
    training, whatever ``eval()`` is told.

    A program is made for one size of batch; :meth:`learn` adds another one.

    A model may call its parts as it likes, ``layers`` or ``forward``. So they lie where torch keeps parts of a
    module, and are no attributes of it: those are the stage's own, and are set before the first part comes.
    """

    def __init__(self, index: int, layers: Sequence[str]) -> None:
        """Make an empty stage: its place in the pipeline, and the names of its layers."""
        super().__init__()
        self.index = index
        self.layers = tuple(layers)
        self._programs: dict[tuple[tuple[int, ...], ...], StageProgram] = {}
        self._homes: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {}

    @property
    def takes(self) -> tuple[HandedTensor, ...]:
        """The tensors that come from the stage before, in order."""
        return self._any.takes

    @property
    def inputs(self) -> tuple[HandedTensor, ...]:
        """The inputs of the model that this stage reads."""
        return self._any.inputs

    @property
    def gives(self) -> tuple[HandedTensor, ...]:
        """The tensors that go to the next stage; those of the last one are the model's outputs."""
        return self._any.gives

    @property
    def written(self) -> tuple[str, ...]:
        """The buffers that a pass changes."""
        held = dict(self.named_buffers())
        return tuple(name for name in self._any.written if name in held)

    @property
    def _any(self) -> StageProgram:
        found = next(iter(self._programs.values()), None)
        if found is None:
            raise StagesError(f"stage {self.index} has no program yet")
        return found

    def learn(
        self, program: StageProgram, tensors: Mapping[str, torch.Tensor], unsaved: Iterable[str] = ()
    ) -> None:
        """Add the program of another size of batch.

        ``tensors`` are the model's parameters, buffers and constants by name; of those named in ``unsaved`` the
        state dict says nothing.
        """
        self._programs[_shapes(program)] = program
        for name in program.attributes:
            if name not in self._homes:
                self._homes[name] = self._adopt(name, tensors[name], persistent=name not in set(unsaved))

    def program_for(self, tensors: Sequence[torch.Tensor]) -> StageProgram:
        """Return the program for arriving tensors of these shapes. Raises StagesError if there is none."""
        found = self._programs.get(tuple(tuple(one.shape) for one in tensors))
        if found is None:
            known = " or ".join(str([list(shape) for shape in shapes]) for shapes in self._programs)
            got = [list(one.shape) for one in tensors]
            raise StagesError(f"stage {self.index}: it takes tensors of shapes {known}, got {got}")
        return found

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what the stage gives. Raises StagesError for tensors of other shapes than it was made for."""
        program = self.program_for(tensors)
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return program.module(*self.arguments(*tensors))

    def arguments(self, *tensors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return what the program for arriving tensors is called with: these, and the tensors that it uses."""
        held = [self._homes[name] for name in self.program_for(tensors).attributes]
        return (*tensors, *(home[name] for home, name in held))

    def train(self, mode: bool = True) -> StageModule:
        """Do nothing: a stage has one way to compute."""
        del mode
        return self

    def get_submodule(self, target: str) -> nn.Module:
        """Return the part of the model of a name. Raises AttributeError for one that is not here."""
        return _named(dict(self.named_modules(remove_duplicate=False)), target, "part")

    def get_parameter(self, target: str) -> nn.Parameter:
        """Return the parameter of a name. Raises AttributeError for one that is not here."""
        return _named(dict(self.named_parameters(remove_duplicate=False)), target, "parameter")

    def get_buffer(self, target: str) -> torch.Tensor:
        """Return the buffer of a name. Raises AttributeError for one that is not here."""
        return _named(dict(self.named_buffers(remove_duplicate=False)), target, "buffer")

    @contextlib.contextmanager
    def buffers_as(self, buffers: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Let passes use and change these tensors instead of the buffers of their names."""
        homes = {name: self._homes[name] for name in buffers}
        kept = {name: home[last] for name, (home, last) in homes.items()}
        try:
            for name, (home, last) in homes.items():
                home[last] = buffers[name]
            yield
        finally:
            for name, (home, last) in homes.items():
                home[last] = kept[name]

    def _adopt(
        self, name: str, tensor: torch.Tensor, *, persistent: bool
    ) -> tuple[dict[str, torch.Tensor | None], str]:
        """Register a tensor under its name in the model; return where it is found from now on."""
        *path, last = name.split(".")
        owner: nn.Module = self
        for part in path:
            owner = owner._modules.setdefault(part, nn.Module())  # type: ignore[assignment]
        if isinstance(tensor, nn.Parameter):
            owner._parameters[last] = tensor
            return owner._parameters, last  # type: ignore[return-value]
        owner._buffers[last] = tensor
        owner._non_persistent_buffers_set.update(() if persistent else (last,))
        return owner._buffers, last


def _shapes(program: StageProgram) -> tuple[tuple[int, ...], ...]:
    return tuple(one.shape for one in (*program.takes, *program.inputs))


def _named(held: Mapping[str, Held], name: str, what: str) -> Held:
    if name not in held:
        raise AttributeError(f"the stage has no {what} {name}")
    return held[name]


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
            f"the plan's stages hold layers {spans or 'of no stage'}; the model's layers are {len(called)}, and "
            "each must be in one stage: make the plan from this model with inputs of this form"
        )
