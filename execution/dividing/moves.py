"""Tensors exchanged inside a replica: gathered, turned from one dimension to another, and added up.

A tensor and its gradient lie alike, so each exchange is run backwards on the gradient. Whole tensors are complete
and equal on every device, gradients too.

How a tensor lies on the devices of a replica: whole on each, or a part of one of its dimensions on each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pipecut.execution.errors import StagesError
from pipecut.execution.processes.channel import Channel

ROWS, WHOLE, COLUMNS = "rows", "whole", "columns"
"""How a tensor lies, in the words of ``formulation.costs.forms``."""

Indices = range | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Portion:
    """Each device has some indices of a dimension: ``held[i]`` device i, all of them together every index once."""

    dimension: int
    held: tuple[Indices, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Columns of a tensor divided: in a dimension, index i is of column ``(i // minor) % count``.

    ``owners`` says for each of the ``count`` columns which device has it. ``source`` is the node that began to be
    divided so.
    """

    dimension: int
    minor: int
    owners: tuple[int, ...]
    source: str = field(default="", compare=False)

    @property
    def columns(self) -> tuple[int, int, int]:
        """Dimension, minor and count."""
        return self.dimension, self.minor, len(self.owners)

    def part(self, length: int, devices: int) -> Portion:
        """Return what each device has of a tensor whose dimension is so long."""
        held: list[list[int]] = [[] for _ in range(devices)]
        for index in range(length):
            held[self.owners[index // self.minor % len(self.owners)]].append(index)
        return Portion(self.dimension, tuple(map(shortened, held)))


def shortened(indices: Sequence[int]) -> Indices:
    """Return indices in order as a range where they have no gap."""
    if not indices:
        return range(0)
    run = range(indices[0], indices[-1] + 1)
    return run if len(run) == len(indices) else tuple(indices)


def bounds(many: int, shares: Sequence[int]) -> tuple[range, ...]:
    """Divide ``many`` in order in proportion to shares, rounded down; equal shares give i * many // n."""
    ends = [many * one // sum(shares) for one in itertools.accumulate(shares, initial=0)]
    return tuple(range(first, stop) for first, stop in itertools.pairwise(ends))


def dealt(count: int, shares: Sequence[int], pieces: int, unit: int) -> tuple[int, ...] | None:
    """Deal columns to devices: of each of so many equal pieces every device gets whole units, in order.

    None where that leaves a device without any, or does not go up.
    """
    if count % (pieces * unit):
        return None
    one = bounds(count // (pieces * unit), shares)
    if any(not mine for mine in one):
        return None
    owners = [device for device, mine in enumerate(one) for _ in range(len(mine) * unit)]
    return tuple(owners * pieces)


Layout = Portion | str
"""A part of one dimension, or WHOLE."""


@dataclass(slots=True)
class Team:
    """The devices of a replica: their processes in order, and which of them this one is.

    ``channel`` is there once the processes are connected; ``what`` says for messages what is done just now.
    """

    members: tuple[int, ...]
    at: int
    channel: Channel | None = None
    what: str = ""

    def swap(self, pieces: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Send one piece to every device of the replica; return what came from each, in these shapes."""
        sent = torch.cat([one.contiguous().reshape(-1) for one in pieces])
        sizes = [torch.Size(one).numel() for one in shapes]
        received = sent.new_empty(sum(sizes))
        width = sent.element_size()
        self._joined().swap(
            sent.view(torch.uint8),
            received.view(torch.uint8),
            ([one.numel() * width for one in pieces], [one * width for one in sizes]),
            self.members,
            self.what,
        )
        return [one.view(*shape) for one, shape in zip(received.split(sizes), shapes, strict=True)]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over the devices of the replica."""
        total = tensor.clone(memory_format=torch.contiguous_format)
        self._joined().sum(total, self.members, self.what)
        return total

    def _joined(self) -> Channel:
        if self.channel is None:
            raise StagesError("a divided stage runs in a pipeline only: its processes are not connected")
        return self.channel


class _Moved(torch.autograd.Function):
    """A tensor that lies in one way, made to lie in another."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 (as torch calls it)
        tensor: torch.Tensor,
        team: Team,
        way: tuple[Layout, Layout],
        what: str,
    ) -> torch.Tensor:
        have, want = way
        ctx.way = (team, want, have, f"gradient of {what}")
        team.what = what
        return _moved(tensor, team, have, want)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ANN401 (as torch calls it)
        team, have, want, what = ctx.way
        team.what = what
        return _moved(gradients[0], team, have, want), None, None, None


class _Copied(torch.autograd.Function):
    """A whole tensor that every device uses for its own part of a product: its gradients are added up."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, team: Team, what: str) -> torch.Tensor:  # noqa: ANN401
        ctx.way = (team, f"sum of gradients of {what}")
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ANN401 (as torch calls it)
        team, team.what = ctx.way
        return team.sum(gradients[0]), None, None


class _Added(torch.autograd.Function):
    """Parts of a sum, one on each device, added up."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, team: Team, what: str) -> torch.Tensor:  # noqa: ANN401
        team.what = f"sum of {what}"
        return team.sum(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ANN401 (as torch calls it)
        return gradients[0], None, None


class _Scattered(torch.autograd.Function):
    """Parts of a sum, one on each device, added up so that each ends with its rows of it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, team: Team, rows: Portion, what: str) -> torch.Tensor:  # noqa: ANN401
        ctx.way = (team, rows, f"gradient of {what}")
        team.what = f"sum of {what}"
        return _summed_rows(tensor, team, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ANN401 (as torch calls it)
        team, rows, team.what = ctx.way
        return _moved(gradients[0], team, rows, WHOLE), None, None, None


class _Gathered(torch.autograd.Function):
    """Rows gathered for a product of which every device has a part: gradients are added up by rows again."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, team: Team, rows: Portion, what: str) -> torch.Tensor:  # noqa: ANN401
        ctx.way = (team, rows, f"sum of gradients of {what}")
        team.what = what
        return _moved(tensor, team, rows, WHOLE)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ANN401 (as torch calls it)
        team, rows, team.what = ctx.way
        return _summed_rows(gradients[0], team, rows), None, None, None


def mover(team: Team, have: Layout, want: Layout, what: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that changes how a tensor lies."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return _Moved.apply(tensor, team, (have, want), what)  # type: ignore[return-value]

    return moved


def copier(team: Team, what: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that hands a whole tensor to the parts of a product."""

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return _Copied.apply(tensor, team, what)  # type: ignore[return-value]

    return copied


def adder(team: Team, what: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that adds up the parts of a sum."""

    def added(tensor: torch.Tensor) -> torch.Tensor:
        return _Added.apply(tensor, team, what)  # type: ignore[return-value]

    return added


def scatterer(team: Team, rows: Portion, what: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that adds up the parts of a sum, for each device its rows."""

    def scattered(tensor: torch.Tensor) -> torch.Tensor:
        return _Scattered.apply(tensor, team, rows, what)  # type: ignore[return-value]

    return scattered


def gatherer(team: Team, rows: Portion, what: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that gathers rows for the parts of a product."""

    def gathered(tensor: torch.Tensor) -> torch.Tensor:
        return _Gathered.apply(tensor, team, rows, what)  # type: ignore[return-value]

    return gathered


def taker(dimension: int, indices: Indices) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that takes some indices of a dimension."""

    def taken(tensor: torch.Tensor) -> torch.Tensor:
        return taking(tensor, dimension, indices)

    return taken


def taking(tensor: torch.Tensor, dimension: int, indices: Indices) -> torch.Tensor:
    """Return some indices of a dimension of a tensor; a view where they have no gap."""
    if isinstance(indices, range):
        return tensor.narrow(dimension, indices.start, len(indices))
    return tensor.index_select(dimension, torch.tensor(indices, dtype=torch.long, device=tensor.device))


def _moved(tensor: torch.Tensor, team: Team, have: Layout, want: Layout) -> torch.Tensor:
    if isinstance(have, str):
        if isinstance(want, str):
            return tensor
        return taking(tensor, want.dimension, want.held[team.at]).clone(memory_format=torch.contiguous_format)
    if isinstance(want, Portion) and have.dimension == want.dimension:
        return _dealt_anew(tensor, team, have, want)
    if isinstance(want, str):
        pieces = [tensor for _ in team.members]
    else:
        pieces = [taking(tensor, want.dimension, one) for one in want.held]
    shapes = [_resized(pieces[team.at], have.dimension, len(one)) for one in have.held]
    return _put(team.swap(pieces, shapes), have.dimension, have.held)


def _summed_rows(tensor: torch.Tensor, team: Team, rows: Portion) -> torch.Tensor:
    """Send every device its rows of an addend; return the sum of what came."""
    pieces = [taking(tensor, rows.dimension, one) for one in rows.held]
    return torch.stack(team.swap(pieces, [pieces[team.at].shape for _ in team.members])).sum(0)


def _resized(tensor: torch.Tensor, dimension: int, length: int) -> list[int]:
    return [length if at == dimension else one for at, one in enumerate(tensor.shape)]


def _put(pieces: Sequence[torch.Tensor], dimension: int, places: Sequence[Indices]) -> torch.Tensor:
    """Put pieces side by side, each at its indices of a dimension."""
    together = torch.cat(list(pieces), dimension)
    order = [index for one in places for index in one]
    if order == sorted(order):
        return together
    back = sorted(range(len(order)), key=order.__getitem__)
    return together.index_select(dimension, torch.tensor(back, device=together.device))


def _dealt_anew(tensor: torch.Tensor, team: Team, have: Portion, want: Portion) -> torch.Tensor:
    """Exchange indices of one dimension, of which each device has some and wants others."""
    dimension, mine, wanted = have.dimension, have.held[team.at], want.held[team.at]
    place = {index: at for at, index in enumerate(mine)}
    pieces = [
        tensor.index_select(
            dimension,
            torch.tensor([place[one] for one in theirs if one in place], dtype=torch.long, device=tensor.device),
        )
        for theirs in want.held
    ]
    places = [[one for one in wanted if one in set(held)] for held in have.held]
    shapes = [_resized(tensor, dimension, len(one)) for one in places]
    return _put(team.swap(pieces, shapes), dimension, [tuple(one) for one in places])
