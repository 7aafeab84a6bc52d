"""What became of the tensors of a divided stage in the program of one device, and what is exchanged for it.

Products with weights of forms 1 to 4, as one device of a replica computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pipecut.execution.dividing.deciding import PRODUCTS, Decided, Factors, Lies
from pipecut.execution.dividing.moves import (
    ROWS,
    WHOLE,
    Cut,
    Indices,
    Layout,
    Portion,
    Team,
    adder,
    copier,
    gatherer,
    mover,
    scatterer,
    taker,
)
from pipecut.execution.errors import StagesError
from pipecut.execution.splitting.crossing import PartNodes, Replaced
from pipecut.execution.splitting.flat import Effects, FlatGraph, Region, arguments_of, written_by
from pipecut.ingest.operators.nodes import operator_of

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


def multiplied(values: StageValues, node: fx.Node) -> fx.Node:
    """Write a product with weights of any form but 0. Raises StagesError for one that cannot be run so."""
    product = PRODUCTS[operator_of(node)]
    given, inner = arguments_of(node), values.work.decided.inner.get(node)
    data, weight, bias = given[product.data], given[product.weight], given.get(product.bias)
    what = f"{values.work.where}: {node.name}"
    if operator_of(node) == "addmm" and (given.get("beta", 1) != 1 or given.get("alpha", 1) != 1):
        raise StagesError(f"{what}: a scaled addmm is run in form 0 only")
    if inner is None:
        lies = values.work.decided.lies[node]
        held = values.held_of(node, lies, product.output_dimension)
        taken = _for_all_columns(values, node, data, what)
        part = values.share(weight, product.outer, held)
        more = None if bias is None else values.share(bias, 0, held)
        return _call(values, node, product, taken, part, more)
    summed = _part_of_sum(values, node, product, inner, (data, weight))
    lies, added = WHOLE, adder(values.work.team, what)
    if values.work.decided.lies[node] == ROWS:
        lies, added = ROWS, scatterer(values.work.team, values.rows_of(node), what)
    made = values.graph.call_function(added, (summed,))
    if bias is None:
        return made
    dimension = product.output_dimension % len(node.meta["val"].shape)
    return values.graph.call_function(biased(dimension), (made, values.constant(bias, lies)))


def _for_all_columns(values: StageValues, node: fx.Node, data: fx.Node, what: str) -> fx.Node:
    """Return all of the data of a product of which each device makes some columns, whose gradients add up."""
    team = values.work.team
    if data not in values.work.effects.differentiable:
        return values.value(data, WHOLE)
    if values.work.decided.wants[node, data] == ROWS:
        rows = gatherer(team, values.rows_of(data), what)
        return values.graph.call_function(rows, (values.value(data, ROWS),))
    return values.graph.call_function(copier(team, what), (values.value(data, WHOLE),))


def _part_of_sum(
    values: StageValues, node: fx.Node, product: Factors, inner: Cut, factors: tuple[fx.Node, fx.Node]
) -> fx.Node:
    """Multiply this device's features of the data with those of the weights."""
    (data, weight), team = factors, values.work.team
    taken = values.value(data, values.work.decided.wants[node, data])
    length = weight.meta["val"].shape[product.inner]
    held = Cut(0, inner.minor, inner.owners).part(length, len(team.members)).held[team.at]
    part = values.share(weight, product.inner, held)
    if operator_of(node) != "embedding":
        return _call(values, node, product, taken, part, None)
    if not isinstance(held, range):
        raise StagesError(f"{values.work.where}: {node.name}: devices need rows of the table without a gap")
    given = arguments_of(node)
    rest = [given[name] for name in ("padding_idx", "scale_grad_by_freq", "sparse") if name in given]
    return values.graph.call_function(looked_up(held.start, len(held)), (part, taken, *rest))


def _call(
    values: StageValues, node: fx.Node, product: Factors, data: fx.Node, weight: fx.Node, bias: fx.Node | None
) -> fx.Node:
    if operator_of(node) == "addmm":
        if bias is None:
            return values.graph.call_function(torch.ops.aten.mm.default, (data, weight))
        return values.graph.call_function(torch.ops.aten.addmm.default, (bias, data, weight))
    given = {**arguments_of(node), product.data: data, product.weight: weight}
    if product.bias:
        given[product.bias] = bias
    schema: Any = getattr(node.target, "_schema", None)
    named = [one.name for one in schema.arguments if not one.kwarg_only and one.name in given]
    later = {name: one for name, one in given.items() if name not in named}
    return values.graph.call_function(node.target, tuple(given[name] for name in named), later)  # type: ignore[arg-type]


def looked_up(start: int, many: int) -> Callable[..., torch.Tensor]:
    """Return an embedding over rows ``start`` and on of a table: zeros for what is in other rows."""

    def rows_of(weight: torch.Tensor, indices: torch.Tensor, padding: int = -1, *rest: Any) -> torch.Tensor:  # noqa: ANN401
        local = indices - start
        mine = (local >= 0) & (local < many)
        padding = padding - start if start <= padding < start + many else -1
        found = torch.ops.aten.embedding.default(weight, torch.where(mine, local, 0), padding, *rest)
        return torch.where(mine.unsqueeze(-1), found, torch.zeros((), dtype=found.dtype, device=found.device))

    return rows_of


def biased(dimension: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the function that adds a bias along a dimension of an output."""

    def with_bias(output: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        shape = [1] * output.dim()
        shape[dimension] = -1
        return output + bias.view(shape)

    return with_bias
