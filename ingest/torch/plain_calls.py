"""Models called as training calls them: in training mode, without the key-value caches of Hugging Face models.

A language model of Hugging Face's transformers keeps keys and values for the next token unless it is told not to
(``use_cache``), and returns them in an object that torch.export does not know. Training has no use for them.

Checkpointed regions (``torch.utils.checkpoint``) keep only what they read, and functions with a gradient of their
own (``torch.autograd.Function``) what ``save_for_backward`` was given and what was put on their context. An export
runs through both without a trace; here every operation in one is marked with its number and, of a function, with
what is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

CHECKPOINT = "pipecut_checkpoint"
"""The key of the number of a checkpointed region in what torch.fx notes of an operation."""
FUNCTION = "pipecut_function"
"""The key, in what torch.fx notes of an operation, of (number of the call, what it keeps)."""
KeptTensor = tuple[str, tuple[int, ...], int]
"""Where a tensor is from, its shape, and the bytes of an element."""
GIVEN, MADE, RETURNED = "given", "made", "returned"
"""Where a tensor that is kept comes from: the arguments of the call, or its forward pass."""


@contextlib.contextmanager
def as_in_training(module: nn.Module) -> Iterator[None]:
    """Put a module into training mode for a while, without caches of keys and values and without dropping layers.

    Which layers a step leaves out (``layerdrop``) is drawn anew each time, so a plan has room for all of them.
    """
    flags = {part: part.training for part in module.modules()}
    caching = [one for one in _configurations(module) if getattr(one, "use_cache", None) is True]
    dropping = [
        (one, name, value)
        for one in [*_configurations(module), *module.modules()]
        for name, value in vars(one).items()
        if name.endswith("layerdrop") and isinstance(value, float) and value
    ]
    module.train()
    for one in caching:
        setattr(one, "use_cache", False)  # noqa: B010
    for one, name, _ in dropping:
        setattr(one, name, 0.0)
    try:
        yield
    finally:
        for part, flag in flags.items():
            part.training = flag
        for one in caching:
            setattr(one, "use_cache", True)  # noqa: B010
        for one, name, value in dropping:
            setattr(one, name, value)


@contextlib.contextmanager
def marked_checkpoints() -> Iterator[None]:
    """Mark every operation that is exported inside a checkpointed region (:data:`CHECKPOINT` in its meta data)."""
    import torch.utils.checkpoint as room
    from torch.fx import traceback

    begin, function, regions = room._checkpoint_without_reentrant_generator, room.CheckpointFunction, count(1)

    def without_reentrance(*arguments: Any, **keywords: Any) -> Iterator[None]:  # noqa: ANN401
        steps = begin(*arguments, **keywords)
        next(steps)
        with traceback.annotate({CHECKPOINT: next(regions)}):
            yield
        next(steps, None)

    class Region:
        """Stands for ``CheckpointFunction``, which runs its region without gradients."""

        @staticmethod
        def apply(run: Any, preserve: bool, *arguments: Any) -> Any:  # noqa: ANN401
            del preserve
            with traceback.annotate({CHECKPOINT: next(regions)}):
                return run(*arguments)

    room._checkpoint_without_reentrant_generator, room.CheckpointFunction = without_reentrance, Region
    try:
        with traceback.preserve_node_meta():
            yield
    finally:
        room._checkpoint_without_reentrant_generator, room.CheckpointFunction = begin, function


@contextlib.contextmanager
def marked_functions() -> Iterator[None]:
    """Mark every operation that is exported inside a call of an ``autograd.Function``."""
    import torch
    from torch.fx import traceback

    room, calls = torch.autograd.Function, count(1)
    own = vars(room).get("apply")

    def apply(cls: Any, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
        kept: list[KeptTensor] = []
        context = _Context([getattr(one, "requires_grad", False) for one in arguments])
        with traceback.annotate({FUNCTION: (next(calls), kept)}):
            if cls.setup_context is room.setup_context:
                result = cls.forward(context, *arguments, **keywords)
            else:
                result = cls.forward(*arguments, **keywords)
                cls.setup_context(context, arguments, result)
        kept += _kept(context, [*arguments, *keywords.values()], result)
        return result

    room.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    try:
        with traceback.preserve_node_meta():
            yield
    finally:
        if own is None:
            del room.apply
        else:
            room.apply = own


class _Context:
    """Stands for the context of a call: remembers what is saved, and takes whatever is put on it."""

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(needs_input_grad)
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: object) -> None:
        """Keep tensors for the backward pass."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: object) -> None:
        """Keep nothing: forward-mode gradients are not computed in training."""

    def mark_dirty(self, *tensors: object) -> None:
        """Change nothing: what is written in place is seen in the trace."""

    def mark_non_differentiable(self, *tensors: object) -> None:
        """Change nothing: what is not differentiable is no floating-point number, or has no reader."""

    def set_materialize_grads(self, value: bool) -> None:
        """Change nothing: this is about the backward pass."""


def _kept(context: _Context, given: Sequence[object], result: object) -> Iterator[KeptTensor]:
    """Yield where each tensor that is kept comes from, its shape and the bytes of an element."""
    import torch

    returned = result if isinstance(result, (tuple, list)) else (result,)
    put = [value for name, value in vars(context).items() if name not in ("needs_input_grad", "saved_tensors")]
    for tensor in [*context.saved_tensors, *put]:
        if isinstance(tensor, torch.Tensor):
            source = GIVEN if any(tensor is one for one in given) else MADE
            source = RETURNED if any(tensor is one for one in returned) else source
            yield source, tuple(tensor.shape), tensor.element_size()


def _configurations(module: nn.Module) -> list[object]:
    """Return the configurations of a module and its parts, each once."""
    found = {id(one): one for part in module.modules() if (one := getattr(part, "config", None)) is not None}
    return list(found.values())
