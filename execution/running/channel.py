"""How processes exchange tensors: what a run needs of them, and torch.distributed behind it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from execution.errors import PeerError

__all__: list[str] = []


class Ticket(Protocol):
    """A transfer under way."""

    def done(self) -> bool:
        """Tell whether it is over, without waiting."""
        ...

    def wait(self) -> None:
        """Wait until it is over. Raises PeerError where that does not come."""
        ...


class Channel(Protocol):
    """One process among those of a run. Transfers between two processes are told apart by their tags."""

    @property
    def process(self) -> int:
        """The number of this process."""
        ...

    def send(self, tensor: torch.Tensor, peer: int, tag: int, what: str) -> Ticket:
        """Begin to send a contiguous tensor, which must not change before the ticket is done."""
        ...

    def receive(self, tensor: torch.Tensor, peer: int, tag: int, what: str) -> Ticket:
        """Begin to receive into a contiguous tensor."""
        ...

    def sum(self, tensor: torch.Tensor, members: Sequence[int]) -> None:
        """Replace a tensor by its sum over processes, of which this one is one."""
        ...


class _Work:
    """A transfer of torch.distributed; ``tensor`` is kept alive as long as it runs."""

    def __init__(self, work: dist.Work, tensor: torch.Tensor, what: str, timeout_s: float) -> None:
        self._work, self._tensor, self._what, self._timeout_s = work, tensor, what, timeout_s

    def done(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> None:
        try:
            self._work.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            reason = "not come" if "imed out" in str(error) else "failed"
            raise PeerError(
                f"{self._what}: {reason} within {self._timeout_s:g} s ({first_line(error)})"
            ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, without where in torch it was raised."""
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return text.partition("] ")[2] or text


class DistributedChannel:
    """The default process group of torch.distributed, which has to be there, with groups for the sums.

    Every process makes its channel with the same ``groups``, in the same order. A transfer that takes longer than
    ``timeout_s`` raises PeerError, which says what was waited for.
    """

    def __init__(self, groups: Sequence[Sequence[int]] = (), timeout_s: float = 300.0) -> None:
        self._timeout_s = timeout_s
        wait = timedelta(seconds=timeout_s)
        self._groups = {tuple(one): dist.new_group(list(one), timeout=wait) for one in groups if len(one) > 1}

    @property
    def process(self) -> int:
        """The number of this process."""
        return dist.get_rank()

    def send(self, tensor: torch.Tensor, peer: int, tag: int, what: str) -> Ticket:
        """Begin to send a tensor. Raises PeerError where the other process is gone."""
        return self._begun(dist.isend, tensor, peer, tag, what)

    def receive(self, tensor: torch.Tensor, peer: int, tag: int, what: str) -> Ticket:
        """Begin to receive a tensor. Raises PeerError where the other process is gone."""
        return self._begun(dist.irecv, tensor, peer, tag, what)

    def _begun(self, begin: object, tensor: torch.Tensor, peer: int, tag: int, what: str) -> Ticket:
        try:
            work = begin(tensor, peer, tag=tag)  # type: ignore[operator]
        except RuntimeError as error:
            raise PeerError(f"{what}: {first_line(error)}") from error
        return _Work(work, tensor, what, self._timeout_s)

    def sum(self, tensor: torch.Tensor, members: Sequence[int]) -> None:
        """Sum a tensor over processes. Raises PeerError where one of them does not take part."""
        if len(members) > 1:
            try:
                dist.all_reduce(tensor, group=self._groups[tuple(members)])
            except RuntimeError as error:
                names = ", ".join(map(str, members))
                raise PeerError(f"sum of gradients over processes {names}: {first_line(error)}") from error
