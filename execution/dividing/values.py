"""What became of the tensors of a divided stage in the program of one device, and what is exchanged for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from execution.dividing.deciding import Decided, Lies
from execution.dividing.moves import Layout, Team, mover, taker
from execution.dividing.parts import ROWS, WHOLE, Cut, Indices, Portion
from execution.errors import StagesError
from execution.splitting.crossing import PartNodes
from execution.splitting.effects import Effects, written_by
from execution.splitting.flat import FlatGraph, Region
from execution.splitting.writes import Replaced

OUTSIDE = Region()


@dataclass(frozen=True, slots=True)
class Rows:
    """The samples of a replica that each of its devices takes, and the same model followed for those of this one.

    ``named`` are the nodes of that graph by name; None where nothing lies by rows.
    """

    samples: tuple[range, ...]
    named: Mapping[str, fx.Node] | None


@dataclass(frozen=True, slots=True)
class StageWork:
    """A stage to be divided: its nodes, how their results lie, and the devices of the replica.

    ``given`` is how tensors cross the cuts, ``where`` names the stage in messages; layers in ``again`` are
    computed again in the backward pass, in runs of one number.
    """

    flat: FlatGraph
    part: PartNodes
    effects: Effects
    decided: Decided
    team: Team
    rows: Rows
    given: str
    where: str
    again: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Uses:
    """How a stage uses a parameter or buffer.

    ``parts`` are the indices of a dimension that this device takes, ``whole`` that all devices use it for the same
    whole tensors, ``shared`` that each uses it for its own samples or columns.
    """

    parts: set[tuple[int, Indices]] = field(default_factory=set)
    whole: bool = False
    shared: bool = False


class StageValues:
    """The nodes of a new ``graph`` for those of a stage, each as it is wanted.

    ``held`` are the parameters and buffers of which this device has a part only, ``alike`` those of which all
    devices make the same gradient. ``uses`` and ``asked`` note how parameters are used, and which constants are
    wanted for this device's samples or for all. ``region`` is the one that is written just now.
    """

    def __init__(self, graph: fx.Graph, work: StageWork, held: frozenset[str], alike: frozenset[str]) -> None:
        """Place what arrives at the stage."""
        self.graph, self.work, self.held, self.alike = graph, work, held, alike
        self.uses: dict[str, Uses] = {}
        self.asked: dict[fx.Node, set[str]] = {}
        self.region = OUTSIDE
        part = work.part
        self.kept = set[int]().union(*(work.effects.storages[one] for one in part.attributes))
        self.replaced = Replaced(part, work.effects, work.where)
        self._by_name = {node.name: node for node in work.flat.nodes}
        self._made: dict[tuple[Any, ...], Any] = {}
        for node in (*part.takes, *part.inputs, *part.attributes):
            lies = work.given if node in part.takes else WHOLE
            self._made[node, lies, OUTSIDE] = graph.placeholder(node.name)

    def lying_in(self, buffers: Iterable[fx.Node]) -> list[fx.Node]:
        """Return what became of all nodes whose results lie in the memory of buffers, and of these."""
        storages = self.work.effects.storages
        memory = set[int]().union(*(storages[one] for one in buffers))
        return [made for (node, *_), made in self._made.items() if storages[node] & memory]

    def named(self, node: fx.Node) -> fx.Node:
        """Return the node of the stage that is called as one of the graph for other samples. Or StagesError."""
        if node.name not in self._by_name:
            raise StagesError(f"{self.work.where}: {node.name} is not there for another number of samples")
        return self._by_name[node.name]

    def in_rows(self, node: fx.Node) -> fx.Node:
        """Return the node as it is for this device's samples."""
        found = None if self.work.rows.named is None else self.work.rows.named.get(node.name)
        if found is None or found.target != node.target:
            raise StagesError(f"{self.work.where}: {node.name} is not the same for another number of samples")
        return found

    def keep(self, node: fx.Node, lies: Lies, made: fx.Node) -> None:
        """Remember what became of a node, and of the operand that it writes into."""
        self._made[node, self.key(node, lies), OUTSIDE] = made
        self.replaced.note(node)

    def key(self, node: fx.Node, lies: Lies) -> Layout | str:
        """Return under which key a tensor that lies so is kept: equal parts are one."""
        if isinstance(lies, str):
            return lies
        value: Any = node.meta["val"]
        if isinstance(value, (list, tuple)):
            return "pieces"
        return lies.part(value.shape[lies.dimension], len(self.work.team.members))

    def value(self, node: fx.Node, lies: Lies) -> Any:  # noqa: ANN401 (a node)
        """Return a tensor that depends on the inputs as it is wanted, exchanged if need be."""
        node = self.replaced.newest(node)
        want = self.key(node, lies)
        for region in (OUTSIDE, self.region):
            if (node, want, region) in self._made:
                return self._made[node, want, region]
        if node in self.work.part.inputs:
            have: Layout | str = WHOLE
        else:
            have = self.key(
                node, self.work.given if node in self.work.part.takes else self.work.decided.lies[node]
            )
        source = self._made[node, have, OUTSIDE]
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return source
        wanted, what = self._layout(node, want), f"{self.work.where}: {node.name}"
        move = mover(self.work.team, self._layout(node, have), wanted, what)
        if node in self.work.part.inputs and isinstance(wanted, Portion):
            move = taker(wanted.dimension, wanted.held[self.work.team.at])
        moved = self.graph.call_function(move, (source,))
        self._made[node, want, self.region] = moved
        return moved

    def _layout(self, node: fx.Node, key: Layout | str) -> Layout:
        """Return the part of a tensor that rows stand for, or what else is said of it."""
        return self.rows_of(node) if key == ROWS else key

    def rows_of(self, node: fx.Node) -> Portion:
        """Return the part of a tensor that rows stand for; they have to be its first dimension."""
        whole, mine = node.meta["val"].shape, self.in_rows(node).meta["val"].shape
        samples = self.work.rows.samples
        all_of, one = sum(map(len, samples)), len(samples[self.work.team.at])
        if whole[1:] != mine[1:] or not whole or whole[0] * one != mine[0] * all_of or whole[0] % all_of:
            raise StagesError(
                f"{self.work.where}: {node.name} of shape {list(whole)} does not have the samples as its first "
                "dimension, so devices cannot exchange those of each other: give its layers the same form"
            )
        wide = whole[0] // all_of
        return Portion(0, tuple(range(one.start * wide, one.stop * wide) for one in samples))

    def constant(self, node: fx.Node, lies: str, *, shared: bool = False) -> Any:  # noqa: ANN401 (a node)
        """Return what depends on no input: weights, masks and what is made from them."""
        for name in self._attributes_of(node):
            use = self.uses.setdefault(name, Uses())
            use.whole |= lies == WHOLE and not shared
            use.shared |= lies == ROWS or shared
        made = self.copied(node, lies)
        if lies == WHOLE and not shared and self.work.team.at and not self._attributes_of(node) <= self.alike:
            return self.graph.call_function(torch.ops.aten.detach.default, (made,))  # counted once: by the first
        return made

    def copied(self, node: fx.Node, lies: str) -> Any:  # noqa: ANN401 (a node)
        """Return the node's value as it lies so, made once: by rows, by columns or whole."""
        if node.op == "get_attr" or self.work.effects.writes.get(node, set()) & self.kept:
            lies = WHOLE  # there is one of it, whose changes count once
        key = (node, lies, OUTSIDE)
        if key not in self._made:
            self.asked.setdefault(node, set()).add(lies)
            self.write_first(node, lies)
            template = node if lies == WHOLE else self.in_rows(node)
            self._made[key] = self.graph.node_copy(template, lambda one: self.copied(self.named(one), lies))
        return self._made[key]

    def write_first(self, node: fx.Node, lies: str) -> None:
        """Write what has written into what a node reads, where that depends on no input."""
        for one in self.work.effects.needs[node]:
            if one not in self.work.effects.batched and one.op == "call_function" and written_by(one):
                self.copied(one, lies)

    def _attributes_of(self, node: fx.Node) -> frozenset[str]:
        """Return the parameters that something is made from which depends on no input."""
        waiting, found = [node], set[str]()
        while waiting:
            one = waiting.pop()
            waiting += one.all_input_nodes
            if one.op == "get_attr":
                found.add(str(one.target))
        return frozenset(found)

    def share(self, node: fx.Node, dimension: int, indices: Indices) -> fx.Node:
        """Return this device's part of a weight."""
        if node.op == "get_attr":
            name = str(node.target)
            self.uses.setdefault(name, Uses()).parts.add((dimension, indices))
            made = self._made[node, WHOLE, OUTSIDE]
            return made if name in self.held else self.graph.call_function(taker(dimension, indices), (made,))
        made = self.constant(node, WHOLE, shared=True)
        return self.graph.call_function(taker(dimension, indices), (made,))

    def held_of(self, node: fx.Node, lies: Lies, dimension: int) -> Indices:
        """Return the indices of a dimension that this device has of a result whose columns are divided."""
        shape = node.meta["val"].shape
        if not isinstance(lies, Cut):
            raise StagesError(f"{self.work.where}: {node.name} is not divided")
        return lies.part(shape[dimension % len(shape)], len(self.work.team.members)).held[self.work.team.at]
