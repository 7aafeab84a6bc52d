"""Run ``torch.export`` on a module: in training mode, without weights, quietly, with readable errors.

What a user can do about an error of torch: models are built on the meta device, which few know.

Models called as training calls them: in training mode, without the key-value caches of Hugging Face models.

A language model of Hugging Face's transformers keeps keys and values for the next token unless it is told not to
(``use_cache``), and returns them in an object that torch.export does not know. Training has no use for them.

Checkpointed regions (``torch.utils.checkpoint``) keep only what they read, and functions with a gradient of their
own (``torch.autograd.Function``) what ``save_for_backward`` was given and what was put on their context. An export
runs through both without a trace; here every operation in one is marked with its number and, of a function, with
what is kept.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from pipecut.ingest.errors import TraceError, first_line, place

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.export import ExportedProgram

_META = "models are built on torch's meta device, where tensors have shapes and no values"
_DATA_DEPENDENT = {
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "UserError",
    "PendingUnbackedSymbol",
}
_VALUES = f"{_META}: read no values, move nothing, and load no weights there"
_DEVICES = f"{_META}: create and leave all tensors there, without device=, .to() and .cuda()"
_ARGUMENTS = "the example inputs are a tuple of forward's arguments, or a mapping of them by name"
_ADVICE = {
    "item() cannot be called on meta": _VALUES,
    "meta device type tensor to numpy": _VALUES,
    "Cannot copy out of meta tensor": _VALUES,
    "at least two devices": _DEVICES,
    "CUDA": _DEVICES,
    "NVIDIA": _DEVICES,
    "in output, which is not a known type": "let forward return tensors, or tuples and dictionaries of them",
    ".numpy() is not supported": "compute with torch in forward, as numpy cannot be followed",
    "missing a required argument": _ARGUMENTS,
    "unexpected keyword argument": _ARGUMENTS,
    "too many positional arguments": _ARGUMENTS,
}
"""Parts of torch's messages, and what helps."""
_SHAPES = "check that the model runs on the example inputs"
_WRAP = "a mapping holds arguments by name; a dictionary that forward takes as a whole goes into a tuple: ({...},)"


def depends_on_values(error: BaseException) -> bool:
    """Tell whether a model chooses its operations by the values of tensors."""
    return any(ancestor.__name__ in _DATA_DEPENDENT for ancestor in type(error).__mro__)


def advice(error: BaseException, inputs: object = ()) -> str:
    """Return what a user can do about an error; in general, to look at the shapes of the example inputs."""
    text = str(error)
    if isinstance(error, TypeError) and isinstance(inputs, Mapping) and "argument" in text:
        return _WRAP
    return next((what for part, what in _ADVICE.items() if part in text), _SHAPES)


def built_on_meta(error: BaseException) -> str:
    """Return ``; `` and what helps if an error comes from where models are built, else nothing."""
    found = advice(error)
    return f"; {found}" if found.startswith(_META) else ""


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


Inputs = tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""Example inputs: positional (a tuple or list) or by keyword (a mapping)."""


def exported(module: nn.Module, inputs: Inputs, name: str) -> ExportedProgram:
    """Export a module in training mode, on the device of its parameters (the meta device, if it has none).

    The inputs' values are not used, so they are replaced by empty tensors on that device. The module's training
    flags are restored afterwards. Raises TraceError when torch cannot follow the module.
    """
    import torch.export

    device = one_device(module)
    arguments, keywords = on_device(inputs, device)
    with stepping(module, device):
        try:
            return torch.export.export(module, arguments, keywords, strict=False)
        except Exception as error:
            raise TraceError(_explain(name, module, inputs, error)) from error


@contextlib.contextmanager
def stepping(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Prepare for a module to be run as training runs it, on a device, quietly and with its regions marked."""
    import torch

    with as_in_training(module), marked_checkpoints(), marked_functions(), quiet(), torch.device(device):
        yield


def one_device(module: nn.Module) -> torch.device:
    """Return where a module lies; one that lies on the meta device in part is moved there as a whole.

    Such a module was built there, and ``torch.Tensor(8)``, which heeds no device, made the rest of it.
    """
    import torch

    tensors = [*module.parameters(), *module.buffers()]
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1 and torch.device("meta") in devices:
        module.to("meta")
        return torch.device("meta")
    return tensors[0].device if tensors else torch.device("meta")


def on_device(inputs: Inputs, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as positional and keyword arguments: empty tensors on a device in place of theirs."""
    import torch
    from torch.utils import _pytree as pytree

    def place(value: object) -> object:
        return torch.empty_like(value, device=device) if isinstance(value, torch.Tensor) else value

    placed = pytree.tree_map(place, dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs))
    return ((), placed) if isinstance(placed, dict) else (placed, {})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch logs off the terminal: what matters of it is in the error that follows."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), uncollected():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Leave garbage where it is for a while.

    Libraries, models and traces are objects that stay: to look for garbage among them takes a sixth of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _explain(name: str, module: nn.Module, inputs: Inputs, error: Exception) -> str:
    """Say in a sentence what torch could not follow, where, and what to do."""
    if depends_on_values(error):
        return (
            f"model {name}: its control flow depends on the values of tensors{place(error)}; a plan needs one "
            "fixed graph, so replace the branch by torch.where, or take it out of forward"
        )
    where = _innermost(module, error) + place(error)
    return f"model {name}: forward failed{where}: {first_line(error)}; {advice(error, inputs)}"


def _innermost(module: nn.Module, error: Exception) -> str:
    """Name the innermost module in whose forward an error was raised."""
    names = {id(part): path for path, part in module.named_modules()}
    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        part = frame.f_locals.get("self")
        if names.get(id(part)):
            found = f" in {names[id(part)]} ({type(part).__name__})"
    return found
