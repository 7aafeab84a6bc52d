"""Processes of a run as threads of this one: the same channel without a network, for fast tests."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pipecut.execution.errors import PeerError

TIMEOUT_S = 60


@dataclass
class Turn:
    """The right to compute, of one thread at a time.

    torch draws random numbers from one state a process. A process of a run has one to itself; threads have one
    together, so only the one that has the turn computes, and it gives the turn away where it waits for others.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    holder: int | None = None

    @contextmanager
    def computing(self) -> Iterator[None]:
        with self.lock:
            self.holder = threading.get_ident()
            try:
                yield
            finally:
                self.holder = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let others compute, where this thread has the turn at all."""
        if self.holder != (me := threading.get_ident()):
            yield
            return
        self.holder = None
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()
            self.holder = me


TURN = Turn()


@dataclass
class Network:
    """What threads share: a queue for every pair and tag, and a place to add up."""

    size: int
    boxes: dict[tuple[int, int, Any], queue.Queue[torch.Tensor]] = field(
        default_factory=lambda: defaultdict(queue.Queue)
    )
    lock: threading.Lock = field(default_factory=threading.Lock)
    barriers: dict[tuple[int, ...], threading.Barrier] = field(default_factory=dict)
    sums: dict[tuple[int, ...], list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    swapped: list[int] = field(init=False)
    """Bytes that each process has given to others of its replica."""

    def __post_init__(self) -> None:
        self.swapped = [0] * self.size

    def taken(self, sender: int, receiver: int, tag: Any) -> torch.Tensor:
        """Wait for a tensor. Raises queue.Empty where none comes."""
        with TURN.waiting():
            return self.box(sender, receiver, tag).get(timeout=TIMEOUT_S)

    def meet(self, barrier: threading.Barrier) -> int:
        with TURN.waiting():
            return barrier.wait(TIMEOUT_S)

    def box(self, sender: int, receiver: int, tag: Any) -> queue.Queue[torch.Tensor]:
        with self.lock:
            return self.boxes[sender, receiver, tag]


@dataclass
class Arrived:
    """A transfer: ``fill`` waits for what comes, if anything."""

    fill: Callable[[], None] = lambda: None

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        self.fill()


@dataclass
class ThreadChannel:
    network: Network
    process: int

    def send(self, tensor: torch.Tensor, peer: int, tag: Any, what: str) -> Arrived:
        assert tensor.is_contiguous() and "micro-batch" in what
        self.network.sent.append((self.process, peer, tensor.numel()))
        self.network.box(self.process, peer, tag).put(tensor.clone())
        return Arrived()

    def receive(self, tensor: torch.Tensor, peer: int, tag: Any, what: str) -> Arrived:
        def fill() -> None:
            try:
                tensor.copy_(self.network.taken(peer, self.process, tag))
            except queue.Empty:
                raise PeerError(f"{what}: not come") from None

        return Arrived(fill)

    def sum(self, tensor: torch.Tensor, members: Sequence[int], what: str) -> None:
        key = tuple(members)
        with self.network.lock:
            barrier = self.network.barriers.setdefault(key, threading.Barrier(len(key)))
            self.network.sums[key].append(tensor.clone())
        self.network.meet(barrier)
        total = torch.stack(self.network.sums[key]).sum(0)
        if self.network.meet(barrier) == 0:
            self.network.sums[key].clear()
        self.network.meet(barrier)
        tensor.copy_(total)

    def together(self) -> None:
        with self.network.lock:
            barrier = self.network.barriers.setdefault((), threading.Barrier(self.network.size))
        self.network.meet(barrier)

    def swap(
        self,
        sent: torch.Tensor,
        received: torch.Tensor,
        sizes: tuple[Sequence[int], Sequence[int]],
        members: Sequence[int],
        what: str,
    ) -> None:
        for peer, piece in zip(members, sent.split(list(sizes[0])), strict=True):
            self.network.swapped[self.process] += piece.numel() * (peer != self.process)
            self.network.box(self.process, peer, -1).put(piece.clone())
        for peer, piece in zip(members, received.split(list(sizes[1])), strict=True):
            piece.copy_(self.network.taken(peer, self.process, -1))


@dataclass
class ThreadPeers:
    """Threads that tell each other what they found."""

    network: Network
    process: int

    def gather(self, mine: object) -> list[Any]:
        for peer in range(self.network.size):
            self.network.box(self.process, peer, "told").put(mine)  # type: ignore[arg-type]
        return [self.network.taken(peer, self.process, "told") for peer in range(self.network.size)]

    def share(self, tensor: torch.Tensor) -> None:
        tensor.copy_(self.gather(tensor.clone())[0])


def in_threads(network: Network, works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the work of every process; return what it returns. Raises what one raises."""
    results: list[Any] = [None] * network.size
    errors: list[BaseException] = []

    def one(process: int) -> None:
        try:
            with TURN.computing():
                results[process] = works[process]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(process,), daemon=True) for process in range(network.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    if errors:
        raise errors[0]
    return results
