"""A plan of one variant as a plan of another: servers are found again by their names."""

from __future__ import annotations

from dataclasses import replace

from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan


def carried(plan: Plan, holder: Instance, variant: Instance) -> tuple[Instance, Plan] | None:
    """Return a variant, with what it leaves open chosen as in the holder of a plan, and the plan on its servers.

    None where a server of the plan is not there, or what the holder chose is no choice here. Rules are not looked
    at.
    """
    at = {server.name: index for index, server in enumerate(variant.servers)}
    found = {index: at[server.name] for index, server in enumerate(holder.servers) if server.name in at}
    used = {server for stage in plan.stages for server, _ in stage.group.counts}
    said = {name: getattr(holder.training, name) for name in variant.training.left_open}
    training = variant.training.chosen(said)
    if training is None or not used <= set(found):
        return None
    try:
        closed = training.closed()
        here = replace(holder, cluster=variant.cluster, training=closed, constraints=variant.constraints)
    except ValueError:
        return None
    stages = []
    for stage in plan.stages:
        counts = sorted((found[server], count) for server, count in stage.group.counts)
        stages.append(replace(stage, group=Group(tuple(counts), stage.group.mode)))
    return here, Plan(tuple(stages))
