"""HetPipe's partition of a model among the devices of one virtual worker (Park et al., USENIX ATC 2020, §7).

    min over partitions of max over devices q of
        computing of its layers + time to receive activations at its first cut + gradients at its last cut
    so that  memory(q) <= capacity(q)  with  min(N_m, k - q + 1)  minibatches in flight at device q = 1 .. k

for every order of the devices. The paper hands each order to CPLEX. Here all orders are searched at once, exactly:
two devices of one server are the same, so the best of the first q devices depends only on how many devices of each
server they are, on the last of them, and on the link that it passes its gradients back over:

    V[used + s, s, y](j) = min over p, x, i of  max( V[used, p, x](i), T(s, x, y, i, j) )

where device ``p`` comes before ``s`` over link ``x``, ``y`` is the link to the device after, and T is FORBIDDEN
where layers i .. j do not fit. :func:`partition` is the same for one given order. Weights are kept for every
minibatch in flight, as HetPipe does; memory counts only where it is limited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pipecut.formulation.costs.bulk.crossing import crossing_bytes
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.modes import ONE_COPY, Mode
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.units import Link, Volume, ceil_div
from pipecut.formulation.schedules.keeps import Keeps

MAX_STATES = 20_000
"""How many pairs (devices used of each server, last server) are looked at."""

TABLE_BYTES = 1 << 28
"""How much memory the tables of times, and those of memory, may take; beyond it they are made again."""

Used = tuple[int, ...]
"""Devices used of each server."""
_State = tuple[Used, int, Link | None]


@dataclass(frozen=True, slots=True)
class Partition:
    """The server of every device in pipeline order, its layers, and the time of the slowest device in ns."""

    order: tuple[int, ...]
    spans: tuple[Span, ...]
    bottleneck_ns: int


def partition(instance: Instance, order: Sequence[int], in_flight: int, workers: int = 1) -> Partition | None:
    """Return the best partition among devices in this order (server indices); None if none fits in memory.

    ``in_flight`` is N_m; each of ``workers`` virtual workers trains its part of a micro-batch. Ties go to the
    smallest first layers, from the last device on. Raises ValueError for an order that takes more devices of a
    server than there are, or more than there are layers. Cost: O(len(order) x layers**2) in numpy.
    """
    counts = [list(order).count(server) for server in range(len(instance.servers))]
    _check(instance, counts, in_flight)
    return _Search(instance, in_flight, workers, len(order)).best(lambda used: [order[sum(used)]])


def best_partition(
    instance: Instance, counts: Sequence[int], in_flight: int, workers: int = 1, deadline: Deadline = NEVER
) -> Partition | None:
    """Return the best partition over all orders of ``counts[v]`` devices of server v; None if none fits.

    Raises StoppedError after the deadline, and ValueError as :func:`partition`
    does, and for more than MAX_STATES states. Cost: O(states x servers x links x layers**2) in numpy.
    """
    _check(instance, counts, in_flight)
    states = math.prod(count + 1 for count in counts) * sum(count > 0 for count in counts)
    if states > MAX_STATES:
        raise ValueError(
            f"the orders of {sum(counts)} devices on {len(counts)} servers make {states} states,"
            f" at most {MAX_STATES} can be searched; take fewer devices of each server (allocation ed)"
        )

    def following(used: Used) -> list[int]:
        return [server for server, count in enumerate(counts) if used[server] < count]

    return _Search(instance, in_flight, workers, sum(counts), deadline).best(following)


def _check(instance: Instance, counts: Sequence[int], in_flight: int) -> None:
    if in_flight < 1:
        raise ValueError(f"{in_flight} minibatches in flight, expected 1 or more")
    for server, count in zip(instance.servers, counts, strict=True):
        if count > server.devices:
            raise ValueError(f"{count} devices of server {server.name}, which has {server.devices}")
    if not 1 <= sum(counts) <= len(instance.layers):
        raise ValueError(
            f"{sum(counts)} devices for {len(instance.layers)} layers, expected 1 to as many as layers"
        )


class _Search:
    """The table V, device by device. Values are int64 ns, FORBIDDEN where no partition fits."""

    def __init__(
        self, instance: Instance, in_flight: int, workers: int, devices: int, deadline: Deadline = NEVER
    ) -> None:
        self._instance, self._in_flight, self._devices, self._deadline = instance, in_flight, devices, deadline
        self._prices = Prices(instance, workers)
        self._levels: list[dict[_State, Times]] = []

    def best(self, following: Callable[[Used], Iterable[int]]) -> Partition | None:
        """Return the best partition; ``following`` tells which servers may give the device after those used."""
        total = len(self._instance.layers)
        begun = np.full(total, FORBIDDEN, dtype=np.int64)
        begun[0] = 0
        none = (0,) * len(self._instance.servers)
        reached: dict[_State, Times] = {(none, server, None): begun for server in following(none)}
        for at in range(self._devices):
            level: dict[_State, Times] = {}
            for (used, server, before), starts in reached.items():
                self._deadline.check()
                now = _with(used, server)
                last = at + 1 == self._devices
                links = () if last else (self._instance.links[server][one] for one in following(now))
                for after in (None,) if last else tuple(dict.fromkeys(links)):
                    values = np.maximum(starts[:, None], self._stage_ns(at, server, before, after)).min(axis=0)
                    key = (now, server, after)
                    level[key] = np.minimum(level[key], values) if key in level else values
            self._levels.append(level)
            reached = self._onward(level, following)
        return self._walk()

    def _onward(
        self, level: dict[_State, Times], following: Callable[[Used], Iterable[int]]
    ) -> dict[_State, Times]:
        """Return the best starts of the next device, by the devices used, its server and the link before it."""
        reached: dict[_State, Times] = {}
        if len(self._levels) == self._devices:
            return reached
        for (used, server, after), values in level.items():
            for one in following(used):
                if self._instance.links[server][one] == after:
                    key, starts = (used, one, after), values[:-1]
                    reached[key] = np.minimum(reached[key], starts) if key in reached else starts
        return reached

    def _walk(self) -> Partition | None:
        """Return the partition behind the least value after the last layer."""
        stop = len(self._instance.layers)
        state = min(self._levels[-1], key=lambda key: int(self._levels[-1][key][stop]))
        value = int(self._levels[-1][state][stop])
        if value >= FORBIDDEN:
            return None
        order, spans = [state[1]], []
        for at in range(self._devices - 1, 0, -1):
            state, first = self._before(at, state, stop)
            spans.append(Span(first, stop))
            order.append(state[1])
            stop = first
        spans.append(Span(0, stop))
        return Partition(tuple(reversed(order)), tuple(reversed(spans)), value)

    def _before(self, at: int, state: _State, stop: int) -> tuple[_State, int]:
        """Return a best state of the device before device ``at``, and the first layer of device ``at``."""
        used, server, after = state
        value = self._levels[at][state][stop]
        for (held, one, link), values in self._levels[at - 1].items():
            if _with(held, server) == used and self._instance.links[one][server] == link:
                column = np.maximum(values[:-1], self._stage_ns(at, server, link, after)[:, stop])
                if column.min() == value:
                    return (held, one, link), int(column.argmin())
        raise LookupError(f"no device before device {at} reaches layer {stop} in {value} ns")

    def _stage_ns(self, at: int, server: int, before: Link | None, after: Link | None) -> Times:
        kept = min(self._in_flight, self._devices - at)
        return self._prices.stage_ns(server, before, after, kept)


def _with(used: Used, server: int) -> Used:
    return (*used[:server], used[server] + 1, *used[server + 1 :])


class Prices:
    """What HetPipe believes a run of layers on one device to take: time in ns, memory in bytes.

    Each of ``workers`` virtual workers computes its part of a micro-batch. Both boundaries are always charged to
    the device that receives, whatever the instance's cost model says.
    """

    def __init__(self, instance: Instance, workers: int = 1) -> None:
        self._instance, self._workers = instance, workers
        self._cuts = [ceil_div(size, workers) for size in crossing_bytes(instance)]
        self._parts = list(_held(instance, workers))
        self._copying = list(_held(instance, workers, copied=True))
        self._compute = [
            _sums(ceil_div(one, workers) + ceil_div(other, workers) for one, other in zip(*pair, strict=True))
            for pair in zip(instance.forward_ns, instance.backward_ns, strict=True)
        ]
        self._transfers: dict[Link | None, Times] = {None: np.zeros(len(self._cuts), dtype=np.int64)}
        self._known: dict[tuple[int, Link | None, Link | None, int], Times] = {}
        self._memory: dict[int, Times] = {}
        self._kept = max(4, TABLE_BYTES // (8 * len(instance.layers) ** 2))

    def stage_ns(self, server: int, before: Link | None, after: Link | None, in_flight: int) -> Times:
        """Time of the layers i .. j on a device of a server, ``[i, j]``; FORBIDDEN where none, or no memory."""
        one = self._instance.class_index(server)
        key = (one, before, after, in_flight)
        if key not in self._known:
            if len(self._known) >= self._kept:
                self._known.clear()
            sums, total = self._compute[one], len(self._instance.layers)
            times = sums[None, :] - sums[:-1, None] + self._transfer(before)[:-1, None] + self._transfer(after)
            times[np.tri(total, total + 1, dtype=bool)] = FORBIDDEN
            if self._instance.constraints.memory:
                capacity = self._instance.device_classes[one].memory_bytes
                times[self.memory_bytes(in_flight) > capacity] = FORBIDDEN
            self._known[key] = times
        return self._known[key]

    def memory_bytes(self, in_flight: int) -> Times:
        """Peak bytes of the layers i .. j with so many minibatches in flight, ``[i, j]`` (0 where there are none).

        Weights of every minibatch in flight, gradients, optimiser state, activations, the largest working set.
        """
        if in_flight not in self._memory:
            if len(self._memory) >= self._kept:
                self._memory.clear()
            layers = range(len(self._instance.layers))
            keeps = Keeps(in_flight, in_flight)
            rows = _sums(part.times(keeps, ONE_COPY).lasting for part in self._parts)
            working = [part.working_set for part in self._parts]
            largest = np.zeros((len(layers), len(layers) + 1), dtype=np.int64)
            largest[:, 1:] = np.maximum.accumulate(
                np.triu(np.tile(np.array(working, dtype=np.int64), (len(layers), 1))), axis=1
            )
            received = in_flight * np.array(self._cuts, dtype=np.int64)
            bytes_held = rows[None, :] - rows[:-1, None] + received[:-1, None] + largest
            for at, copy in enumerate(self._instance.copies):
                if copy is not None:  # of weights that no earlier layer of the stage has
                    more = self._copying[at].times(keeps, ONE_COPY).lasting
                    own = self._parts[at].times(keeps, ONE_COPY).lasting
                    bytes_held[copy.earlier + 1 : at + 1, at + 1 :] += more - own
            self._memory[in_flight] = np.where(np.tri(len(layers), len(layers) + 1, dtype=bool), 0, bytes_held)
        return self._memory[in_flight]

    def _transfer(self, link: Link | None) -> Times:
        if link is not None and link not in self._transfers:
            row = [Volume(Fraction(size), 1).transfer_ns(link) for size in self._cuts]
            self._transfers[link] = np.array([0, *row[1:-1], 0], dtype=np.int64)
        return self._transfers[link]


def _held(instance: Instance, workers: int, *, copied: bool = False) -> Iterator[MemoryParts]:
    """Yield what one of so many devices holds of each layer, whole; with the weights that it copies if it does."""
    kind = GroupKind(workers, (0,), None, mode=Mode(workers))
    for at in range(len(instance.layers)):
        yield MemoryParts.of_layer(instance, kind, at, 0, instance.copies[at] if copied else None)


def _sums(values: Iterable[int]) -> Times:
    return np.concatenate([[0], np.cumsum(np.fromiter(values, dtype=np.int64))])
