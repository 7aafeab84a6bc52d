"""How many bytes the tensors of a process hold, and the most that they held: counted, not asked of the system."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class HeldMemory(TorchDispatchMode):
    """Counts the memory behind the results of all operators inside a ``with`` block, until it is let go.

    Tensors of ``counted`` are there from the start; those of ``beside`` are not counted at all, nor their views.
    Memory is counted once, however many tensors lie in it. ``held_bytes`` is what there is now, ``peak_bytes`` the
    most that there was. Cost: some microseconds for every operator, so measure no times meanwhile.
    """

    def __init__(self, counted: Iterable[torch.Tensor] = (), beside: Iterable[torch.Tensor] = ()) -> None:
        """Count what is there already."""
        super().__init__()
        self.held_bytes = self.peak_bytes = 0
        self._known: dict[int, int] = {}
        self._turn = threading.RLock()
        for one in beside:
            self._note(one, counts=False)
        for one in counted:
            self._note(one, counts=True)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 (what the operator returns)
        """Run an operator and note where its results lie."""
        del types
        found = func(*args, **(kwargs or {}))
        for one in pytree.tree_leaves(found):
            if isinstance(one, torch.Tensor):
                self._note(one, counts=True)
        return found

    def _note(self, tensor: torch.Tensor, *, counts: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        with self._turn:
            if key in self._known:
                return
            size = storage.nbytes() if counts else 0
            self._known[key] = size
            self.held_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
            weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        with self._turn:
            self.held_bytes -= self._known.pop(key, 0)
