"""(13) ``devices_per_stage``: the groups that slots may run on."""

from __future__ import annotations

import itertools

from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_devices_per_stage(v: Variables) -> Posted:
    """(13) No slot runs on a group with another number of devices."""
    allowed = v.tables.instance.demands.devices_per_stage
    others = [g for g, group in enumerate(v.tables.groups) if allowed and group.devices not in allowed]
    for k, g in itertools.product(range(v.slots), others):
        yield (k, g), v.model.add_bool_or([~v.runs[k][g]])


FAMILY = Family(13, "devices_per_stage", post_devices_per_stage)
