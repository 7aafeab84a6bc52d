"""(3) ``line``: where the group of a slot stands on the line of devices."""

from __future__ import annotations

from pipecut.formulation.problem.constraints import Placement
from pipecut.formulation.problem.groups import line_places
from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_line(v: Variables) -> Posted:
    """(3) On the line the group of a slot starts where the group of the stage before it ended; the first at 0.

    A conservation of flow over (slot, device position).
    """
    if v.tables.instance.constraints.placement is not Placement.LINE:
        return
    ends = line_places(v.tables.instance)
    for k in range(v.slots):
        for position in range(v.tables.instance.devices):
            here = [v.runs[k][g] for g, (first, _) in enumerate(ends) if first == position]
            if position > 0:
                front = v.runs[k + 1] if k + 1 < v.slots else []
                before = [literal for literal, (_, stop) in zip(front, ends, strict=False) if stop == position]
                yield (k, position), v.model.add(sum(here) == sum(before))
            else:
                for literal in here:
                    yield (k, position), v.model.add_implication(literal, v.starts[k][0])


FAMILY = Family(3, "line", post_line)
