"""Models that are equal are exported once: a test makes one for every process, and several of one kind of model.

What stages hold are the tensors of the model that is split; of an export they take the graph alone.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from pipecut.ingest.torch import export, record

VALUES, ENTRIES = 4096, 200


class _Form:
    """What an export depends on, as a key: two models have the same one only if they compute the same."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}
        self.known = True

    def of(self, one: object) -> Hashable:
        if isinstance(one, nn.Module):
            again = id(one) in self.numbers
            number = self.numbers.setdefault(id(one), len(self.numbers))
            return number if again else (number, type(one), type(one).forward, self.of(vars(one)))
        if isinstance(one, torch.Tensor):
            return self._tensor(one)
        if isinstance(one, dict):
            return tuple((key, self.of(value)) for key, value in one.items())
        if isinstance(one, (list, tuple)):
            return type(one), tuple(map(self.of, one))
        if isinstance(one, functools.partial):
            return self.of((one.func, one.args, one.keywords))
        plain = (str, int, float, bool, type(None), frozenset, torch.dtype, torch.device, type)
        if isinstance(one, set):
            return frozenset(one)
        if not isinstance(one, (*plain, types.FunctionType, types.BuiltinFunctionType)):
            self.known = False
            return None
        return type(one), one

    def _tensor(self, one: torch.Tensor) -> Hashable:
        held = (one.untyped_storage()._cdata, one.storage_offset())
        numbers = [self.numbers.setdefault(key, len(self.numbers)) for key in (id(one), held)]
        values, stands = None, not isinstance(one, nn.Parameter)  # those of a constant stand in the program
        readable = one.numel() <= VALUES and one.dtype != torch.bfloat16  # which numpy does not have
        self.known &= one.device.type == "cpu" and (readable or not stands)
        if stands and self.known:
            values = one.detach().numpy().tobytes()
        return *numbers, tuple(one.shape), one.stride(), one.dtype, one.requires_grad, values


@pytest.fixture(autouse=True)
def exported_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let equal models share an export, from one test to the next."""
    monkeypatch.setattr(record, "exported", _exported)
    yield


_KEPT: dict[Hashable, Any] = {}


def _exported(module: nn.Module, inputs: export.Inputs, name: str) -> Any:
    form = _Form()
    given = [
        (one.shape, one.stride(), one.dtype) if isinstance(one, torch.Tensor) else form.of(one)
        for one in pytree.tree_leaves(inputs)
    ]
    key = (
        name,
        torch.get_default_dtype(),
        str(pytree.tree_structure(inputs)),
        *given,
        form.of(module),
    )
    if not form.known:
        return export.exported(module, inputs, name)
    if key not in _KEPT:
        while len(_KEPT) >= ENTRIES:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = export.exported(module, inputs, name)
    return _KEPT[key]
