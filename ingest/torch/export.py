"""Run ``torch.export`` on a module: in training mode, without weights, quietly, with readable errors."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ingest.errors import TraceError, first_line, place
from ingest.torch.advice import advice, depends_on_values
from ingest.torch.plain_calls import as_in_training, marked_checkpoints, marked_functions

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.export import ExportedProgram

Inputs = tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""Example inputs: positional (a tuple or list) or by keyword (a mapping)."""


def exported(module: nn.Module, inputs: Inputs, name: str) -> ExportedProgram:
    """Export a module in training mode, on the device of its parameters (the meta device, if it has none).

    The inputs' values are not used, so they are replaced by empty tensors on that device. The module's training
    flags are restored afterwards. Raises TraceError when torch cannot follow the module.
    """
    import torch
    import torch.export

    device = _one_device(module)
    arguments, keywords = _on_device(inputs, device)
    with as_in_training(module), marked_checkpoints(), marked_functions(), quiet(), torch.device(device):
        try:
            return torch.export.export(module, arguments, keywords, strict=False)
        except Exception as error:
            raise TraceError(_explain(name, module, inputs, error)) from error


def _one_device(module: nn.Module) -> torch.device:
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


def _on_device(inputs: Inputs, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch
    from torch.utils import _pytree as pytree

    def place(value: object) -> object:
        return torch.empty_like(value, device=device) if isinstance(value, torch.Tensor) else value

    placed = pytree.tree_map(place, dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs))
    return ((), placed) if isinstance(placed, dict) else (placed, {})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch logs off the terminal: what matters of it is in the error that follows."""
    level, collecting = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.CRITICAL)
    gc.disable()  # an export makes long-lived objects: looking for garbage among them costs a sixth of the time
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
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
