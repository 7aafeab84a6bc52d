"""The forms of one stage: Viterbi's dynamic programme over the layers of a span, with back-pointers.

A layer's form matters until the last layer that looks at it: the consumer at the end of a form edge, or a
FOLLOW layer that pays in its layout. A form that still matters is *live*. On a chain one layer
is live at a time (the classic recurrence, AccPar §4); at a residual join the layer before the fork is live too,
so the state is the forms of all live layers together, which is exact for any graph.

Source: PipePar Algorithm 1 lines 5 to 7, ``min`` over TYPE, read as in §2.4 of AccPar: three states for each
layer and a back-pointer, not one least TYPE for each span (the listing stores that alone and loses the others).

HPP, PipePar's Algorithm 1: the least time of every stage, whatever the parallel forms of its layers.

Listing line by line, over spans ``(i, j)`` (half-open) and kinds of device groups ``k`` (the listing counts
devices, ``m``; a kind also knows their classes and their slowest link):

- lines 3 and 4, ``for i``, ``for j``, ``for m``: all starts ``i`` are one numpy axis and all kinds another; only
  ``j`` is a loop, so one pass over the layers fills the whole table;
- lines 5 and 6, ``Tem``, "Hybrid Time for all TYPE": the axes of :class:`_Frontier`, one for each live layer;
- line 7, ``min(Tem.Time)``: :meth:`_Frontier.least`, the least over the forms of all live layers;
- line 10: :class:`StageTimes`.

What was mended: line 7 of the listing keeps one least time for each ``(i, j, m)``, from which the time of
``(i, j + 1, m)`` does not follow, as the next layer's change of layout depends on the *form* of the last one
(defect f, docs/decisions/0001). Here the time of every form of every live layer is kept until its last use. That
also covers graphs with skip connections, for which the paper says nothing.

A stage that starts behind a layer ``q`` pays nothing for layouts that come from ``q`` (a boundary delivers the
layout that is asked for): its row stays level along the axis of ``q``, because everything that depends on
``q`` is added to the rows ``i <= q`` only.

Where stages may only be cut at some places, only the spans between these are tabled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import TooLargeError, in_time
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import forms_on
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import FormEdge, Split
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.plan import Span


def last_uses(tables: Tables) -> tuple[int, ...]:
    """Return, for every layer, the last layer whose communication depends on its form (at least itself).

    FOLLOW layers have no form; they keep that of their source live only if it makes a difference on some kind of
    group: if their weights are synchronised, or if they compute more in some layouts. Cost: linear in layers, form
    edges and table cells.
    """
    instance = tables.instance
    last = list(range(len(instance.layers)))
    for edge in instance.form_edges:
        last[edge.source] = max(last[edge.source], edge.consumer)
    for layer, source in enumerate(instance.sources):
        if source is not None and source != layer and tables.moves(layer):
            last[source] = max(last[source], layer)
    return tuple(last)


def edges_into(instance: Instance) -> dict[int, list[tuple[int, FormEdge]]]:
    """Return the form edges, with their indices, by consumer."""
    found: dict[int, list[tuple[int, FormEdge]]] = {}
    for index, edge in enumerate(instance.form_edges):
        found.setdefault(edge.consumer, []).append((index, edge))
    return found


class NoFormError(ValueError):
    """A layer cannot be on such a group."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A back-pointer: the form of the newest form-bearing layer and the chosen ones before it."""

    layer: int
    form: int
    before: _Chosen | None


_States = dict[tuple[int, ...], tuple[int, _Chosen | None]]
"""By the forms of the live layers: the least communication in ns so far, and how it was reached."""


