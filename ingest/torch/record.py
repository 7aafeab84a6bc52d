"""From a torch module to a ``operations.Recording``: follow it, else export it; keep what is live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipecut.ingest.errors import TraceError
from pipecut.ingest.operators.costs import Operator, own_rules
from pipecut.ingest.operators.operations import ModuleKind, Operation, Recorder, Recording, Tensor, tensors_in
from pipecut.ingest.torch.export import Inputs, exported
from pipecut.ingest.torch.follow import NotFollowedError
from pipecut.ingest.torch.follow import follow as following
from pipecut.ingest.torch.walk import Walk

if TYPE_CHECKING:
    import torch
    from torch import fx, nn
    from torch.export import ExportedProgram


@dataclass(frozen=True, slots=True)
class Followed:
    """A module as torch exported it, its recording, and the node of every operation by position."""

    program: ExportedProgram
    recording: Recording
    nodes: Sequence[fx.Node]

    @staticmethod
    def of(
        module: nn.Module, inputs: Inputs, name: str, operators: Mapping[str, str | Operator] | None = None
    ) -> Followed:
        """Trace a module and return its program with its live operations in execution order.

        ``inputs`` are example inputs whose dimension 0 is the batch, ``operators`` a user's rules. Raises
        TraceError when torch cannot follow the module, when the inputs disagree on the batch, and when the outputs
        do not depend on the inputs.
        """
        program = exported(module, inputs, name)
        walk = Walk(name, canonical_names(module), Recorder(own_rules(operators or {})))
        outputs = walk.program(program)
        returned = tuple(walk.current(tensor) for tensor in tensors_in(outputs))
        return Followed(program, _recording(module, inputs, name, walk.operations, returned), tuple(walk.nodes))


def record(
    module: nn.Module,
    inputs: Inputs,
    name: str,
    operators: Mapping[str, str | Operator] | None = None,
    *,
    follow: bool = True,
) -> Recording:
    """Trace a module and return its live operations in order, as :meth:`Followed.of` does with the program.

    Without ``follow`` it is exported even where it can be followed, which takes longer and comes to the same.
    """
    if not follow:
        return Followed.of(module, inputs, name, operators).recording
    common_batch([tuple(tensor.shape) for tensor in _leaves(inputs)], name)
    try:
        trail = following(module, inputs, canonical_names(module), own_rules(operators or {}))
    except NotFollowedError:
        return Followed.of(module, inputs, name, operators).recording
    return _recording(module, inputs, name, trail.operations, trail.outputs)


def _recording(
    module: nn.Module, inputs: Inputs, name: str, operations: Sequence[Operation], returned: tuple[Tensor, ...]
) -> Recording:
    parameters = dict(module.named_parameters())
    return Recording(
        operations=live(operations, returned, name),
        outputs=returned,
        parameter_bytes={key: value.numel() * value.element_size() for key, value in parameters.items()},
        frozen=frozenset(key for key, value in parameters.items() if not value.requires_grad),
        modules={path: _kind(part) for path, part in module.named_modules(remove_duplicate=False)},
        batch=common_batch([tuple(tensor.shape) for tensor in _leaves(inputs)], name),
        element_bytes=_element_bytes([*parameters.values(), *_leaves(inputs)]),
    )


def _leaves(inputs: Inputs) -> list[torch.Tensor]:
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def common_batch(shapes: Sequence[tuple[int, ...]], name: str) -> int:
    """Return dimension 0 of all example inputs. Raises TraceError where they disagree."""
    if not shapes:
        raise TraceError(f"model {name}: no tensor among the example inputs, expected at least one")
    batches = {shape[0] if shape else None for shape in shapes}
    batch = batches.pop()
    if batches or not batch:
        listed = ", ".join(str(shape) for shape in shapes)
        raise TraceError(
            f"model {name}: example inputs of shapes {listed}; "
            "expected the same batch, 1 or more, as dimension 0 of all of them"
        )
    return batch


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Map every registered name of a parameter to the first one, so that tied weights are known as one."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }


def _kind(module: nn.Module) -> ModuleKind:
    classes = type(module).__mro__
    torch_name = next((each.__name__ for each in classes if each.__module__.startswith("torch.nn.modules")), "")
    return ModuleKind(classes[0].__name__, torch_name)


def _element_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Size of the number format: that of the first floating-point parameter, else input, else 4 bytes."""
    return next((tensor.element_size() for tensor in tensors if tensor.is_floating_point()), 4)


def live(operations: Sequence[Operation], outputs: Iterable[Tensor], name: str) -> tuple[Operation, ...]:
    """Return the operations that reach an output and depend on the inputs. Raises TraceError if there is none.

    Counters such as BatchNorm's ``num_batches_tracked`` reach none; masks, position numbers and rotary tables
    that are computed from constants depend on no input, so each user recomputes them at its own place.
    """
    reached: set[int] = set()
    waiting = [tensor.producer for tensor in outputs]
    while waiting:
        position = waiting.pop()
        if position is not None and position not in reached:
            reached.add(position)
            waiting += [operand.producer for operand in operations[position].operands]
    found = tuple(each for each in operations if each.position in reached and each.batched)
    if not found:
        raise TraceError(f"model {name}: its outputs do not depend on its inputs, so there is nothing to cut")
    return found
