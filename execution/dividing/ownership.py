"""Which columns of a tensor which device has, behind every operator that works on shares of columns.

Where the columns lie behind an operator say the rules of ``ingest.operators.columns``, by which a plan's forms
were allowed; here the columns have owners.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence

from torch import fx

from execution.dividing.parts import Cut
from ingest.operators.nodes import follow_columns, operator_of

Place = tuple[int, int, int]
"""Dimension, minor and count of the columns of a tensor."""


class NoSuchCutError(Exception):
    """An operator cannot work on shares that begin at ``source``; another way to deal them may do."""

    def __init__(self, source: str, reason: str) -> None:
        """Keep where the shares were dealt."""
        super().__init__(reason)
        self.source = source


def grouped(owners: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Return the owners of fewer, wider columns, or of more, narrower ones; None where one would have two."""
    if len(owners) == count:
        return tuple(owners)
    if len(owners) % count == 0:
        width = len(owners) // count
        found = [set(owners[at * width : (at + 1) * width]) for at in range(count)]
        return tuple(one.pop() for one in found) if all(len(one) == 1 for one in found) else None
    if count % len(owners) == 0:
        return tuple(owner for owner in owners for _ in range(count // len(owners)))
    return None


def cut_behind(node: fx.Node, batched: Collection[fx.Node], cuts: dict[fx.Node, Cut]) -> Cut:
    """Return how the result of an operator lies whose operands are cut so.

    Raises NoSuchCutError where the operator looks across the cut, or columns of one owner would have two.
    """
    lead = next(iter(cuts.values()))

    def find(operand: fx.Node) -> tuple[int, int, int] | None:
        return cuts[operand].columns if operand in cuts else None

    legal, place = follow_columns(node, batched, find)
    if not legal or place is None:
        raise NoSuchCutError(lead.source, f"operator {node.target} looks across the columns of its operands")
    dimension, minor, count = place
    if (together := _joined(node, cuts)) is not None:
        return Cut(dimension, minor, together, lead.source)
    owners = [grouped(cut.owners, count) for cut in cuts.values()]
    for cut, one in zip(cuts.values(), owners, strict=True):
        if one is None:
            raise NoSuchCutError(cut.source, f"operator {node.target} needs groups of columns whole on a device")
        if one != owners[0]:
            raise NoSuchCutError(cut.source, f"operator {node.target} gets columns of different devices")
    return Cut(dimension, minor, owners[0] or (), lead.source)


def _joined(node: fx.Node, cuts: dict[fx.Node, Cut]) -> tuple[int, ...] | None:
    """Return the owners behind a concatenation along the columns; None for any other operator."""
    if operator_of(node) not in ("cat", "concat", "concatenate"):
        return None
    parts = list(cuts.values())
    listed = node.args[0]
    dimension = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    rank = len(node.meta["val"].shape)
    if not isinstance(listed, (list, tuple)) or not isinstance(dimension, int):
        return None
    if parts[0].dimension != dimension % rank:
        return None
    return tuple(owner for one in listed if isinstance(one, fx.Node) for owner in cuts[one].owners)


def places_of(nodes: Sequence[fx.Node], batched: Collection[fx.Node]) -> dict[fx.Node, Place]:
    """Return where the columns of every tensor would lie if they were divided. Cost: linear in nodes."""
    found: dict[fx.Node, Place] = {}
    for node in nodes:
        if node not in batched or node.op != "call_function":
            continue
        several = node.args[0] if node.target is operator.getitem else None
        if isinstance(several, fx.Node):
            place = found.get(several)
            first = several.meta["val"][0].shape
            if place is not None and place[1] == 1 and place[2] == first[place[0]]:
                place = (place[0], 1, node.meta["val"].shape[place[0]])
        else:
            _, place = follow_columns(node, batched, found.get)
        if place is not None:
            found[node] = place
    return found
