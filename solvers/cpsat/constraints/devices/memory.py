"""(7) ``memory``: every stage fits into its devices, however its layers are split.

Three counters run along the layers of a stage, like the clocks of time: what is held once (``fixed``: gradients,
optimiser state, and the stash of a stage that recomputes), once per version of the weights (``weights``) and once
per micro-batch in flight (``stash``, which begins with what the stage received); a fourth is the largest working
set so far. Slots are counted from the last stage, so versions and micro-batches in flight are constants of the
slot; the limit is linear:

    layer l in slot k:  fixed[l] + versions(k) * weights[l] + in_flight(k) * stash[l] + working[l] <= capacity
"""

from __future__ import annotations

from ortools.sat.python import cp_model

from formulation.costs.memory_tables import MemoryTables, memory_tables
from formulation.costs.tables import Times
from formulation.problem.layers import Split
from formulation.problem.options import Goal
from solvers.cpsat.base.conditional import Conditional
from solvers.cpsat.base.families import Family, Posted
from solvers.cpsat.base.variables import Expression, Variables

__all__: list[str] = []


def post_memory(v: Variables) -> Posted:
    """(7) Where memory is limited, no layer brings its stage above the capacity of its devices."""
    held = memory_tables(v.tables)
    capacity = _capacity(v, held)
    if capacity is None:
        return
    most = max(capacity)
    parts = (held.once, held.by_version, held.by_micro_batch, held.working_set)
    readings: list[list[cp_model.IntVar]] = []
    for name, part in zip(("fixed", "weights", "stash", "working"), parts, strict=True):
        ever = min(most, int(part.max(axis=(0, 2)).sum() + held.received.max() * (name == "stash")))
        row = [v.model.new_int_var(0, ever, f"{name}[{i}]") for i in range(v.layers)]
        readings.append(row)
        for i in range(v.layers):
            own, constraints = _own(v, part, i, most)
            yield from (((i,), one) for one in constraints)
            yield (i,), v.model.add(row[i] >= own)
            if name == "stash":
                arrived = sum(int(held.received[c, i]) * literal for c, literal in enumerate(v.layer_kind[i]))
                begins = v.model.add(row[i] >= own + arrived)
                begins.only_enforce_if(v.cut[i])
                yield (i,), begins
            if i > 0:
                added = row[i - 1] if name == "working" else row[i - 1] + own
                goes_on = v.model.add(row[i] >= added)
                goes_on.only_enforce_if(~v.cut[i])
                yield (i,), goes_on
    yield from _limits(v, held, capacity, readings)


def _capacity(v: Variables, held: MemoryTables) -> list[int] | None:
    """Return what a device of each kind may hold; None if there is no limit at all."""
    most = v.thresholds.get(Goal.MEMORY)
    if most is None and (not v.tables.instance.constraints.memory or _never_binds(held, v.slots)):
        return None
    if not v.tables.instance.constraints.memory:
        return [most or 0] * len(held.capacity)
    return list(held.capacity) if most is None else [min(most, size) for size in held.capacity]


def _never_binds(held: MemoryTables, slots: int) -> bool:
    """Tell whether the whole model fits into one device of any kind in any slot, in its dearest forms."""
    parts = (held.once, held.by_version, held.by_micro_batch)
    once, weights, stash = (part.max(axis=2).sum(axis=1) for part in parts)
    rest, received = held.working_set.max(axis=(1, 2)), held.received.max(axis=1)
    return all(
        int(once[c] + keeps.versions * weights[c] + keeps.in_flight * (stash[c] + received[c]) + rest[c]) <= size
        for c, size in enumerate(held.capacity)
        for keeps in map(held.keeps, range(slots))
    )


def _limits(v: Variables, held: MemoryTables, sizes: list[int], readings: list[list[cp_model.IntVar]]) -> Posted:
    fixed, weights, stash, working = readings
    keeps = [held.keeps(k) for k in range(v.slots)]
    for i in range(v.layers):
        capacity = sum(sizes[c] * literal for c, literal in enumerate(v.layer_kind[i]))
        for k in range(v.slots):
            needed = fixed[i] + keeps[k].versions * weights[i] + keeps[k].in_flight * stash[i] + working[i]
            limit = v.model.add(needed <= capacity)
            limit.only_enforce_if([v.starts[k][i], *([~v.starts[k - 1][i]] if k > 0 else [])])
            yield (i, k), limit


def _own(v: Variables, part: Times, layer: int, most: int) -> tuple[Expression, list[cp_model.Constraint]]:
    """Return what one layer adds to a counter, in bytes, and the constraints behind the expression."""
    instance = v.tables.instance
    if instance.layers[layer].split is not Split.FOLLOW:
        return sum(int(part[c, layer, t]) * literal for (c, t), literal in v.state[layer].items()), []
    kinds = v.layer_kind[layer]
    source = instance.sources[layer]
    if source is None:
        return sum(int(part[c, layer, 0]) * literal for c, literal in enumerate(kinds)), []
    least = part[:, layer].min(axis=1)
    same = v.together(source, layer)
    extra = Conditional(v, f"extra[{layer}]", most)
    for (c, t), literal in v.state[source].items():
        extra.at_least(int(part[c, layer, t] - least[c]), [literal, same])
    for c, literal in enumerate(kinds):
        extra.at_least(int(part[c, layer, 0] - least[c]), [literal, ~same])
    return sum(int(least[c]) * literal for c, literal in enumerate(kinds)) + extra.variable(), extra.constraints


FAMILY = Family(7, "memory", post_memory)
