"""(8) ``stages``: how many cut points there are, and which slots are used by that many stages."""

from __future__ import annotations

from ortools.sat.python import cp_model

from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_stages(v: Variables) -> Posted:
    """(8) ``at_least - 1 <= sum_l cut[l] <= at_most - 1``; slot ``at_least - 1`` is used, ``at_most`` is not.

    The second half follows from the first. It spares the search from counting: that more stages than slots do not
    fit is a pigeonhole to it.
    """
    demands = v.tables.instance.demands
    if demands.stages_at_least is not None:
        yield (0,), v.model.add(sum(v.cut) >= demands.stages_at_least - 1)
        yield (0,), _post_used(v, demands.stages_at_least - 1, used=True)
    if demands.stages_at_most is not None:
        yield (1,), v.model.add(sum(v.cut) <= demands.stages_at_most - 1)
        yield (1,), _post_used(v, demands.stages_at_most, used=False)


def _post_used(v: Variables, slot: int, *, used: bool) -> cp_model.Constraint:
    if slot == 0 or slot >= v.slots:
        return v.model.add_bool_or([] if (slot == 0) != used else [v.model.new_constant(1)])
    first = v.starts[slot - 1][0]
    return v.model.add_bool_or([~first if used else first])


FAMILY = Family(8, "stages", post_stages)
