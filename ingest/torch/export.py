"""Run ``torch.export`` on a module: in training mode, without weights, quietly, with readable errors."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ingest.errors import TraceError, first_line, place
from ingest.torch.plain_calls import as_in_training

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.export import ExportedProgram

Inputs = tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""Example inputs: positional (a tuple or list) or by keyword (a mapping)."""

_DATA_DEPENDENT = (
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "UserError",
    "PendingUnbackedSymbol",
)


def exported(module: nn.Module, inputs: Inputs, name: str) -> ExportedProgram:
    """Export a module in training mode, on the device of its parameters (the meta device, if it has none).

    The inputs' values are not used, so they are replaced by empty tensors on that device. The module's training
    flags are restored afterwards. Raises TraceError when torch cannot follow the module.
    """
    import torch
    import torch.export

    device = next((parameter.device for parameter in module.parameters()), torch.device("meta"))
    arguments, keywords = _on_device(inputs, device)
    with as_in_training(module), _quiet(), torch.device(device):
        try:
            return torch.export.export(module, arguments, keywords, strict=False)
        except Exception as error:
            raise TraceError(_explain(name, error)) from error


def _on_device(inputs: Inputs, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch
    from torch.utils import _pytree as pytree

    def place(value: object) -> object:
        return torch.empty_like(value, device=device) if isinstance(value, torch.Tensor) else value

    placed = pytree.tree_map(place, dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs))
    return ((), placed) if isinstance(placed, dict) else (placed, {})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's warnings off the terminal: what matters of them is in the error that follows."""
    level, collecting = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.WARNING)
    gc.disable()  # an export makes long-lived objects: looking for garbage among them costs a sixth of the time
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if collecting:
            gc.enable()


def _explain(name: str, error: Exception) -> str:
    """Say in a sentence what torch could not follow, where, and what to do."""
    if any(ancestor.__name__ in _DATA_DEPENDENT for ancestor in type(error).__mro__):
        return (
            f"model {name}: its control flow depends on the values of tensors{place(error)}; a plan needs one "
            "fixed graph, so replace the branch by torch.where, or take it out of forward"
        )
    return (
        f"model {name}: torch.export could not follow its forward ({first_line(error)}){place(error)}; "
        "check that it runs on the example inputs under torch.device('meta')"
    )
