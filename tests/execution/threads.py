"""Processes of a run as threads of this one: the same channel without a network, for fast tests."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from execution.errors import PeerError

TIMEOUT_S = 60


@dataclass
class Network:
    """What threads share: a queue for every pair and tag, and a place to add up."""

    size: int
    boxes: dict[tuple[int, int, int], queue.Queue[torch.Tensor]] = field(
        default_factory=lambda: defaultdict(queue.Queue)
    )
    lock: threading.Lock = field(default_factory=threading.Lock)
    barriers: dict[tuple[int, ...], threading.Barrier] = field(default_factory=dict)
    sums: dict[tuple[int, ...], list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))
    sent: list[tuple[int, int, int]] = field(default_factory=list)

    def box(self, sender: int, receiver: int, tag: int) -> queue.Queue[torch.Tensor]:
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

    def send(self, tensor: torch.Tensor, peer: int, tag: int, what: str) -> Arrived:
        assert tensor.is_contiguous() and "micro-batch" in what
        self.network.sent.append((self.process, peer, tensor.numel()))
        self.network.box(self.process, peer, tag).put(tensor.clone())
        return Arrived()

    def receive(self, tensor: torch.Tensor, peer: int, tag: int, what: str) -> Arrived:
        def fill() -> None:
            try:
                tensor.copy_(self.network.box(peer, self.process, tag).get(timeout=TIMEOUT_S))
            except queue.Empty:
                raise PeerError(f"{what}: not come") from None

        return Arrived(fill)

    def sum(self, tensor: torch.Tensor, members: Sequence[int]) -> None:
        key = tuple(members)
        with self.network.lock:
            barrier = self.network.barriers.setdefault(key, threading.Barrier(len(key)))
            self.network.sums[key].append(tensor.clone())
        barrier.wait(TIMEOUT_S)
        total = torch.stack(self.network.sums[key]).sum(0)
        if barrier.wait(TIMEOUT_S) == 0:
            self.network.sums[key].clear()
        barrier.wait(TIMEOUT_S)
        tensor.copy_(total)


def in_threads(network: Network, works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the work of every process; return what it returns. Raises what one raises."""
    results: list[Any] = [None] * network.size
    errors: list[BaseException] = []

    def one(process: int) -> None:
        try:
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
