"""What a user can do about an error of torch: models are built on the meta device, which few know."""

from __future__ import annotations

from collections.abc import Mapping

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
