"""What a family is, and the two that every plan is made of. Each is a generator of (index, constraint).

Numbers and names are those of ``formulation.constraints.rules``; docs/formulation.md has the formulas. The family
of a constraint is the file of the same name below ``solvers/cpsat/constraints/``; what plans may cost is in
``solvers.cpsat.constraints.clocks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ortools.sat.python import cp_model

from solvers.cpsat.base.variables import Variables

Posted = Iterator[tuple[tuple[int, ...], cp_model.Constraint]]


@dataclass(frozen=True, slots=True)
class Family:
    """A named, numbered group of constraints; ``post`` adds them to the model and yields each with its index."""

    number: int
    name: str
    post: Callable[[Variables], Posted]


def post_cover(v: Variables) -> Posted:
    """(1) Cut points decrease strictly from slot to slot until layer 0, and each layer lies in one slot.

    ``starts[k][i] => starts[k][i+1]``;  ``starts[k-1][i+1] => starts[k][i]``;  the first used slot starts at 0;
    ``cut[l] = sum_k (starts[k][l] - starts[k][l-1])``.
    """
    model = v.model
    for k in range(v.slots):
        for i in range(v.layers - 2):
            yield (k, i), model.add_implication(v.starts[k][i], v.starts[k][i + 1])
        if k > 0:
            for i in range(v.layers - 1):
                yield (k, i), model.add_implication(v.starts[k - 1][i + 1], v.starts[k][i])
    yield (v.slots,), model.add(v.starts[v.slots - 1][0] == 1)
    for i in range(1, v.layers):
        yield (i,), model.add(v.cut[i] == sum(v.starts[k][i] - v.starts[k][i - 1] for k in range(v.slots)))


def post_devices(v: Variables) -> Posted:
    """(2) A used slot runs on exactly one group, an unused one on none; servers give what they have.

    The group fixes the kind of the slot and the servers that it touches.
    """
    groups, instance = v.tables.groups, v.tables.instance
    members: list[list[int]] = [[] for _ in v.tables.kinds]
    for group, kind in enumerate(v.tables.kind_of):
        members[kind].append(group)
    on = [
        [(g, dict(group.counts).get(s, 0)) for g, group in enumerate(groups)] for s in range(len(instance.servers))
    ]
    for k in range(v.slots):
        yield (k,), v.model.add_at_most_one(v.runs[k])
        yield (k,), v.model.add(sum(v.runs[k]) == v.used(k))
        for c, same in enumerate(members):
            yield (k, c), v.model.add(v.kind[k][c] == sum(v.runs[k][g] for g in same))
        for s, counts in enumerate(on):
            yield (k, s), v.model.add(v.touches[k][s] == sum(v.runs[k][g] for g, count in counts if count))
    for s, counts in enumerate(on):
        taken = sum(count * v.runs[k][g] for k in range(v.slots) for g, count in counts if count)
        yield (s,), v.model.add(taken <= instance.servers[s].devices)


PLAN_FAMILIES: tuple[Family, ...] = (
    Family(1, "cover", post_cover),
    Family(2, "devices", post_devices),
)
