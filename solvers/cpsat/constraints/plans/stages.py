"""(8) ``stages``: how many cut points there are."""

from __future__ import annotations

from solvers.cpsat.base.families import Family, Posted
from solvers.cpsat.base.variables import Variables

__all__: list[str] = []


def post_stages(v: Variables) -> Posted:
    """(8) ``at_least - 1 <= sum_l cut[l] <= at_most - 1``."""
    demands = v.tables.instance.demands
    if demands.stages_at_least is not None:
        yield (0,), v.model.add(sum(v.cut) >= demands.stages_at_least - 1)
    if demands.stages_at_most is not None:
        yield (1,), v.model.add(sum(v.cut) <= demands.stages_at_most - 1)


FAMILY = Family(8, "stages", post_stages)
