"""Work out the shapes of an operator's results once: blocks that are alike ask for the same ones over and over.

On the meta device most of an operator's time goes into shapes, strides and formats of its results. Below torch's
autograd, where tensors have nothing else to them, these follow from those of the operands and from the other
arguments. So there the results of an operator that makes new tensors are remembered, and the next ones with the
same arguments are made like them, as torch's fake tensors do it too. What is called, and in which order, is left
as it is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class _Made:
    """How a tensor is laid out that an operator made."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def like(self) -> torch.Tensor:
        """Return a new tensor of the kind."""
        import torch

        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


@dataclass(slots=True)
class Shapes:
    """The results of operators by their arguments, as far as they can be told from these."""

    _known: dict[Any, _Made] = field(default_factory=dict)
    _operators: dict[Any, bool] = field(default_factory=dict)

    def result(self, operator: Any, arguments: Any, keywords: Any) -> object:  # noqa: ANN401
        """Return an operator's result: made like the one before on such arguments, else by the operator."""
        import torch

        makes = self._operators.get(operator)
        if makes is None:
            makes = self._operators[operator] = _makes_a_tensor(operator)
        key = None
        if makes:
            with contextlib.suppress(TypeError):  # a tensor or another argument that says more than its layout
                key = operator, torch.get_default_dtype(), _key(arguments), _key(tuple(keywords.items()))
        if key is None:
            return operator(*arguments, **keywords)
        known = self._known.get(key)
        if known is not None:
            return known.like()
        result = operator(*arguments, **keywords)
        plain = type(result) is torch.Tensor and result.device.type == "meta" and result.layout == torch.strided
        if plain and result.untyped_storage()._cdata not in _memory((arguments, tuple(keywords.values()))):
            made = _Made(tuple(result.shape), tuple(result.stride()), result.dtype)
            if made.like().untyped_storage().nbytes() == result.untyped_storage().nbytes():
                self._known[key] = made
        return result


def _makes_a_tensor(operator: Any) -> bool:  # noqa: ANN401
    """Tell whether an operator of torch's own reads operands and returns one tensor in memory of its own."""
    schema = operator._schema
    plain = all(one.alias_info is None for one in (*schema.arguments, *schema.returns))
    reads = any("Tensor" in str(one.type) for one in schema.arguments)
    return plain and len(schema.returns) == 1 and operator.namespace in ("aten", "prims") and reads


def _key(value: Any) -> Any:  # noqa: ANN401
    """Return what an argument says about results. Raises TypeError for one that might say more."""
    import torch

    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            raise TypeError(type(value).__name__)
        return tuple(value.shape), value.stride(), value.dtype, value.device
    if isinstance(value, (tuple, list)):
        return type(value), tuple(_key(one) for one in value)
    if isinstance(value, (bool, int, float, complex)):
        return type(value), value
    hash(value)
    return value


def _memory(value: Any) -> set[int]:  # noqa: ANN401
    """Return the memory of the tensors in an argument."""
    if hasattr(value, "untyped_storage"):
        return {value.untyped_storage()._cdata}
    return set[int]().union(*map(_memory, value)) if isinstance(value, (tuple, list)) else set()


def mode() -> contextlib.AbstractContextManager[object]:
    """Return the mode below autograd that asks :class:`Shapes` for every result."""
    import torch
    from torch._ops import _len_torch_dispatch_stack_pre_dispatch as looking_on
    from torch.utils._python_dispatch import TorchDispatchMode

    shapes = Shapes()
    above = torch._C.DispatchKeySet(torch._C.DispatchKey.PreDispatch)

    class Mode(TorchDispatchMode):
        """Hands every operator to ``shapes``."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:  # noqa: ANN401
            if not looking_on():
                return shapes.result(func, args, kwargs or {})
            with torch._C._ExcludeDispatchKeyGuard(above):  # whoever looks on was passed over, as by ``.data``
                return func(*args, **kwargs or {})

    return Mode()
