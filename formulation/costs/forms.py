"""How the devices of a replica share a layer, as rows of a table, and what that moves, in bytes.

``C = A x B`` on the ``n`` devices of a replica, A the input, B the weights, C the output (PipePar Fig. 1; AccPar
Tables 4 and 5; the last two rows are Korthikanti et al., arXiv 2205.05198, Fig. 5):

====  ==================  =============  ======================  ================================================
form  A                   B              C                       communication inside
====  ==================  =============  ======================  ================================================
0     split by rows       replicated     split by rows           all-reduce of the gradient of B
1     split by columns    split by rows  n partial sums, added   all-reduce of C
2     replicated          by columns     split by columns        all-reduce of the gradient of A
3     split by columns    split by rows  partial sums to rows    reduce-scatter of C, all-gather of its gradient
4     rows, gathered      by columns     split by columns        all-gather of A, reduce-scatter of its gradient
6     by experts          by experts     by experts              nothing: tokens come and go between layers
====  ==================  =============  ======================  ================================================

Two more rows are for layers that are no product, with something of their own to send (:class:`Sent`): attention on
rows that are parts of a sequence (5), and a loss on columns that are parts of the vocabulary (7).

Rows are samples, or tokens where a layer works on each token by itself. What is inside follows from the layouts:
from split to whole is an all-gather, from partial to split a reduce-scatter, from partial to whole both. The
gradient of what is split is split; that of a whole input that meets divided work is partial, and that of a partial
output is whole. Where each device has its own rows it has a gradient of its own of all weights, and all add them.

*Between* two layers a tensor F and its gradient E (equally large) change their layout, by one rule
(:func:`change`). With a share ``alpha`` and ``beta = 1 - alpha`` a change between rows, columns and experts moves
``alpha * beta`` of a tensor, a change from one of them to *whole* moves ``beta``, and whole to anything is free.
Which changes occur follows from what the producer makes and the consumer takes, for F forward and for E backward.

Where the devices of a replica lie in a grid, a layer may be split by a *pair* of forms (``PAIRS``): one over the
neighbours in a row, one over the rows. Then every tensor has a layout along either axis, each form does what it
does with what the other leaves, over its own links, and fractions multiply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from pipecut.formulation.problem.layers import PAIRS, Split
from pipecut.formulation.problem.options import AllReduce
from pipecut.formulation.problem.units import NOTHING, Volume, ceil_div

ROWS, WHOLE, COLUMNS, PARTIAL, EXPERTS = "rows", "whole", "columns", "partial", "experts"
"""How a tensor lies on the devices of a replica; partial: each has an addend of the whole size; experts: each has
the tokens that go to its experts."""


class Sent(NamedTuple):
    """What a layer sends beside changes of layout: how many rings, or sums, of ``Across.sent_bytes`` in a pass.

    A ring takes the parts of a tensor round all devices. Backward keys and values go round once more, and their
    gradients with them.
    """

    forward: int
    backward: int
    ring: bool = False


NOTHING_OWN = Sent(0, 0)


@dataclass(frozen=True, slots=True)
class Sharding:
    """How the devices of a replica share a layer.

    ``takes`` is the layout of the input and its gradient, ``made`` that of the output and its gradient for
    whoever reads it. In between the layer works on its input as ``uses`` and makes its output as ``makes``, where
    these are others; ``divides_weights`` tells whether a device holds a part of the weights only; ``own`` is what
    is sent beside.
    """

    takes: str
    made: str
    divides_weights: bool = False
    uses: str = ""
    makes: str = ""
    own: Sent = NOTHING_OWN

    @property
    def input_at_work(self) -> str:
        """How the input lies while the layer works."""
        return self.uses or self.takes

    @property
    def output_at_work(self) -> str:
        """How the output lies before partial sums are added."""
        return self.makes or self.made

    @property
    def forward(self) -> tuple[int, int]:
        """How many halves of an all-reduce of the output, and of the input, lie in the forward pass."""
        return _halves(self.output_at_work, self.made), _halves(self.takes, self.input_at_work)

    @property
    def backward(self) -> tuple[int, int]:
        """How many halves of one of the output's gradient, and of the input's, lie in the backward pass."""
        output, given = self.output_at_work, self.input_at_work
        partial = PARTIAL if given == WHOLE != output else given
        return _halves(self.made, WHOLE if output == PARTIAL else output), _halves(partial, self.takes)


def _halves(have: str, want: str) -> int:
    """Return how many halves of an all-reduce turn one layout into another."""
    if have in (want, WHOLE):
        return 0
    return (have == PARTIAL) + (want == WHOLE)


_ROWS = Sharding(ROWS, ROWS)
_PRODUCT = (
    _ROWS,
    Sharding(COLUMNS, WHOLE, divides_weights=True, makes=PARTIAL),
    Sharding(WHOLE, COLUMNS, divides_weights=True),
    Sharding(COLUMNS, ROWS, divides_weights=True, makes=PARTIAL),
    Sharding(ROWS, COLUMNS, divides_weights=True, uses=WHOLE),
    _ROWS,
    Sharding(EXPERTS, EXPERTS, divides_weights=True),
    Sharding(COLUMNS, WHOLE, divides_weights=True, makes=PARTIAL),
)
_ONE_LAYOUT = tuple(Sharding(row.made, row.made, divides_weights=row.made == COLUMNS) for row in _PRODUCT)
_JOIN = (
    *_ONE_LAYOUT[:5],
    Sharding(ROWS, ROWS, own=Sent(1, 2, ring=True)),
    _ONE_LAYOUT[6],
    Sharding(COLUMNS, WHOLE, own=Sent(3, 0)),
)
SHARDINGS: Mapping[Split, tuple[Sharding, ...]] = MappingProxyType(
    {Split.MATRIX: _PRODUCT, Split.JOIN: _JOIN, Split.FOLLOW: _ONE_LAYOUT}
)
"""By kind of layer and form. A layer that is no matrix product works in one layout: a JOIN layer in that of its
own form, a FOLLOW layer in that of its source, whatever form that is. Columns bring their own weights. A loss adds
up the largest score, the sum of exponentials and the score of the label, each over all columns. Products are never
offered 5 and 7, which are 0 and 1 for them; what is made in a form lies alike whoever makes it."""


def all_reduce(size_bytes: Fraction, devices: int, kind: AllReduce) -> Volume:
    """Volume of the sum of a tensor over ``devices`` devices; nothing for one device."""
    if devices == 1 or size_bytes == 0:
        return NOTHING
    if kind is AllReduce.PLAIN:
        return Volume(Fraction(size_bytes), 1)
    steps = 2 * (devices - 1)
    return Volume(size_bytes * Fraction(steps, devices), steps)


def half_of_all_reduce(size_bytes: Fraction, devices: int, kind: AllReduce) -> Volume:
    """Volume of half of a sum: to end with a part of it on each device, or to gather the parts on all devices."""
    whole = all_reduce(size_bytes, devices, kind)
    return Volume(whole.amount_bytes / 2, ceil_div(whole.messages, 2))


def inside(
    split: Split,
    form: int,
    degree: int,
    *,
    sizes: tuple[Fraction, Fraction],
    own: tuple[Fraction, Fraction],
    kind: AllReduce,
) -> tuple[Volume, Volume]:
    """Volumes inside one layer for every micro-batch: of a forward pass, and of the backward pass.

    ``sizes`` are the bytes of one replica's (output, input), ``own`` those of what the layer sends beside: what a
    device lacks of it for a ring, and all of it for a sum.
    """
    row, ways = SHARDINGS[split][form], (half_of_all_reduce, all_reduce)
    found = []
    for halves, times in zip((row.forward, row.backward), row.own[:2], strict=True):
        volumes = [ways[one - 1](size, degree, kind) for one, size in zip(halves, sizes, strict=True) if one]
        if times:
            once = Volume(own[0], degree - 1) if row.own.ring else all_reduce(own[1], degree, kind)
            volumes = [Volume(times * once.amount_bytes, times * once.messages)]
        found.append(volumes[0] if volumes else NOTHING)
    return found[0], found[1]


def holders(split: Split, form: int, degree: int, replicas: int) -> int:
    """Return how many devices hold the same weights of a layer, and sum their gradients.

    By rows, or tokens of experts, all devices of a group do where they hold all weights; else each device of a
    replica has its counterparts in the other replicas, also where a layer on whole copies of the data computes the
    same gradient everywhere.
    """
    row = SHARDINGS[split][form]
    alone = row.input_at_work in (ROWS, EXPERTS) and not row.divides_weights
    return degree * replicas if alone else replicas


def held(split: Split, form: int, shard: Fraction) -> Fraction:
    """Return the part of a layer's weights that a device works with: where they are divided at most ``shard``."""
    return shard if SHARDINGS[split][form].divides_weights else Fraction(1)


