"""Stages put on other devices: what the cuts, the devices and the idle devices of a plan are asked with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.modes import modes
from formulation.problem.plan import Plan, Stage


def put(plan: Plan, index: int, stage: Stage) -> Plan:
    """Return the plan with another stage in the place of one."""
    return Plan((*plan.stages[:index], stage, *plan.stages[index + 1 :]))


def idle_devices(instance: Instance, plan: Plan) -> dict[int, int]:
    """Return by server how many of its devices no stage has, of servers that have some."""
    left = {at: server.devices for at, server in enumerate(instance.servers)}
    for stage in plan.stages:
        for server, count in stage.group.counts:
            left[server] -= count
    return {server: count for server, count in left.items() if count > 0}


def regrouped(instance: Instance, stage: Stage, counts: Mapping[int, int]) -> Iterator[tuple[str, Stage]]:
    """Yield a stage on these devices in every mode that they may have, with words for the mode.

    Layers keep their forms, but where replicas are not split. Nothing where no mode is allowed.
    """
    held = tuple(sorted((server, count) for server, count in counts.items() if count > 0))
    devices = sum(count for _, count in held)
    for mode in modes(instance, devices) if devices else ():
        words = mode.in_words(devices)
        yield f" ({words})" if words else "", stage.on(Group(held, mode))


def laid(instance: Instance, plan: Plan) -> Plan:
    """Return a plan with as many devices for every stage, one stage behind the other along the line.

    Devices of stages behind the end of the line are left as they are: the rules say what is wrong with them.
    """
    stages: list[Stage] = []
    first = 0
    for stage in plan.stages:
        devices = stage.group.devices
        group = Group.on_line(instance, first, devices, stage.group.mode)
        stages.append(replace(stage, group=group if group.devices == devices else stage.group))
        first += devices
    return Plan(tuple(stages))