def best_forms(tables: Tables, kind: int, span: Span) -> tuple[int, ...]:
    """Return the forms with the least communication of a stage on ``kind``, one per layer (FOLLOW layers: 0).

    Computation does not depend on forms, so they are best under either reading of a stage's time. Ties go to
    the state found first, lower forms first. Raises ValueError for a span without layers, and for one with a layer
    that has no form on such a group.
    Cost: O(layers x 3**live) steps in Python.
    """
    if len(span) == 0:
        raise ValueError(f"layers {span.first} to {span.stop} make no stage, so they have no forms")
    if tables.kinds[kind].tensor_parallel_degree == 1:
        return (0,) * len(span)
    last, incoming = last_uses(tables), edges_into(tables.instance)
    states: _States = {(): (0, None)}
    live: list[int] = []
    for layer in span.layers:
        if tables.instance.layers[layer].split is Split.FOLLOW:
            states = _follow(tables, (kind, span.first), layer, live, states)
        else:
            edges = [(index, edge) for index, edge in incoming.get(layer, []) if edge.source in span]
            states = _bear(tables, (kind, span.first), layer, live, states, edges)
            live = [*live, layer]
        if not states:
            name, devices = tables.instance.layers[layer].name, tables.kinds[kind].devices
            raise NoFormError(f"layer {name} has no form in which {devices} devices share it")
        states, live = _retire(states, live, [one for one in live if last[one] > layer])
    _, chosen = min(states.values(), key=lambda state: state[0])
    forms = [0] * len(span)
    while chosen is not None:
        forms[chosen.layer - span.first] = chosen.form
        chosen = chosen.before
    return tuple(forms)


def _follow(tables: Tables, stage: tuple[int, int], layer: int, live: list[int], states: _States) -> _States:
    """Add what a FOLLOW layer pays in the layout of its source (outside the stage: as in form 0).

    ``stage`` is its kind and its first layer.
    """
    if not tables.moves(layer):
        return states
    source = tables.instance.sources[layer]
    at = live.index(source) if source in live else None
    kind, first = stage
    row = tables.own(kind, layer, first).tolist()
    return {key: (time + row[0 if at is None else key[at]], back) for key, (time, back) in states.items()}


def _bear(
    tables: Tables,
    stage: tuple[int, int],
    layer: int,
    live: list[int],
    states: _States,
    edges: list[tuple[int, FormEdge]],
) -> _States:
    """Try every form of a layer on every state: what it moves inside itself and at the edges into it."""
    kind, first = stage
    inside = tables.own(kind, layer, first).tolist()
    change = [(live.index(edge.source), tables.between[kind, index].tolist()) for index, edge in edges]
    allowed = sorted(forms_on(tables.instance.layers[layer], tables.kinds[kind]))
    grown: _States = {}
    for key, (time, back) in states.items():
        for form in allowed:
            total = time + inside[form] + sum(row[key[at]][form] for at, row in change)
            grown[(*key, form)] = (total, _Chosen(layer, form, back))
    return grown


def _retire(states: _States, live: list[int], still: list[int]) -> tuple[_States, list[int]]:
    """Keep the best state for each choice of the forms that still matter."""
    if len(still) == len(live):
        return states, live
    places = [live.index(one) for one in still]
    kept: _States = {}
    for key, state in states.items():
        short = tuple(key[place] for place in places)
        if short not in kept or state[0] < kept[short][0]:
            kept[short] = state
    return kept, still


BYTES_A_SPAN = 24
"""For each kind and span: its time, and twice its communication while that is made."""
MAX_LIVE = 7
"""How many layers with a choice of forms may be live at once: 3 ** 7 states for each start and kind."""


