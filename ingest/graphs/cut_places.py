"""Where a model may be cut: between its blocks, where a module is called, at every layer, or where a user says.

The places are a property of the model, not a wish: a layer graph carries them (``formulation.problem.layers``),
and every rule, search and proof keeps to them.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import networkx as nx

from formulation.costs.amounts import plural
from ingest.errors import ModelError
from ingest.graphs.call_tree import CallNode, blocks_of, call_tree
from ingest.graphs.module_calls import BLOCKS, MODULES, OPERATORS

Cuts = str | Sequence[str]
"""One of the words, or globs."""


def cut_at(graph: nx.DiGraph, cuts: Cuts | None) -> nx.DiGraph:
    """Return a layer graph that can be cut at the places that are asked for, and says so in a note.

    ``blocks``: where a repeated block starts or ends, and where modules beside them are called; every layer, if
    the model repeats nothing. ``modules``: where a module is called. ``operators``: every layer. Globs: where what
    they match starts, of calls inside one another the outermost. None: the graph's own places, else ``blocks``.
    Raises ModelError naming every glob that matches nothing.
    """
    if cuts is None and "cuts" in graph.graph:
        return graph
    chosen, calls = graph.copy(), bool(graph.graph.get("modules"))
    chosen.graph.pop("cuts", None)
    if cuts == OPERATORS or (cuts is None and not calls):
        return chosen
    places, note = _blocks(graph) if cuts in (None, BLOCKS) else (_others(graph, cuts or ()), "")
    if places is not None:
        names = list(graph)
        chosen.graph["cuts"] = tuple(names[place] for place in sorted(set(places) - {0}))
    if note:
        chosen.graph["notes"] = (*graph.graph.get("notes", ()), note)
    return chosen


def _blocks(graph: nx.DiGraph) -> tuple[Sequence[int] | None, str]:
    """Return where blocks start and end, and a note; no places where there is no block."""
    every = len(graph) - 1
    blocks = blocks_of(graph)
    if not blocks.found:
        return None, f"the model repeats no block, so a stage may start at any layer: {_places(every)}"
    kinds = Counter(one.operator for one in blocks.found)
    listed = " and ".join(f"{number} {kind}" for kind, number in kinds.items())
    note = f"{_places(len(blocks.starts))}, between blocks ({listed}); model.cuts: operators would allow {every}"
    return blocks.starts, note


def _places(number: int) -> str:
    return f"{number} {plural(number, 'cut point')}"


def _others(graph: nx.DiGraph, cuts: Cuts) -> list[int]:
    calls = list(call_tree(graph).inside())
    if cuts == MODULES:
        return [call.first for call in calls]
    globs = [cuts] if isinstance(cuts, str) else list(cuts)
    names = [*graph, *(call.name for call in calls)]
    found: list[int] = []
    problems: list[str] = []
    for index, glob in enumerate(globs):
        matching = list(_matching(graph, calls, glob))
        if not matching:
            near = difflib.get_close_matches(glob, names, n=1, cutoff=0.3)
            hint = f"; the closest is '{near[0]}'" if near else ""
            problems.append(f"model.cuts[{index}]: no layer or module matches '{glob}'{hint}")
        found += matching
    if problems:
        raise ModelError("; ".join(problems))
    return found


def _matching(graph: nx.DiGraph, calls: Sequence[CallNode], glob: str) -> Iterator[int]:
    """Yield where the outermost calls, and the layers outside them, start whose names match."""
    behind = 0
    covered: set[int] = set()
    for call in calls:
        if call.first >= behind and _is(call.name, glob):
            yield call.first
            behind = call.stop
            covered.update(range(call.first, call.stop))
    yield from (at for at, name in enumerate(graph) if at not in covered and _is(name, glob))


def _is(name: str, glob: str) -> bool:
    return name == glob or fnmatchcase(name, glob)
