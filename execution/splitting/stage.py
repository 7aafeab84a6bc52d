"""One stage of a plan as a torch module, with the model's own parameters under their own names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import nn

from execution.errors import StagesError
from execution.splitting.programs import HandedTensor, StageProgram

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
