"""(7) ``memory``: every stage fits into its devices, however its layers are split.

Three counters run along the layers of a stage, like the clocks of time: what is held once (``fixed``: gradients,
optimiser state, and the stash of a stage that recomputes), once per version of the weights (``weights``) and once
per micro-batch in flight (``stash``, which begins with what the stage received); a fourth is the largest working
set so far. Slots are counted from the last stage, so versions and micro-batches in flight are constants of the
slot; the limit is linear:

    layer l in slot k:  fixed[l] + versions(k) * weights[l] + in_flight(k) * stash[l] + working[l] <= capacity

Where warm-ups are chosen there is one limit for each, which holds if the slot warms up so long.

Where stages choose blocks that are computed again, the fourth counter is the most that one run of layers needs at
once, and ``stash`` has of every layer what stays of its output for such blocks (``cpsat.constraints.blocks``).

Memory where stages choose blocks that are computed again: what runs need at once, and what stays for them.

A *run* is computed again at one time: a block, or the layers of a whole stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from ortools.sat.python import cp_model

from pipecut.formulation.costs.bulk.lent import Reading
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Times
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.layers import Split
from pipecut.solvers.cpsat import variables
from pipecut.solvers.cpsat.variables import Conditional, Expression, Family, Posted, Variables, price_by_form

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
                variables.add_by_form(v, prices[layer], layer, held[:, layer], *one[1])
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


def post_memory(v: Variables) -> Posted:
    """(7) Where memory is limited, no layer brings its stage above the capacity of its devices."""
    held = MemoryTables.of(v.tables)
    capacity = _capacity(v, held)
    if capacity is None:
        return
    most, again = max(capacity), computed_again(held)
    parts = (held.once - again, held.by_version, held.by_micro_batch, held.working_set)
    readings: list[list[cp_model.IntVar]] = []
    owns: list[Expression] = []
    for name, part in zip(("fixed", "weights", "stash", "working"), parts, strict=True):
        copies = _copies(held, name)
        copied = sum(int(copy.max()) for copy in copies.values())
        ever = min(most, int(part.max(axis=(0, 2)).sum() + held.received.max() * (name == "stash")) + copied)
        row = [v.model.new_int_var(0, most if v.again else ever, f"{name}[{i}]") for i in range(v.layers)]
        readings.append(row)
        stays, constraints = lent(v, most) if name == "stash" else ([0] * v.layers, [])
        yield from (((), one) for one in constraints)
        owns = []
        for i in range(v.layers):
            own, constraints = _own(v, part, i, most)
            for (user, layer), copy in copies.items():
                if layer == i:
                    more = price_by_form(v, f"{name} of copy", i, copy, most, ~v.together(user, i))
                    own, constraints = own + more.variable(), [*constraints, *more.constraints]
            yield from (((i,), one) for one in constraints)
            owns.append(own + stays[i])
            if not v.again or name != "working":
                yield from _counted(v, held, name, row, owns)
    if v.again:
        rerun = [_own(v, again, i, most) for i in range(v.layers)]
        yield from (((), one) for _, constraints in rerun for one in constraints)
        yield from post_at_work(v, [own for own, _ in rerun], owns, readings[-1], most)
    yield from _limits(v, held, capacity, readings)


def _counted(
    v: Variables, held: MemoryTables, name: str, row: list[cp_model.IntVar], owns: list[Expression]
) -> Posted:
    """Let a counter go on with the last of these layers, or begin with it."""
    i = len(owns) - 1
    yield (i,), v.model.add(row[i] >= owns[i])
    if name == "stash":
        arrived = sum(int(held.received[c, i]) * literal for c, literal in enumerate(v.layer_kind[i]))
        begins = v.model.add(row[i] >= owns[i] + arrived)
        begins.only_enforce_if(v.cut[i])
        yield (i,), begins
    if i > 0:
        added = row[i - 1] if name == "working" else row[i - 1] + owns[i]
        goes_on = v.model.add(row[i] >= added)
        goes_on.only_enforce_if(~v.cut[i])
        yield (i,), goes_on


def _copies(held: MemoryTables, name: str) -> dict[tuple[int, int], Times]:
    """Return what copies of weights add to a counter."""
    parts = {"fixed": "once", "weights": "by_version", "working": "working_set"}
    return {ends: getattr(copy, parts[name]) for ends, copy in held.copies.items() if name in parts}


def _capacity(v: Variables, held: MemoryTables) -> list[int] | None:
    """Return what a device of each kind may hold; None if there is no limit at all."""
    most = v.thresholds.get(Goal.MEMORY)
    limited = v.tables.instance.constraints.memory and (bool(v.again) or not _never_binds(v, held))
    if most is None and not limited:
        return None
    if not v.tables.instance.constraints.memory:
        return [most or 0] * len(held.capacity)
    return list(held.capacity) if most is None else [min(most, size) for size in held.capacity]


def _never_binds(v: Variables, held: MemoryTables) -> bool:
    """Tell whether the whole model fits into one device of any kind in any slot, in its dearest forms."""
    parts = (held.once, held.by_version, held.by_micro_batch)
    once, weights, stash = (part.max(axis=2).sum(axis=1) for part in parts)
    rest, received = held.working_set.max(axis=(1, 2)), held.received.max(axis=1)
    for copy in held.copies.values():
        once, weights = once + copy.once.max(axis=1), weights + copy.by_version.max(axis=1)
        rest = rest + copy.working_set.max(axis=1)
    chosen = v.tables.instance.training.micro_batches if v.longer else 0
    return all(
        int(once[c] + one.versions * weights[c] + max(chosen, one.in_flight) * (stash[c] + received[c]) + rest[c])
        <= size
        for c, size in enumerate(held.capacity)
        for one in map(held.keeps, range(v.slots))
    )


def _limits(v: Variables, held: MemoryTables, sizes: list[int], readings: list[list[cp_model.IntVar]]) -> Posted:
    fixed, weights, stash, working = readings
    keeps = [held.keeps(k) for k in range(v.slots)]
    for i in range(v.layers):
        capacity = sum(sizes[c] * literal for c, literal in enumerate(v.layer_kind[i]))
        for k in range(v.slots):
            here = [v.starts[k][i], *([~v.starts[k - 1][i]] if k > 0 else [])]
            for many, only in v.warm_ups(k) if v.longer else [(keeps[k].in_flight, [])]:
                needed = fixed[i] + keeps[k].versions * weights[i] + many * stash[i] + working[i]
                limit = v.model.add(needed <= capacity)
                limit.only_enforce_if([*here, *only])
                yield (i, k, many), limit


def _own(v: Variables, part: Times, layer: int, most: int) -> tuple[Expression, list[cp_model.Constraint]]:
    """Return what one layer adds to a counter, in bytes, and the constraints behind the expression."""
    instance = v.tables.instance
    if instance.layers[layer].split is not Split.FOLLOW:
        return sum(int(part[c, layer, t]) * literal for (c, t), literal in v.state[layer].items()), []
    least = part[:, layer].min(axis=1)
    own = sum(int(least[c]) * literal for c, literal in enumerate(v.layer_kind[layer]))
    extra = price_by_form(v, "extra", layer, part[:, layer] - least[:, None], most)
    return own + extra.variable(), extra.constraints


FAMILY = Family(7, "memory", post_memory)
