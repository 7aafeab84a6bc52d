"""(17) ``equal_stages``: one number of devices and replicas for all slots, or one mode."""

from __future__ import annotations

from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.modes import in_common
from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_equal_stages(v: Variables) -> Posted:
    """(17) ``runs[k][g] => size[devices(g), replicas(g)]`` for all slots k and groups g; one size is chosen.

    With ``one_mode`` that is ``size[devices(g), mode(g)]``, and ``again[l] = every`` for blocks that may be.
    """
    asked = v.tables.instance.constraints
    if not asked.equal_stages:
        return
    size_of = [(group.devices, in_common(asked, group.mode)) for group in v.tables.groups]
    chosen = {size: v.model.new_bool_var(f"size[{at}]") for at, size in enumerate(dict.fromkeys(size_of))}
    yield (v.slots,), v.model.add_exactly_one(chosen.values())
    for k in range(v.slots):
        for g, size in enumerate(size_of):
            yield (k, g), v.model.add_implication(v.runs[k][g], chosen[size])
    if asked.one_mode and v.again:
        space, every = CutSpace.of(v.tables.instance), v.model.new_bool_var("every")
        for first, ways in zip(space.places, space.again(v.tables.instance), strict=False):
            if len(ways) > 1:
                yield (v.slots + first,), v.model.add(v.again[first] == every)


FAMILY = Family(17, "equal_stages", post_equal_stages)
