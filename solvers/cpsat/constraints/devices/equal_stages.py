"""(17) ``equal_stages``: one number of devices and replicas for all slots."""

from __future__ import annotations

from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_equal_stages(v: Variables) -> Posted:
    """(17) ``runs[k][g] => size[devices(g), replicas(g)]`` for all slots k and groups g; one size is chosen."""
    if not v.tables.instance.constraints.equal_stages:
        return
    size_of = [(group.devices, group.replicas) for group in v.tables.groups]
    chosen = {size: v.model.new_bool_var(f"size{list(size)}") for size in sorted(set(size_of))}
    yield (v.slots,), v.model.add_exactly_one(chosen.values())
    for k in range(v.slots):
        for g, size in enumerate(size_of):
            yield (k, g), v.model.add_implication(v.runs[k][g], chosen[size])


FAMILY = Family(17, "equal_stages", post_equal_stages)
