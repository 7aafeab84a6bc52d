"""HyPar (Song et al., HPCA 2019): data or model parallelism for each layer, with the least communication.

HyPar cuts an array of 2**H accelerators in two, H times. At each level it chooses a type for every layer, data
parallelism (form 0) or model parallelism (form 1), by a dynamic programme over the bytes that the halves exchange
(its Tables 1 and 2; :mod:`pipecut_literature.common.halves`), then halves what the types split. The total counts a
level as often as there are pairs of halves, ``com = com_h + 2 * com_n`` (its Algorithm 2). It sees neither
computing nor bandwidths.

A layer can get another type at every level, which a plan of pipecut, with one form a layer, cannot say. So the
plan here has the types with the least total of HyPar's own count among those that *keep one type a layer at all
levels*: costs of a layer and of an edge then add up over the levels, and the same dynamic programme is exact. What
is lost: mixed types (say, data parallelism between servers and model parallelism inside). The notes say what HyPar
counts for its own types level by level, which it chooses greedily from the top, and for the plan's.

A number of devices that is no power of two is seen as the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FormEdge, Layer, Split
from pipecut.solvers.search.stoppable import stoppable
from pipecut_literature.common import one_stage
from pipecut_literature.common.halves import LayerShare, moved_bytes, summed_bytes
from pipecut_literature.common.one_stage import BetweenCosts, InsideCosts, rounded

NAME = "hypar"

TYPES = (0, 1)
"""Data and model parallelism. A layer that may take neither takes what it may."""
HALF = Fraction(1, 2)


@stoppable(NAME)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return HyPar's plan with one type a layer, priced by the evaluator (proof FEASIBLE); UNKNOWN if stopped.

    Cost: levels + 1 runs of :func:`solvers.reference.algorithm_1.best_forms`.
    """
    deadline = begin(limits).deadline
    tables = one_stage.tables_of(instance, narrowed(instance))
    inside, between = uniform_costs(instance, deadline)
    forms = one_stage.least_forms(tables, inside, between)
    believed = one_stage.sum_of_costs(instance, forms, inside, between)
    types, moved = by_level(instance, tables, deadline)
    changed = sum(len(set(column)) > 1 for column in zip(*types, strict=True))
    notes = (
        f"HyPar counts {goal_amount(Goal.MEMORY, believed)} sent in a step with one type a layer,"
        f" {goal_amount(Goal.MEMORY, moved)} with a type a level",
        f"halves the devices {len(types)} times; the type of {changed} layers changes from level to level",
    )
    return one_stage.in_forms(NAME, instance, forms, notes)


def narrowed(instance: Instance) -> tuple[Layer, ...]:
    """Return the layers with HyPar's types only; those that may take neither keep their own."""
    return tuple(
        layer if layer.split is Split.FOLLOW else one_stage.prefer(layer, TYPES) for layer in instance.layers
    )


def levels_of(instance: Instance) -> int:
    """Return how often the devices are cut in two."""
    return (instance.devices - 1).bit_length()


def uniform_costs(instance: Instance, deadline: Deadline = NEVER) -> tuple[InsideCosts, BetweenCosts]:
    """Return the bytes that all pairs of halves exchange in a step where layers keep their type at all levels.

    By layer and form, and by form edge and forms; each is rounded up once.
    """
    depth, nothing = range(levels_of(instance)), Fraction(0)

    def share(layer: int, form: int, level: int) -> LayerShare:
        return _split(instance, layer, (form,) * level)

    def inside(layer: int, form: int) -> Fraction:
        return sum(
            (2**level * summed_bytes(instance, layer, form, share(layer, form, level)) for level in depth), nothing
        )

    def between(edge: FormEdge, source: int, form: int) -> Fraction:
        shares = [share(edge.consumer, form, level) for level in depth]
        return sum(
            (2**level * moved_bytes(instance, edge, source, form, shares[level], HALF) for level in depth), nothing
        )

    return rounded(instance, inside, between, deadline)


def by_level(
    instance: Instance, tables: Tables, deadline: Deadline = NEVER
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return HyPar's own answer: the types of all layers at each level from the top, and the bytes of all pairs.

    ``tables`` say which types a layer may take. At every level the best types of that level alone are taken.
    """
    types: list[tuple[int, ...]] = []
    total = 0
    for level in range(levels_of(instance)):
        shares = [_split(instance, at, [row[at] for row in types]) for at in range(len(instance.layers))]
        inside, between = _level_costs(instance, shares, deadline)
        chosen = one_stage.least_forms(tables, inside, between)
        total += 2**level * one_stage.sum_of_costs(instance, chosen, inside, between)
        types.append(tuple(0 if one is None else chosen[one] for one in instance.sources))
    return tuple(types), total


def _level_costs(
    instance: Instance, shares: list[LayerShare], deadline: Deadline
) -> tuple[InsideCosts, BetweenCosts]:
    """Return what one pair of halves exchanges at a level where it holds these shares of the layers."""

    def inside(layer: int, form: int) -> Fraction:
        return summed_bytes(instance, layer, form, shares[layer])

    def between(edge: FormEdge, source: int, form: int) -> Fraction:
        return moved_bytes(instance, edge, source, form, shares[edge.consumer], HALF)

    return rounded(instance, inside, between, deadline)


def _split(instance: Instance, layer: int, types: Sequence[int]) -> LayerShare:
    """Return what a device holds of a layer after levels with these types."""
    share = LayerShare()
    for form in types:
        share = share.split(instance.layers[layer].split, form, HALF)
    return share
