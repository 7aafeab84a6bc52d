"""The forms of one stage: Viterbi's dynamic programme over the layers of a span, with back-pointers.

A layer's form matters until the last layer that looks at it: the consumer at the end of a form edge, or a
FOLLOW layer that pays in its layout. A form that still matters is *live*. On a chain one layer
is live at a time (the classic recurrence, AccPar §4); at a residual join the layer before the fork is live too,
so the state is the forms of all live layers together, which is exact for any graph.

Source: PipePar Algorithm 1 lines 5 to 7, ``min`` over TYPE, read as in §2.4 of AccPar: three states for each
layer and a back-pointer, not one least TYPE for each span (the listing stores that alone and loses the others).
"""

from __future__ import annotations

from dataclasses import dataclass

from formulation.costs.tables import Tables
from formulation.problem.groups import forms_on
from formulation.problem.instance import Instance
from formulation.problem.layers import FormEdge, Split
from formulation.problem.plan import Span


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
