"""The rules that a plan must keep: the specification side of every constraint.

Each constraint has a number and five faces: a formula (docs/formulation.md), a family that posts it to the
CP-SAT model (``solvers.cpsat.base.families``), the rule here, a witness instance, and the message of the
violation. A test compares the sets of names, so nothing is posted and never checked, or checked and never posted.
"""

from __future__ import annotations

from collections.abc import Iterator

from formulation.constraints.violation import Rule, Violation
from formulation.problem.constraints import Constraint, kinds
from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.layers import FORMS
from formulation.problem.plan import Plan

__all__ = ["RULES", "Violation", "check_mode", "structure_violations"]


def check_cover(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(1) Every layer belongs to exactly one stage; stages follow one another and none is empty."""
    expected, total = 0, len(instance.layers)
    for index, stage in enumerate(plan.stages):
        first, stop = stage.span.first, stage.span.stop
        if first != expected:
            message = f"stage {index} starts at layer {first}, expected layer {expected}"
            yield Violation("cover", f"stage {index}", first, expected, "layer", message)
        if not first < stop <= total:
            message = f"stage {index} holds layers {first} to {stop}, expected 1 or more of {total} layers"
            yield Violation("cover", f"stage {index}", stop, total, "layer", message)
        if len(stage.forms) != len(stage.span):
            message = f"stage {index} has {len(stage.forms)} forms for {len(stage.span)} layers"
            yield Violation("cover", f"stage {index}", len(stage.forms), len(stage.span), "forms", message)
        expected = stop
    if expected != total:
        message = f"the last stage ends before layer {expected}, expected the end, {total}"
        yield Violation(
            "cover", f"stage {len(plan) - 1}" if len(plan) else "plan", expected, total, "layer", message
        )


def check_devices(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(2) Every stage has devices and shares its work in an allowed way; no server gives more than it has.

    No stage works in a way that a constraint forbids.
    """
    used = [0] * len(instance.servers)
    for index, stage in enumerate(plan.stages):
        if stage.group.devices < 1 or any(count < 1 for _, count in stage.group.counts):
            message = f"stage {index} takes {stage.group.devices} devices, expected 1 or more"
            yield Violation("devices", f"stage {index}", stage.group.devices, 1, "devices", message)
        yield from check_mode(instance, index, stage.group)
        for server, count in stage.group.counts:
            used[server] += count
    for server, count in zip(instance.servers, used, strict=True):
        if count > server.devices:
            message = f"stages take {count} devices of server {server.name}, which has {server.devices}"
            yield Violation("devices", server.name, count, server.devices, "devices", message)


def check_mode(instance: Instance, index: int, group: Group) -> Iterator[Violation]:
    """Yield what constraints forbid of the devices of one stage: so many servers, such replicas, and so on."""
    for kind in OF_STAGES:
        yield from instance.demands.of(kind).check_stage(instance, index, group)


OF_STAGES = tuple(kind for kind in kinds() if kind.check_stage is not Constraint.check_stage)
"""Constraints that are parts of rule 2."""


def _rule(kind: type[Constraint]) -> Rule:
    return Rule(kind.number, kind.rule, lambda instance, plan: instance.demands.of(kind).check(instance, plan))


RULES: tuple[Rule, ...] = (
    Rule(1, "cover", check_cover),
    Rule(2, "devices", check_devices),
    *(_rule(kind) for kind in kinds() if kind.number),
)
"""What every plan keeps, and then the rules of constraints, by number."""


def structure_violations(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """Yield what makes a plan no plan at all, so that it has no price: layers missing, groups that cannot be."""
    yield from check_cover(instance, plan)
    for index, stage in enumerate(plan.stages):
        group, where = stage.group, f"stage {index}"
        known = all(0 <= server < len(instance.servers) and count > 0 for server, count in group.counts)
        if not known or group.devices < 1 or any(form not in FORMS for form in stage.forms):
            message = f"{where}: unknown server, no device, or a form other than 0, 1, 2"
            yield Violation("devices", where, group.devices, 1, "devices", message)
        elif group.devices > instance.devices:
            # A price would write all of them out, however many a plan file or a program asks for.
            message = f"{where} takes {group.devices} devices, the whole cluster has {instance.devices}"
            yield Violation("devices", where, group.devices, instance.devices, "devices", message)
        elif group.replicas < 1 or group.devices % group.replicas:
            message = f"{where}: {group.devices} devices cannot hold {group.replicas} equal replicas"
            yield Violation("devices", where, group.replicas, group.devices, "replicas", message)
