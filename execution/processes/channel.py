"""How processes exchange tensors: what a run needs of them, and torch.distributed behind it.

On which device a process of a run computes: a GPU of its own with nccl between them, else the CPU with gloo.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from pipecut.execution.errors import PeerError


class Ticket(Protocol):
    """A transfer under way; it keeps its tensor until it is over."""

    def done(self) -> bool:
        """Tell whether it is over, without waiting."""
        ...

    def wait(self) -> None:
        """Wait until it is over. Raises PeerError where that does not come."""
        ...


class Tag(NamedTuple):
    """What tells transfers between two processes apart: the lane, and the place among all of the lane.

    A lane is a cut and a direction; its transfers go out in the order in which they are awaited.
    """

    lane: int
    place: int


class Channel(Protocol):
    """One process among those of a run. Transfers between two processes are told apart by their tags."""

    @property
    def process(self) -> int:
        """The number of this process."""
        ...

    def send(self, tensor: torch.Tensor, peer: int, tag: Tag, what: str) -> Ticket:
        """Begin to send a contiguous tensor, which must not change before the ticket is done."""
        ...

    def receive(self, tensor: torch.Tensor, peer: int, tag: Tag, what: str) -> Ticket:
        """Begin to receive into a contiguous tensor."""
        ...

    def sum(self, tensor: torch.Tensor, members: Sequence[int], what: str) -> None:
        """Replace a tensor by its sum over processes, of which this one is one. ``what`` is for messages."""
        ...

    def swap(
        self,
        sent: torch.Tensor,
        received: torch.Tensor,
        sizes: tuple[Sequence[int], Sequence[int]],
        members: Sequence[int],
        what: str,
    ) -> None:
        """Send a piece of bytes to each of some processes, this one among them, and receive one from each.

        ``sizes`` are those of what is sent and of what is received, by process.
        """
        ...

    def together(self) -> None:
        """Wait for all processes."""
        ...


class _Transfer:
    """A transfer, from its beginning on. That another process is gone is met there, or by who waits."""

    def __init__(self, begin: Callable[[], Any], what: str, timeout_s: float) -> None:
        self._what, self._timeout_s = what, timeout_s
        self._work = self._tried(begin)

    def done(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> None:
        self._tried(lambda: self._work.wait(timedelta(seconds=self._timeout_s)))

    def _tried(self, act: Callable[[], Any]) -> Any:  # noqa: ANN401 (of torch)
        try:
            return act()
        except RuntimeError as error:
            late = f"not come within {self._timeout_s:g} s" if "imed out" in str(error) else "lost"
            raise PeerError(f"{self._what}: {late} ({first_line(error)})") from error


class _Sending:
    """A tensor that is sent. Gloo says that it is over only to who waits, so a thread does (:func:`_see_off`)."""

    def __init__(self, transfer: _Transfer, tensor: torch.Tensor) -> None:
        self._transfer = transfer
        self._tensor: torch.Tensor | None = tensor
        self._over = threading.Event()
        self._error: PeerError | None = None

    def see_off(self) -> None:
        try:
            self._transfer.wait()
        except PeerError as error:
            self._error = error
        self._tensor = None
        self._over.set()

    def done(self) -> bool:
        return self._over.is_set()

    def wait(self) -> None:
        self._over.wait()
        if self._error is not None:
            raise self._error


def _see_off(sendings: queue.SimpleQueue[_Sending | None]) -> None:
    """Wait for transfers one after another, and let go of what was sent."""
    while (one := sendings.get()) is not None:
        one.see_off()
        del one


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, without where in torch it was raised."""
    text = (str(error).splitlines() or [type(error).__name__])[0].partition(". This is typically")[0]
    return text.partition("] ")[2] or text


