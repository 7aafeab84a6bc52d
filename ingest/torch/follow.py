"""Read a torch module without an export: run it once, and write down every operator as it is called.

``torch.export`` sees a model through a dispatch mode at torch's PreDispatch key, and takes most of its time to
make nodes of a graph of what it sees. Here a mode at the same place writes the calls down itself. Nothing is
guessed: every block runs, with its side effects in order. A model that was built on the meta device runs there;
one on the CPU runs on torch's fake tensors, as in an export, since its operators may choose by the device.

What an export might see differently is not followed (:class:`NotFollowedError` says why):

- tensors of unknown origin: neither held by the model before it ran nor made by an operator that was seen (of
  threads, say), or in memory that is known (as ``.data`` makes them); subclasses, those of another device;
- numbers out of tensors, sizes that are not numbers, results that an export would not take;
- regions of other tracers (``torch.cond``, ``vmap``, compiled or scripted parts), modules of several names;
- code that asks whether a tensor is a fake one, where none is; and everything that raises an error.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipecut.ingest.errors import is_foreign
from pipecut.ingest.operators.operations import Call, Operation, OwnGradient, Recorder, Tensor
from pipecut.ingest.torch import shapes_once
from pipecut.ingest.torch.export import CHECKPOINT, FUNCTION, Inputs, on_device, one_device, stepping
from pipecut.ingest.torch.standing_in import held_tensors, stand_ins, untouched
from pipecut.ingest.torch.walk import Signature, tensor_of

if TYPE_CHECKING:
    import torch
    from torch import nn

_MARK = "_pipecut_followed"
"""The attribute of a tensor that says what is known of it.