@dataclass(frozen=True, slots=True, eq=False)
class StageTimes:
    """Least times in ns of one micro-batch of every stage, without its boundaries, by kind ``k`` and span.

    ``time[k, i, j]`` and ``communication[k, i, j]`` for layers ``i <= l < j``; FORBIDDEN where ``j <= i``.
    ``compute_sum[k, j]`` is the computation of the layers before ``j``. They count the
    places of a cut space, where one is given.
    ``time`` honours StageTime: the sum or the larger of computation and communication. All three are int64.
    """

    tables: Tables
    compute_sum: Times
    communication: Times
    time: Times

    def ends(self, threshold_ns: int) -> Times:
        """Return the furthest ends by kind and first layer 0 .. N within a time; the layer itself if none fits.

        A stage that fits never stops fitting when its last layer is taken away, so counting finds them.
        """
        total = self.time.shape[1]
        later = np.stack([(row <= threshold_ns).sum(axis=1) for row in in_time(self.time, self.tables.deadline)])
        return np.concatenate([np.arange(total) + later, np.full((len(later), 1), total)], axis=1)

    def values(self, low: int, high: int) -> Times:
        """Return the times from ``low`` to below ``high``, in no order."""
        rows = in_time(self.time, self.tables.deadline)
        return np.concatenate([row[(row >= low) & (row < high)] for row in rows])

    def compute(self, kind: int) -> Times:
        """Return the computation of every span, ``[i, j]``, N x (N + 1); negative where ``j <= i``."""
        row = self.compute_sum[kind]
        return row[None, :] - row[:-1, None]

    @staticmethod
    def of(tables: Tables, space: CutSpace | None = None, max_live: int = MAX_LIVE) -> StageTimes:
        """Return the stage times of all spans and kinds; of those between the places of a space alone, if given.

        Raises ValueError where more than ``max_live`` layers with a choice of forms are live at once;
        TooLargeError before it takes too much memory; StoppedError after the deadline of the tables. Cost: O(kinds
        x layers**2 x 3**live) in numpy, and BYTES_A_SPAN of memory for each kind and span.
        """
        places = list(space.places) if space else [*range(len(tables.instance.layers) + 1)]
        kinds, total = len(tables.kinds), len(places) - 1
        check_size(kinds, total)
        sums = np.zeros((kinds, len(tables.instance.layers) + 1), dtype=np.int64)
        np.cumsum(tables.compute, axis=1, out=sums[:, 1:])
        compute_sum = sums[:, places]
        communication = _forbidden(kinds, total, tables)
        upper = np.triu_indices(total, 1, total + 1)
        whole = [index for index, kind in enumerate(tables.kinds) if kind.tensor_parallel_degree == 1]
        several = [index for index, kind in enumerate(tables.kinds) if kind.tensor_parallel_degree > 1]
        for index in in_time(whole, tables.deadline):  # nothing is split, so gradients are summed and that is all
            moved = np.concatenate([[0], np.cumsum(tables.inside[index, :, 0])])[places]
            communication[index][upper] = (moved[None, :] - moved[:-1, None])[upper]
            for (earlier, layer), copy in tables.copies.items():
                behind, reached = np.searchsorted(places[:-1], [earlier, layer], side="right")
                stops = np.searchsorted(places, layer, side="right")
                communication[index][behind:reached, stops:] += copy[index, 0]
        if several:
            communication[several] = _least_communication(tables, several, max_live, places)
        join = np.maximum if tables.instance.cost.stage_time is StageTime.OVERLAP else np.add
        time, lower = np.empty_like(communication), np.tril_indices(total, 0, total + 1)
        for kind in in_time(range(kinds), tables.deadline):
            compute = compute_sum[kind, None, :] - compute_sum[kind, :-1, None]
            join(compute, communication[kind], out=time[kind])
            time[kind][lower] = FORBIDDEN
        return StageTimes(tables, compute_sum, communication, time)


def check_size(kinds: int, total: int) -> int:
    """Return the bytes that the times of all stages take. Raises TooLargeError if they are too many."""
    needed = BYTES_A_SPAN * kinds * total * (total + 1)
    TooLargeError.refuse_above(
        f"times of all stages ({kinds} kinds of device groups, {total} layers)",
        needed,
        "merge layers, close cuts with constraints.no_cut, or narrow constraints.devices_per_stage",
    )
    return needed


def _least_communication(tables: Tables, kinds: list[int], max_live: int, places: list[int]) -> Times:
    """Return ``[k, i, j]`` over the given kinds (all of split replicas), FORBIDDEN where ``j <= i``."""
    instance, last = tables.instance, last_uses(tables)
    incoming = edges_into(instance)
    total = len(places) - 1
    least = _forbidden(len(kinds), total, tables)
    frontier = _Frontier(tables, kinds, places[:-1])
    stops = {place: at for at, place in enumerate(places)}
    for layer in in_time(range(len(instance.layers)), tables.deadline):
        if instance.layers[layer].split is Split.FOLLOW:
            frontier.follow(layer)
        else:
            frontier.check_width(layer, max_live)
            frontier.bear(layer)
            for index, edge in incoming.get(layer, []):
                frontier.change(index, edge.source, layer)
        frontier.retire([one for one in frontier.live if last[one] <= layer])
        if layer + 1 in stops:
            reached = frontier.reached(layer)
            least[:, :reached, stops[layer + 1]] = frontier.least()[:, :reached]
    return least


def _forbidden(kinds: int, total: int, tables: Tables) -> Times:
    """Return a table of spans in which nothing is reached; of many kinds filling it takes seconds."""
    table = np.empty((kinds, total, total + 1), dtype=np.int64)
    for kind in in_time(range(kinds), tables.deadline):
        table[kind] = FORBIDDEN
    return table