class Fullest(NamedTuple):
    """How much the fullest of devices has that share a tensor along an axis of a grid.

    ``load`` is what the experts of the fullest device get over the mean, ``samples`` the whole ones of a replica;
    0 where rows can be divided evenly (``formulation.problem.shares``).
    """

    load: Fraction
    samples: int = 0

    def works(self, pair: tuple[int, int], sizes: tuple[int, int]) -> tuple[Fraction, Fraction]:
        """Return the part of a layer's work that the busiest device does along each axis, in a pair of forms."""
        first, second = (COLUMNS if (made := _PRODUCT[form].made) == WHOLE else made for form in pair)
        return self.along((first, second), sizes)

    def along(self, layouts: Sequence[str], sizes: tuple[int, int]) -> tuple[Fraction, Fraction]:
        """Return the part that the fullest device has along each axis, of what the one before leaves."""
        return self.has(layouts[0], sizes[0]), self.beside(layouts[0], sizes[0]).has(layouts[1], sizes[1])

    def beside(self, layout: str, devices: int) -> Fullest:
        """Return the same for the other axis, where a tensor lies so along this one: rows leave fewer samples."""
        return self._replace(samples=ceil_div(self.samples, devices)) if layout == ROWS else self

    def has(self, layout: str, devices: int) -> Fraction:
        """Return the part of a tensor that lies so which the fullest of the devices has."""
        if layout == EXPERTS:
            return min(Fraction(1), self.load / devices)
        if layout == ROWS and self.samples:
            return Fraction(ceil_div(self.samples, devices), self.samples)
        return Fraction(1, devices) if layout in (ROWS, COLUMNS) else Fraction(1)

    def moves(self, have: str, want: str, devices: int) -> Fraction:
        """Return the part of a tensor that a device fetches to turn layout ``have`` into ``want``."""
        lacking, one = Fraction(devices - 1, devices), Fraction(1, devices)
        if ROWS in (have, want) and self.samples:
            one = self.has(ROWS, devices)
            lacking = 1 - Fraction(self.samples // devices, self.samples) if want == WHOLE else lacking
        return change(have, want, (lacking, lacking * one, lacking * one * self.load))


def change(have: str, want: str, parts: tuple[Fraction, Fraction, Fraction]) -> Fraction:
    """Bytes that a device must fetch to turn layout ``have`` into ``want``: to gather it, to turn it, or none.

    ``parts`` are those to have the tensor whole, to turn rows into columns, and to send tokens to experts or back.
    """
    gather, turn, dispatch = parts
    if have in (want, WHOLE):
        return Fraction(0)
    if want == WHOLE:
        return gather
    return dispatch if EXPERTS in (have, want) else turn


def between(have: str, want: str, degree: int, *, parts: tuple[Fraction, Fraction, Fraction]) -> Volume:
    """Volume to change a layout: from ``have`` to ``want`` forward, and the gradient back.

    ``parts`` are those of :func:`change`.
    """
    return _both_ways(change(have, want, parts), change(want, have, parts), degree)


def between_on_grid(
    have: tuple[str, ...],
    want: tuple[str, ...],
    sizes: tuple[int, int],
    *,
    whole: Fraction,
    fullest: Fullest,
) -> tuple[Volume, Volume]:
    """Volumes to change a layout over two axes of a grid of these ``sizes``: inside its rows, and across them.

    ``have`` and ``want`` are the layouts along either axis, ``whole`` the bytes that a replica has of the tensor.
    Along one axis a tensor changes as :func:`change` says, of what the other axis leaves at that moment. First
    goes what only drops a part of what is whole, last what gathers, and of two alike the change across rows, so
    that less is sent, and less over the links between rows.
    """
    forward, backward = (
        _steps(*ends, sizes, whole=whole, fullest=fullest) for ends in ((have, want), (want, have))
    )
    return (
        _both_ways(forward[0], backward[0], sizes[0]),
        _both_ways(forward[1], backward[1], sizes[1]),
    )


def _steps(
    have: tuple[str, ...], want: tuple[str, ...], sizes: tuple[int, int], *, whole: Fraction, fullest: Fullest
) -> list[Fraction]:
    """Return the bytes that a device fetches along each axis for a change one way."""
    lies, found = [have[0], have[1]], [Fraction(0), Fraction(0)]
    for at in sorted((1, 0), key=lambda axis: (want[axis] == WHOLE) - (have[axis] == WHOLE)):
        other, devices = lies[1 - at], sizes[1 - at]
        moves = fullest.beside(other, devices).moves(lies[at], want[at], sizes[at])
        found[at] = whole * fullest.has(other, devices) * moves
        lies[at] = want[at]
    return found


def _both_ways(forward: Fraction, backward: Fraction, degree: int) -> Volume:
    messages = ((forward > 0) + (backward > 0)) * (degree - 1)
    return Volume(forward + backward, messages) if messages else NOTHING


def layouts(consumer: Split, source: int, form: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return how a tensor lies behind a layer whose layout is that of form ``source``, and how it is wanted.

    Along one axis, that of all devices, or along two where the form is a pair.
    """
    made = tuple(_PRODUCT[one].made for one in PAIRS.get(source, (source,)))
    return made, tuple(SHARDINGS[consumer][one].takes for one in PAIRS.get(form, (form,)))


def sums_input(split: Split, form: int) -> bool:
    """Tell whether devices work on the whole input of a product, so that they add up its gradient."""
    return split is Split.MATRIX and SHARDINGS[split][form].input_at_work == WHOLE


def by_experts(form: int) -> bool:
    """Tell whether what a layer makes in this form lies by experts, so that an uneven load counts."""
    return _PRODUCT[form].made == EXPERTS
