"""Operators without a formula: what is said of them, and the error that they are where none is wanted."""

from __future__ import annotations

import networkx as nx

from formulation.costs.amounts import plural
from ingest.errors import ModelError


def told_of_unpriced(graph: nx.DiGraph, *, strict: bool = False) -> nx.DiGraph:
    """Return a layer graph with a note about its operators without a formula. Raises ModelError if ``strict``."""
    found: tuple[str, ...] = graph.graph.get("unpriced", ())
    if not found:
        return graph
    number = f"{len(found)} {plural(len(found), 'operator')} without a formula"
    listed = ", ".join(found)
    if strict:
        raise ModelError(
            f"model {graph.graph['name']}: {number}: {listed}; name a known operator that counts the same in "
            "model.operators, or leave out --strict"
        )
    noted = graph.copy()
    note = f"{number} counted as the bytes that they read and write: {listed}"
    noted.graph["notes"] = (*graph.graph.get("notes", ()), note)
    return noted