class _Frontier:
    """Least communication so far, by the form of every live layer, for every kind and start at once.

    ``state`` has the shape (kinds, allowed forms of each live layer in turn, starts). Starts are the last
    axis, so that all other axes are reduced over long contiguous rows. Rows of starts not yet reached are 0.
    """

    def __init__(self, tables: Tables, kinds: list[int], starts: list[int]) -> None:
        instance = tables.instance
        self.instance = instance
        self.inside = tables.inside[kinds]
        self.between = tables.between[kinds]
        self.copies = {layer: (earlier, copy[kinds]) for (earlier, layer), copy in tables.copies.items()}
        self.pays = [tables.moves(layer) for layer in range(len(instance.layers))]
        self.allowed = [sorted(layer.allowed_forms) for layer in instance.layers]
        self.live: list[int] = []
        self.state: Times = np.zeros((len(kinds), len(starts)), dtype=np.int64)
        self._reached = np.searchsorted(starts, np.arange(len(instance.layers)), side="right").tolist()

    def reached(self, layer: int) -> int:
        """Return how many starts lie at this layer or before it."""
        return self._reached[layer]

    def check_width(self, layer: int, max_live: int) -> None:
        """Raise ValueError if this layer is one too many that is live and has a choice of forms."""
        open_choices = [one for one in (*self.live, layer) if len(self.allowed[one]) > 1]
        if len(open_choices) > max_live:
            names = ", ".join(self.instance.layers[one].name for one in open_choices)
            raise ValueError(
                f"layer {self.instance.layers[layer].name}: the forms of {len(open_choices)} layers matter at once"
                f" ({names}), at most {max_live} can be searched together; restrict allowed_forms of some of them"
            )

    def bear(self, layer: int) -> None:
        """Make a layer live: one more axis, and what each of its forms moves inside the layer."""
        forms = self.allowed[layer]
        self.state = np.repeat(self.state[..., None, :], len(forms), axis=-2)
        self.live.append(layer)
        self.state[..., : self.reached(layer)] += self._along({layer: 1}, self.inside[:, layer, forms])
        if layer in self.copies:
            earlier, copy = self.copies[layer]
            behind = slice(self.reached(earlier), self.reached(layer))
            self.state[..., behind] += self._along({layer: 1}, copy[:, forms])

    def change(self, index: int, source: int, consumer: int) -> None:
        """Add form edge ``index`` for the stages that hold its source, that is, start at it or before."""
        cells = self.between[:, index][:, self.allowed[source]][:, :, self.allowed[consumer]]
        self.state[..., : self.reached(source)] += self._along({source: 1, consumer: 2}, cells)

    def follow(self, layer: int) -> None:
        """Add what a FOLLOW layer pays: in the layout of its source, from outside as in form 0."""
        if not self.pays[layer]:
            return
        source = self.instance.sources[layer]
        begun = 0 if source is None else self.reached(source)
        if source is not None:
            cells = self.inside[:, layer, self.allowed[source]]
            self.state[..., :begun] += self._along({source: 1}, cells)
        self.state[..., begun : self.reached(layer)] += self._along({}, self.inside[:, layer, 0])
        if layer in self.copies:
            earlier, copy = self.copies[layer]
            behind = self.reached(earlier)
            if source is not None and behind < begun:
                self.state[..., behind:begun] += self._along({source: 1}, copy[:, self.allowed[source]])
            self.state[..., max(begun, behind) : self.reached(layer)] += self._along({}, copy[:, 0])

    def retire(self, layers: list[int]) -> None:
        """Take the least over the forms of layers that no later layer looks at."""
        for layer in layers:
            self.state = self.state.min(axis=1 + self.live.index(layer))
            self.live.remove(layer)

    def least(self) -> Times:
        """Return the least communication, (kinds, N starts), over the forms of all live layers."""
        return self.state.min(axis=tuple(range(1, 1 + len(self.live))))

    def _along(self, axes: dict[int, int], cells: Times) -> Times:
        """Shape cells (kinds, forms ...) to add along the axes of these layers, given in the order of live."""
        shape = [cells.shape[axes[one]] if one in axes else 1 for one in self.live]
        return cells.reshape(cells.shape[0], *shape, 1)
