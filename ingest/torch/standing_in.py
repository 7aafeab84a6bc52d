"""What stands in for a model's weights while it is followed, and a module left exactly as it was.

On the meta device other tensors of the same shapes stand in for parameters and buffers, on the CPU torch's fake
tensors, so that what a run writes into them, or does to their gradients, is gone with them.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

_CONTAINERS = (dict, list, set)
_ATOMS = (str, bytes, int, float, type(None), type, types.ModuleType)


@contextlib.contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Put back afterwards what the modules of a model hold: attributes, parameters, buffers and hooks.

    Dictionaries, lists and sets among them stay the same objects and hold the same as before, however deep.
    """
    kept = dict[int, tuple[Any, list[Any]]]()
    for part in module.modules():
        _keep(vars(part), kept)
    try:
        yield
    finally:
        for container, content in kept.values():
            _refill(container, content)


def _keep(value: object, kept: dict[int, tuple[Any, list[Any]]]) -> None:
    """Note what is in a container, and in those inside it."""
    if isinstance(value, _CONTAINERS) and id(value) not in kept:
        kept[id(value)] = value, list(value.items() if isinstance(value, dict) else value)
    elif not isinstance(value, tuple):
        return
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, (*_CONTAINERS, tuple)):
            _keep(one, kept)


def _refill(container: Any, content: list[Any]) -> None:  # noqa: ANN401 (a dictionary, list or set)
    """Put back what was in a container, if anything else is."""
    now = list(container.items() if isinstance(container, dict) else container)
    if isinstance(container, dict):
        same = all(key is was and one is other for (key, one), (was, other) in zip(now, content, strict=False))
    else:
        same = all(one is other for one, other in zip(now, content, strict=False))
    if same and len(now) == len(content):
        return
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)


def stand_ins(module: nn.Module, fake: FakeTensorMode | None) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Put other tensors in place of parameters and buffers and return both, first what was there, by name.

    They are ``fake``, if that is given, else on the meta device as what they stand for. Raises TypeError for kinds
    of tensors that others cannot stand for. :func:`untouched` puts back what was there.
    """
    named = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    made = {id(tensor): _stand_in(tensor, fake) for tensor in named.values()}
    tables: list[Any] = [table for part in module.modules() for table in (part._parameters, part._buffers)]
    for table in tables:
        table.update({name: made[id(tensor)] for name, tensor in table.items() if tensor is not None})
    return {name: (tensor, made[id(tensor)]) for name, tensor in named.items()}


def _stand_in(tensor: torch.Tensor, fake: FakeTensorMode | None) -> torch.Tensor:
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"weights of type {type(tensor).__name__}")
    if fake is not None:
        return fake.from_tensor(tensor, static_shapes=True)
    plain = tensor.detach()
    if type(tensor) is torch.nn.Parameter:
        made: torch.Tensor = torch.nn.Parameter(plain, requires_grad=tensor.requires_grad)
    else:
        made = plain.requires_grad_(tensor.requires_grad)
    vars(made).update(vars(tensor))
    return made


def held_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Return the tensors that a model and its code hold: attributes, closures, defaults, and globals it reads."""
    import torch

    seen = dict[int, object]()
    waiting: list[object] = [vars(part) for part in module.modules()]
    waiting += [dict(vars(kind)) for part in {*map(type, module.modules())} for kind in part.__mro__[:-2]]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (*_ATOMS, torch.nn.Module)):
            continue
        seen[id(one)] = one
        waiting += _inside(one)
    return [one for one in seen.values() if isinstance(one, torch.Tensor)]


def _inside(one: Any) -> list[object]:  # noqa: ANN401
    """Return what a container, a function or another object refers to."""
    if isinstance(one, dict):
        return list(dict.values(one))  # those of libraries may load modules when they are asked
    if type(one) in (list, tuple, set):
        return list(one)
    if isinstance(one, (staticmethod, classmethod, types.MethodType, property)):
        bound = getattr(one, "__self__", None)
        return [getattr(one, "__func__", None), getattr(one, "fget", None), bound]
    if isinstance(one, functools.partial):
        return [one.func, one.args, one.keywords]
    if isinstance(one, types.FunctionType):
        cells = [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
        return [*cells, one.__defaults__, one.__kwdefaults__, *_globals(one.__code__, one.__globals__)]
    return []


def _globals(code: types.CodeType, names: Mapping[str, object]) -> list[object]:
    """Return the globals that code reads, and the functions in it."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return [names.get(name) for name in code.co_names] + [
        found for each in inner for found in _globals(each, names)
    ]
