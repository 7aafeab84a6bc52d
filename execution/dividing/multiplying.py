"""Products with weights of forms 1 to 4, as one device of a replica computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from execution.dividing.moves import adder, copier, gatherer, scatterer
from execution.dividing.parts import ROWS, WHOLE, Cut
from execution.dividing.products import PRODUCTS, Factors
from execution.dividing.values import StageValues
from execution.errors import StagesError
from execution.splitting.effects import arguments_of
from ingest.operators.nodes import operator_of


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
