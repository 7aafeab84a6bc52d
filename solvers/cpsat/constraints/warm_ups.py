"""The order of the passes of a slot that chooses its warm-up: which pass stands behind which."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ortools.sat.python import cp_model

from solvers.cpsat.base.variables import Variables
from solvers.cpsat.constraints.passes import SlotPasses


def chosen_order(
    v: Variables, passes: SlotPasses, ends: tuple[list[cp_model.IntVar], list[cp_model.IntVar]], slot: int
) -> Iterator[cp_model.Constraint]:
    """Post the order of the passes of one slot, which end at ``ends``: forward and backward.

    With the warm-up w backward pass m stands behind forward pass m + w - 1, and forward pass m behind backward
    pass m - w. A slot with w or more has what w asks of backward passes, one with w or fewer what it asks of
    forward passes. No slot warms up longer than the one before it (``formulation.problem.plan.Plan.warm_ups``).
    """
    model, (forward, backward) = v.model, ends
    for (_, fewer), (many, longer) in itertools.pairwise(v.warm_ups(slot)):
        for literal in longer:
            yield from (model.add_implication(literal, one) for one in fewer)
            if slot + 1 < v.slots and many in v.longer[slot + 1]:
                yield model.add_implication(literal, v.longer[slot + 1][many])
    for row, own in ((forward, passes.forward[slot]), (backward, passes.backward[slot])):
        yield model.add(row[0] >= own)
        yield from (model.add(end >= before + own) for before, end in itertools.pairwise(row))
    for many, longer in v.warm_ups(slot):
        for before, end in zip(forward[many - 1 :], backward, strict=False):
            behind = model.add(end >= before + passes.backward[slot])
            behind.only_enforce_if(longer)
            yield behind
        more = [~v.longer[slot][many + 1]] if many + 1 in v.longer[slot] else []
        for before, end in zip(backward, forward[many:], strict=False):
            behind = model.add(end >= before + passes.forward[slot])
            behind.only_enforce_if(more)
            yield behind