A table of tensors would have to hold them, and torch's own functions that make tensors (``zeros_like``) hand out
another object in place of one that somebody holds.
"""
_NEW_CONSTANTS = {
    "aten.lift_fresh.default": 0,
    "aten.detach_.default": 0,
    "aten.index.Tensor": 1,
    "aten.index_put_.default": 1,
    "aten.index_put.default": 1,
}
"""The operators that torch shows a tensor to that it has just made of numbers, and in which of their arguments."""
_OTHER_TRACERS = frozenset({"GraphModule", "OptimizedModule", "ScriptModule"})
_PLAIN = (int, float, bool, str, type(None))
"""What an export takes and returns beside tensors."""
_REFUSED = ("c10d.", "_c10d_functional.", "profiler.", "higher_order.")
"""Operators that an export replaces or leaves out."""

_CODE = (types.FunctionType, types.MethodType, functools.partial)
_HARMLESS = ("torch.nn.", "pipecut.", "transformers.utils.")
"""Modules that name fake tensors and ask for them, if ever, where the answer does not matter."""


class NotFollowedError(Exception):
    """A model that has to be exported; the message says why."""


@dataclass(frozen=True, slots=True)
class Trail:
    """What was followed: every call of an operator in order, and the tensors that the model returned."""

    operations: list[Operation]
    outputs: tuple[Tensor, ...]


def follow(
    module: nn.Module, inputs: Inputs, canonical: Mapping[str, str], own: Mapping[str, Any] | None = None
) -> Trail:
    """Run a module once and return what it called: in training mode, without weights, and leaving it as it was.

    ``canonical`` maps each name of a parameter to the first name of the same parameter, ``own`` are a user's rules
    for operators by name. Raises NotFollowedError for a model that has to be exported.
    """
    try:
        return _followed(module, inputs, canonical, Recorder(own or {}))
    except NotFollowedError:
        raise
    except Exception as error:
        raise NotFollowedError(f"{type(error).__name__}: {error}") from error


def _followed(module: nn.Module, inputs: Inputs, canonical: Mapping[str, str], recorder: Recorder) -> Trail:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils import _pytree as pytree

    device = one_device(module)
    _expect(module, device)
    fake = None if device.type == "meta" else FakeTensorMode(allow_non_fake_inputs=True, export=True)
    given = on_device(inputs, device)
    follower = _Follower(recorder, device.type)
    follower.holds(held_tensors(module))
    with stepping(module, device), untouched(module):
        for name, (original, tensor) in stand_ins(module, fake).items():
            follower.knows(tensor, name, canonical.get(name), original)
        if fake is not None:
            given = pytree.tree_map_only(torch.Tensor, fake.from_tensor, given)
        for at, leaf in enumerate(pytree.tree_leaves(given)):
            follower.takes(leaf, f"input{at}")
        with fake or shapes_once.mode(), watched(follower, module):
            result = module(*given[0], **given[1])
        return follower.trail(pytree.tree_leaves(result))


def _expect(module: nn.Module, device: torch.device) -> None:
    """Raise NotFollowedError for a model that is not followed, as far as that can be said before it runs."""
    import torch

    if device.type not in ("meta", "cpu"):
        raise NotFollowedError(f"a model on {device.type}")
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        raise NotFollowedError("gradients are switched off around the trace")
    kinds = {type(part) for part in module.modules()}
    if other := {base.__name__ for kind in kinds for base in kind.__mro__} & _OTHER_TRACERS:
        raise NotFollowedError(f"a part of another tracer: {', '.join(sorted(other))}")
    if device.type == "meta" and (asking := next(_asking(module), None)):
        raise NotFollowedError(f"{asking} names fake tensors")


def _asking(module: nn.Module) -> Iterator[str]:
    """Yield the files of a model's code that name torch's fake tensors: plain ones would be told apart.

    Looked at are the files of the classes and functions that a model holds, and those of a user's own that they
    import. To run all models on fake tensors instead takes 1.8 to 2 times as long, and no library that was tried
    asks.
    """
    held = (value for part in module.modules() for value in vars(part).values() if isinstance(value, _CODE))
    own = (getattr(one, "func", one) for one in held)
    waiting = {getattr(one, "__module__", None) for one in (*map(type, module.modules()), *own)}
    seen = set[str | None]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        file = getattr(sys.modules.get(name or ""), "__file__", None)
        if file is None or str(name).startswith(_HARMLESS):
            continue
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = Path(file).read_text(encoding="utf-8")
            if "FakeTensor" in text or "is_fake" in text:
                yield file
        if not is_foreign(file):
            values = vars(sys.modules[str(name)]).values()
            used = {one.__name__ if inspect.ismodule(one) else getattr(one, "__module__", None) for one in values}
            waiting |= {one for one in used - seen if isinstance(one, str) and not is_foreign(_file(one))}


def _file(name: str) -> str:
    return str(getattr(sys.modules.get(name), "__file__", None) or "<none>")


@dataclass(slots=True)
class _Follower:
    """Is told of every call of an operator and of a module, and keeps what is known of the tensors."""

    recorder: Recorder
    device: str
    refusal: str = ""
    calls: list[Call] = field(default_factory=list)
    _times: Counter[str] = field(default_factory=Counter)
    _signatures: dict[Any, tuple[str, Signature, bool]] = field(default_factory=dict)
    _sources: dict[int, tuple[object, Tensor]] = field(default_factory=dict)
    _memory: dict[int, object] = field(default_factory=dict)
    _constants: dict[int, object] = field(default_factory=dict)
    _functions: dict[int, tuple[int, list[Any]]] = field(default_factory=dict)
    _lines: dict[str, bool] = field(default_factory=dict)
    _token: object = field(default_factory=object)
    _count: Iterator[int] = field(default_factory=itertools.count)

    def refuse(self, why: str) -> NotFollowedError:
        """Return an error that ends the run, and remember the first, as a model may catch it."""
        self.refusal = self.refusal or why
        return NotFollowedError(why)

    def knows(self, tensor: torch.Tensor, name: str, parameter: str | None, original: torch.Tensor) -> None:
        """Take what stands in for a parameter (``parameter`` is the first of its names) or for a buffer."""
        names = frozenset[str]() if parameter is None else frozenset({parameter})
        known = tensor_of(name, tensor, "")
        self._source(tensor, replace(known, differentiable=bool(names) and tensor.requires_grad, parameters=names))
        self._memory[original.untyped_storage()._cdata] = original

    def holds(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take the tensors that a model held before it ran: of others nobody can say where they are from."""
        self._constants |= {id(one): one for one in tensors}

    def takes(self, leaf: object, name: str) -> None:
        """Take an example input."""
        if hasattr(leaf, "untyped_storage"):
            self._source(leaf, replace(tensor_of(name, leaf, ""), batched=True))
        elif not isinstance(leaf, _PLAIN):
            raise self.refuse(f"an input of type {type(leaf).__name__}")

    def _source(self, tensor: Any, known: Tensor) -> Tensor:  # noqa: ANN401 (a tensor of torch)
        self._sources[id(tensor)] = tensor, known
        self._memory[known.storage] = tensor
        return known

    def trail(self, leaves: Sequence[object]) -> Trail:
        """Return all that was written down. Raises NotFollowedError if anything was refused on the way."""
        found = [self._value(leaf) for leaf in leaves]
        if self.refusal:
            raise NotFollowedError(self.refusal)
        if odd := [one for one in found if not isinstance(one, (Tensor, *_PLAIN))]:
            raise NotFollowedError(f"a result of type {type(odd[0]).__name__}")
        operations = self.recorder.operations
        for position, (number, kept) in self._functions.items():  # known once the function has returned
            operations[position] = replace(operations[position], function=OwnGradient(number, tuple(kept)))
        return Trail(operations, tuple(one for one in found if isinstance(one, Tensor)))

    def called(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> object:  # noqa: ANN401
        """Run an operator and write it down, as ``ingest.torch.walk`` does from a node of an exported graph."""
        try:
            return self._called(operator, arguments, keywords)
        except Exception as error:
            self.refuse(f"{operator}: {type(error).__name__}: {error}")
            raise

    def _called(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> object:  # noqa: ANN401
        import torch

        name, signature, in_python = self._signatures.get(operator) or self._signature(operator)
        if name in _NEW_CONSTANTS:
            new = arguments[_NEW_CONSTANTS[name]]
            self.holds(one for one in (new if isinstance(new, (list, tuple)) else [new]) if one is not None)
        given = signature.named(arguments, keywords, self._value)
        if in_python:
            results = operator(*arguments, **keywords)
        else:
            with torch._C._DisablePythonDispatcher():
                results = operator(*arguments, **keywords)
        several = isinstance(results, (list, tuple))
        kept = [one for one in (results if several else (results,)) if isinstance(one, torch.Tensor)]
        if kept:
            self._write(name, signature, given, kept)
        elif results is not None:
            raise self.refuse(f"{name} takes a number out of a tensor")
        return results

    def _write(self, name: str, signature: Signature, given: dict[str, object], kept: Sequence[Any]) -> None:
        import torch
        from torch.fx import traceback

        key, call = f"{name}.{next(self._count)}", self.calls[-1]
        notes = traceback.get_current_meta().get("custom") or {}
        if torch.is_inference_mode_enabled():
            raise self.refuse("a region of inference mode, which an export does not see")
        position = len(self.recorder.operations)
        outputs = self.recorder.add(
            name,
            given,
            [self._made(one, f"{key}#{at}") for at, one in enumerate(kept)],
            call,
            written=signature.written,
            differentiable=torch.is_grad_enabled(),
            source=self._line(),
            checkpoint=notes.get(CHECKPOINT, 0),
        )
        if FUNCTION in notes and len(self.recorder.operations) > position:
            self._functions[position] = notes[FUNCTION]
        for one, known in zip(kept, outputs, strict=False):
            setattr(one, _MARK, (self._token, id(one), known))

    def _signature(self, operator: Any) -> tuple[str, Signature, bool]:  # noqa: ANN401
        name = str(operator)
        if not hasattr(operator, "_schema") or name.startswith(_REFUSED):
            raise self.refuse(f"operator {name}")
        in_python = any(key.name != "Meta" for key in operator.py_kernels)  # it is made of others, and how matters
        self._signatures[operator] = found = name, Signature.of(operator), in_python
        return found

    def _value(self, value: Any) -> Any:  # noqa: ANN401 (an argument of an operator)
        """Return what is known of a tensor, and of those in lists; other arguments as they are."""
        import torch

        if isinstance(value, torch.Tensor):
            mark = vars(value).get(_MARK)
            if mark is not None and mark[0] is self._token and mark[1] == id(value):
                return self.recorder.current(mark[2])
            source = self._sources.get(id(value))
            return self.recorder.current(self._constant(value) if source is None else source[1])
        if isinstance(value, (list, tuple)):
            return [self._value(one) for one in value]
        if isinstance(value, Mapping):
            return [self._value(one) for one in value.values()]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise self.refuse("a size that depends on the values of tensors")
        return value

    def _constant(self, tensor: Any) -> Tensor:  # noqa: ANN401
        """Return what is known of a tensor that nothing that was seen made: a constant, or a reason to stop."""
        import torch

        if isinstance(tensor, torch.nn.Parameter):
            raise self.refuse("a parameter that no module holds")
        functorch: Any = getattr(torch._C, "_functorch")  # noqa: B009 (type checkers do not know it)
        if tensor.grad_fn is not None or functorch.is_functorch_wrapped_tensor(tensor):
            raise self.refuse("a tensor of unknown origin")
        if tensor.untyped_storage()._cdata in self._memory:
            raise self.refuse("a tensor of unknown origin in memory that is known")
        if type(tensor).__name__ == "FakeTensor" or id(tensor) not in self._constants:
            raise self.refuse("a tensor that nothing that was seen made")
        return self._source(tensor, self._made(tensor, f"constant.{next(self._count)}"))

    def _made(self, value: Any, key: str) -> Tensor:  # noqa: ANN401
        """Return what is kept of a tensor, whose memory is held from now on, so that its number stays its own."""
        import torch

        plain = type(value) is torch.Tensor or type(value).__name__ == "FakeTensor"
        if not plain and id(value) not in self._sources:  # as operators return that find nothing to do
            raise self.refuse(f"a tensor of type {type(value).__name__}")
        if value.device.type != self.device:
            raise self.refuse(f"a tensor on {value.device.type}")
        known = tensor_of(key, value, self.calls[-1].module)
        self._memory.setdefault(known.storage, value.untyped_storage())
        return known

    def _line(self) -> str:
        """Return ``file:line`` of the innermost ``forward`` of a user's own that is running, or nothing."""
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "forward":
                file = code.co_filename
                foreign = self._lines.get(file)
                if foreign is None:
                    foreign = self._lines[file] = is_foreign(file)
                if not foreign:
                    return f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def enters(self, names: Sequence[str]) -> None:
        """Note that a module is called, by the one of its names that lies below the caller's."""
        caller = self.calls[-1] if self.calls else None
        if len(names) > 1 and caller is not None:
            names = [name for name in names if name.startswith(f"{caller.module}." if caller.module else "")]
        if len(names) != 1:
            raise self.refuse("a module of several names")
        (name,) = names
        key = f"{name}@{self._times[name]}" if self._times[name] else name
        self._times[name] += 1
        if caller is None:
            self.calls.append(Call(key, name, ()))
        else:
            self.calls.append(Call(key, name, (*caller.outer, caller.key), (*caller.around, caller.module)))


@contextlib.contextmanager
def watched(follower: _Follower, module: nn.Module) -> Iterator[None]:
    """Let a follower see every call of an operator and of a part of a module."""
    import torch
    from torch._dispatch.python import enable_python_dispatcher
    from torch._library import utils as room

    def no_compiling(*_: object, **__: object) -> object:
        raise follower.refuse("a compiled region")

    def hand_on(on_top: object, operator: Any, *given: Any, **named: Any) -> object:  # noqa: ANN401
        """Hand an operator to the mode on top, without looking for tensors that say themselves what is done."""
        if on_top is mode:
            return follower.called(operator, given, named)
        return plainly(on_top, operator, *given, **named)

    plainly = room.handle_dispatch_mode
    with contextlib.ExitStack() as stack:
        stack.enter_context(_modes_as_they_were())
        stack.enter_context(_as_an_export_says())
        stack.enter_context(_set(torch.nn.Module, "__call__", _noting_calls(follower, module)))
        stack.enter_context(_set(torch, "compile", no_compiling))
        stack.enter_context(enable_python_dispatcher())
        mode = stack.enter_context(_mode(follower.called))
        stack.enter_context(_set(room, "handle_dispatch_mode", hand_on))
        yield


def _noting_calls(follower: _Follower, module: nn.Module) -> Callable[..., Any]:
    """Return what takes the place of ``nn.Module.__call__``."""
    import torch

    names = dict[int, list[str]]()
    for name, part in module.named_modules(remove_duplicate=False):
        names.setdefault(id(part), []).append(name)
    plain: Callable[..., Any] = torch.nn.Module.__call__

    def call(part: nn.Module, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
        if id(part) not in names:
            return plain(part, *arguments, **keywords)
        follower.enters(names[id(part)])
        try:
            result = plain(part, *arguments, **keywords)
        except Exception as error:
            follower.refuse(f"{type(error).__name__}: {error}")
            raise
        follower.calls.pop()
        return result

    return call


@contextlib.contextmanager
def _set(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _as_an_export_says() -> Iterator[None]:
    """Answer as an export does when code asks whether it is being compiled, and how backends are set."""
    import torch
    from torch.fx import _symbolic_trace

    backends = torch.backends
    with (
        _set(torch.compiler, "_is_compiling_flag", True),
        _set(torch.compiler, "_is_exporting_flag", True),
        _set(_symbolic_trace, "_is_fx_tracing_flag", True),
        backends.mkldnn.flags(enabled=False),
        backends.nnpack.flags(enabled=False),
    ):
        yield


@contextlib.contextmanager
def _modes_as_they_were() -> Iterator[None]:
    """Take away modes of torch that a run left behind when it ended in the middle of one."""
    from torch._ops import _len_torch_dispatch_stack_pre_dispatch as early
    from torch._ops import _pop_mode_from_pre_dispatch
    from torch.utils import _python_dispatch as room

    before = early(), len(room._get_current_dispatch_mode_stack())
    try:
        yield
    finally:
        while early() > before[0]:
            _pop_mode_from_pre_dispatch()
        while len(room._get_current_dispatch_mode_stack()) > before[1]:
            room._pop_mode()


def _mode(called: Callable[..., object]) -> contextlib.AbstractContextManager[object]:
    """Return the mode that hands every call of an operator on: of the kind that torch admits at PreDispatch."""
    import torch
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(ProxyTorchDispatchMode):
        """Sees operators where an export sees them, and makes no graph."""

        def __init__(self) -> None:
            TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
            self._mode_key = torch._C._TorchDispatchModeKey.PROXY
            self.enter_stack = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:  # noqa: ANN401
            return called(func, args, kwargs or {})

    return Mode()