class DistributedChannel:
    """The default process group of torch.distributed, which has to be there, with groups for the sums.

    Every process makes its channel with the same ``groups`` and ``lanes``, in the same order. A transfer that
    takes longer than ``timeout_s`` raises PeerError, which says what was waited for. nccl knows no tags, and two
    processes that send to each other in one group wait for each other: so it needs all ``lanes`` (lane, sender,
    receiver), and a group is made for each.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[int]] = (),
        lanes: Sequence[tuple[int, int, int]] = (),
        *,
        timeout_s: float = 300.0,
        device: torch.device | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._sendings: dict[int, queue.SimpleQueue[_Sending | None]] = {}
        wait = timedelta(seconds=timeout_s)
        self._groups = {tuple(one): dist.new_group(list(one), timeout=wait) for one in groups if len(one) > 1}
        self._lanes = {one: dist.new_group(sorted(one[1:]), timeout=wait) for one in lanes}
        # Groups that are still there when Python has ended abort the process.
        for held in (self._groups, self._lanes):
            weakref.finalize(self, held.clear)
        for lane in lanes:
            self._open(lane, torch.zeros(1, dtype=torch.uint8, device=device))

    @property
    def process(self) -> int:
        """The number of this process."""
        return dist.get_rank()

    def send(self, tensor: torch.Tensor, peer: int, tag: Tag, what: str) -> Ticket:
        """Begin to send a tensor. Raises PeerError where the other process is gone."""
        group = self._lanes.get((tag.lane, self.process, peer))
        sending = _Sending(self._begun(dist.isend, tensor, peer, tag, what, group), tensor)
        self._waiting_for(peer).put(sending)
        return sending

    def receive(self, tensor: torch.Tensor, peer: int, tag: Tag, what: str) -> Ticket:
        """Begin to receive a tensor. Raises PeerError where the other process is gone."""
        group = self._lanes.get((tag.lane, peer, self.process))
        return self._begun(dist.irecv, tensor, peer, tag, what, group)

    def _open(self, lane: tuple[int, int, int], one: torch.Tensor) -> None:
        """Send a byte through a lane: nccl connects two processes when both ask for it, and waits for that."""
        number, sender, receiver = lane
        what = f"connecting processes {sender} and {receiver}"
        if self.process == sender:
            self.send(one, receiver, Tag(number, 0), what).wait()
        elif self.process == receiver:
            self.receive(one, sender, Tag(number, 0), what).wait()

    def _begun(
        self,
        begin: Callable[..., Any],
        tensor: torch.Tensor,
        peer: int,
        tag: Tag,
        what: str,
        group: Any,  # noqa: ANN401 (of torch)
    ) -> _Transfer:
        """Begin a transfer, in the group of its lane if there is one, where it needs no other tag."""
        number = tag.place if group is None else 0
        return _Transfer(lambda: begin(tensor, peer, group=group, tag=number), what, self._timeout_s)

    def _waiting_for(self, peer: int) -> queue.SimpleQueue[_Sending | None]:
        """Return where transfers to a process wait to be seen off; its thread ends with this channel."""
        if peer not in self._sendings:
            self._sendings[peer] = waiting = queue.SimpleQueue()
            threading.Thread(target=_see_off, args=(waiting,), daemon=True).start()
            weakref.finalize(self, waiting.put, None)
        return self._sendings[peer]

    def sum(self, tensor: torch.Tensor, members: Sequence[int], what: str) -> None:
        """Sum a tensor over processes. Raises PeerError where one of them does not take part."""
        if len(members) > 1:
            self._together(lambda group: dist.all_reduce(tensor, group=group, async_op=True), members, what)

    def swap(
        self,
        sent: torch.Tensor,
        received: torch.Tensor,
        sizes: tuple[Sequence[int], Sequence[int]],
        members: Sequence[int],
        what: str,
    ) -> None:
        """Exchange pieces among processes. Raises PeerError where one of them does not take part."""
        there, back = (list(one) for one in sizes)
        self._together(
            lambda group: dist.all_to_all_single(received, sent, back, there, group=group, async_op=True),
            members,
            what,
        )

    def together(self) -> None:
        """Wait for all processes. Raises PeerError, which names one that is missed."""
        what = "waiting for all processes"
        if dist.get_backend() == "gloo":
            try:
                dist.monitored_barrier(timeout=timedelta(seconds=self._timeout_s))
            except RuntimeError as error:
                raise PeerError(f"{what}: {first_line(error)}") from error
        else:
            one = torch.zeros(1)  # over gloo: it is on the CPU
            _Transfer(functools.partial(dist.all_reduce, one, async_op=True), what, self._timeout_s).wait()

    def _together(self, begin: Callable[[Any], object], members: Sequence[int], what: str) -> None:
        """Do what all of some processes take part in, and wait for it."""
        names = f"{what}, by processes {', '.join(map(str, members))}"
        _Transfer(lambda: begin(self._groups[tuple(members)]), names, self._timeout_s).wait()


BOTH = "cpu:gloo,cuda:nccl"
"""Transports of a run on GPUs: small numbers on the CPU go over gloo, tensors of passes over nccl."""


def join(process: int, size: int, meeting: str = "env://") -> None:
    """Join the other processes of a run, which find each other at ``meeting``.

    GPUs are used where every process of this machine has one of its own: that of its ``LOCAL_RANK``, as torchrun
    sets it. All machines of a run must be alike in this.
    """
    local, many = int(os.environ.get("LOCAL_RANK", process)), int(os.environ.get("LOCAL_WORLD_SIZE", size))
    on_gpus = torch.cuda.is_available() and dist.is_nccl_available() and torch.cuda.device_count() >= many
    if on_gpus:
        torch.cuda.set_device(local)
    dist.init_process_group(BOTH if on_gpus else "gloo", init_method=meeting, rank=process, world_size=size)


def device_here() -> torch.device:
    """Return the device that this process computes on, once it has joined."""
    if "nccl" in str(dist.get_backend_config()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def settle(device: torch.device) -> None:
    """Wait until a device has done what it was given, so that times and transfers are those of finished work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
