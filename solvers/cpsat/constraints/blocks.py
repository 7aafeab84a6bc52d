"""Memory where stages choose blocks that are computed again: what runs need at once, and what stays for them.

A *run* is computed again at one time: a block, or the layers of a whole stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from ortools.sat.python import cp_model

from formulation.costs.bulk.lent import Reading
from formulation.costs.memory_tables import MemoryTables
from formulation.costs.tables import Times
from formulation.problem.cuts import CutSpace
from solvers.cpsat.base.by_form import add_by_form
from solvers.cpsat.base.conditional import Conditional
from solvers.cpsat.base.families import Posted
from solvers.cpsat.base.variables import Expression, Variables

Literals = list[cp_model.LiteralT]


def computed_again(held: MemoryTables) -> Times:
    """Return by kind, layer and form what layers hold while they are computed again; 0 where nobody chooses."""
    again = held.once - held.once
    for own, whole in held.recomputing.items():
        again[whole] = held.once[whole] - held.once[own]
    return again


def post_at_work(
    v: Variables, again: list[Expression], working: list[Expression], reading: list[cp_model.IntVar], most: int
) -> Posted:
    """Let each reading be at least what any run, or layer of none, of the stage so far needs at once.

    That is all that the run computes ``again``, and the largest of its ``working`` sets.
    """
    places = set(CutSpace.of(v.tables.instance).places)
    rerun = [v.model.new_int_var(0, most, f"rerun[{i}]") for i in range(v.layers)]
    largest = [v.model.new_int_var(0, most, f"largest of run[{i}]") for i in range(v.layers)]
    for i in range(v.layers):
        yield (i,), v.model.add(rerun[i] >= again[i])
        yield (i,), v.model.add(largest[i] >= working[i])
        yield (i,), v.model.add(reading[i] >= rerun[i] + largest[i])
        if i == 0:
            continue
        whole: list[Literals] = [[~v.again[i], v.layer_kind[i][c]] for c in v.recomputing.values()]
        goes_on: list[tuple[cp_model.Constraint, Literals]] = [(v.model.add(reading[i] >= reading[i - 1]), [])]
        for here in whole if i in places else [[]]:
            goes_on.append((v.model.add(rerun[i] >= rerun[i - 1] + again[i]), here))
            goes_on.append((v.model.add(largest[i] >= largest[i - 1]), here))
        for constraint, here in goes_on:
            constraint.only_enforce_if(~v.cut[i], *here)
            yield (i,), constraint


def lent(v: Variables, most: int) -> tuple[list[Expression], list[cp_model.Constraint]]:
    """Return by layer what stays of its output because blocks that read it, or its own, are computed again.

    And the constraints that hold these expressions up.
    """
    if not v.again:
        return [0] * v.layers, []
    constraints: list[cp_model.Constraint] = []
    needs = [list(_needs(v, rows, constraints)) for rows in _by_layer(v)]
    prices = [Conditional(v, f"lent[{layer}]", most) for layer in range(v.layers)]
    for several in zip_longest(*needs):
        held = MemoryTables.outputs(v.tables, [one[0] if one else 0 for one in several])
        for layer, one in enumerate(several):
            if one:
                add_by_form(v, prices[layer], layer, held[:, layer], *one[1])
    own = [price.variable() for price in prices]
    return own, [*constraints, *(one for price in prices for one in price.constraints)]


def _by_layer(v: Variables) -> list[list[Reading]]:
    rows: list[list[Reading]] = [[] for _ in range(v.layers)]
    for one in Reading.all(v.tables.instance, CutSpace.of(v.tables.instance)):
        rows[one.producer].append(one)
    return rows


def _needs(
    v: Variables, rows: list[Reading], constraints: list[cp_model.Constraint]
) -> Iterator[tuple[int, Literals]]:
    """Yield how many bytes of a layer stay, and the literals that all hold where they do.

    A block that keeps its activations may count the tensor; the literal that it does can be true only then.
    """
    before: Literals = []
    for row in rows:
        if row.block != row.own:
            same = [v.together(row.producer, row.last), *before]
            yield row.again_bytes, [*same, v.again[row.last]]
            yield row.kept_bytes, [*same, v.again[row.producer], ~v.again[row.last]]
        if row.counts:
            # Blocks behind this one are in its stage, or the tensor is not: so is this one wherever it matters.
            counts = v.model.new_bool_var(f"counts[{row.producer},{row.block}]")
            constraints.append(v.model.add_implication(counts, ~v.again[row.last]))
            before.append(~counts)
