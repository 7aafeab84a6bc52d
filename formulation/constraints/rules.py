"""The rules that a plan must keep: the specification side of every constraint.

Each constraint has a number and five faces: a formula (docs/formulation.md), a family that posts it to the
CP-SAT model (``solvers.cpsat.base.families``), the rule here, a witness instance, and the message of the
violation. A test compares the sets of names, so nothing is posted and never checked, or checked and never posted.
"""

from __future__ import annotations

from collections.abc import Iterator

from formulation.constraints.demand_rules import DEMAND_RULES
from formulation.constraints.violation import Rule, Violation
from formulation.costs.forms import forms_on
from formulation.costs.goals import UNITS, goal_value
from formulation.costs.memory import capacity_bytes, stage_memory
from formulation.costs.prices import stage_costs
from formulation.problem.amounts import goal_amount
from formulation.problem.groups import Group, line_group
from formulation.problem.instance import Instance
from formulation.problem.layers import FORMS, Split
from formulation.problem.options import Placement, Recompute
from formulation.problem.plan import Plan

__all__ = ["RULES", "Rule", "Violation", "check_mode", "structure_violations"]


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

    No stage stretches over too many servers.
    """
    most = instance.constraints.max_servers
    used = [0] * len(instance.servers)
    for index, stage in enumerate(plan.stages):
        if stage.group.devices < 1 or any(count < 1 for _, count in stage.group.counts):
            message = f"stage {index} takes {stage.group.devices} devices, expected 1 or more"
            yield Violation("devices", f"stage {index}", stage.group.devices, 1, "devices", message)
        if most is not None and len(stage.group.counts) > most:
            message = f"stage {index} stretches over {len(stage.group.counts)} servers, expected at most {most}"
            yield Violation("devices", f"stage {index}", len(stage.group.counts), most, "servers", message)
        yield from check_mode(instance, index, stage.group)
        for server, count in stage.group.counts:
            used[server] += count
    for server, count in zip(instance.servers, used, strict=True):
        if count > server.devices:
            message = f"stages take {count} devices of server {server.name}, which has {server.devices}"
            yield Violation("devices", server.name, count, server.devices, "devices", message)


def check_mode(instance: Instance, index: int, group: Group) -> Iterator[Violation]:
    """Replicas share the devices evenly, their degree is allowed, and recomputing is, too, or even asked for."""
    allowed = instance.constraints.tensor_parallel_degrees or (group.devices,)
    if (
        group.replicas * group.tensor_parallel_degree != group.devices
        or group.tensor_parallel_degree not in allowed
    ):
        listed = ", ".join(map(str, allowed))
        message = (
            f"stage {index} has {group.replicas} replicas on {group.devices} devices,"
            f" expected a tensor-parallel degree of {listed}"
        )
        yield Violation("devices", f"stage {index}", group.replicas, group.devices, "replicas", message)
    asked = instance.constraints.recompute
    if asked is (Recompute.NEVER if group.recompute else Recompute.ALWAYS):
        does = "recomputes" if group.recompute else "keeps all activations"
        message = f"stage {index} {does}, constraints.recompute is '{asked}'"
        yield Violation("devices", f"stage {index}", int(group.recompute), int(not group.recompute), "", message)


def check_line(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(3) On the line devices stand in server order; each stage takes the next ones; idle ones come last."""
    if instance.constraints.placement is not Placement.LINE:
        return
    position = 0
    for index, stage in enumerate(plan.stages):
        expected = line_group(instance, position, stage.group.devices)
        if expected.counts != stage.group.counts:
            message = (
                f"stage {index} runs on {_devices(instance, stage.group.counts)}, but the next "
                f"{stage.group.devices} of the line are {_devices(instance, expected.counts)}"
            )
            found = sum(min(dict(expected.counts).get(server, 0), count) for server, count in stage.group.counts)
            yield Violation("line", f"stage {index}", found, stage.group.devices, "devices of the line", message)
        position += stage.group.devices


def check_forms(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(4) Every layer takes one of its forms: 0 if it has no form of its own or shares no work."""
    for index, stage in enumerate(plan.stages):
        degree = stage.group.tensor_parallel_degree
        for layer, form in zip(stage.span.layers, stage.forms, strict=False):
            row = instance.layers[layer]
            choices = FORMS[:1] if row.split is Split.FOLLOW else forms_on(row.allowed_forms, degree)
            if form not in choices:
                listed = ", ".join(map(str, choices))
                message = (
                    f"stage {index}, layer {row.name}: form {form}, expected {listed}"
                    f" ({row.split} layer on {degree} devices)"
                )
                yield Violation("forms", f"stage {index}: {row.name}", form, choices[-1], "form", message)


def check_memory(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(7) Every stage fits into the memory of the smallest device of its group, where memory is limited."""
    if not instance.constraints.memory:
        return
    for index, stage in enumerate(plan.stages):
        needed, capacity = stage_memory(instance, plan, index).total, capacity_bytes(instance, stage.group)
        if needed > capacity:
            over = (needed - capacity) / (1 << 30)
            message = (
                f"stage {index} needs {needed} bytes on each of {_devices(instance, stage.group.counts)}, which"
                f" have {capacity}: {over:.2f} GiB too much"
            )
            yield Violation("memory", f"stage {index}", needed, capacity, "bytes", message)


def check_at_most(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(15) What the plan is judged by keeps the user's limits: a required throughput, a deadline, a budget."""
    limits = instance.constraints.at_most
    stages = stage_costs(instance, plan) if limits else ()
    for limit in limits:
        value, unit = goal_value(limit.goal, instance, plan, stages), UNITS[limit.goal]
        if value > limit.at_most:
            found, most = goal_amount(limit.goal, value), goal_amount(limit.goal, limit.at_most)
            message = f"constraints.at_most.{limit.goal}: the plan has {found}, expected at most {most}"
            yield Violation("at_most", "plan", value, limit.at_most, unit, message)


RULES: tuple[Rule, ...] = (
    Rule(1, "cover", check_cover),
    Rule(2, "devices", check_devices),
    Rule(3, "line", check_line),
    Rule(4, "forms", check_forms),
    Rule(7, "memory", check_memory),
    *DEMAND_RULES,
    Rule(15, "at_most", check_at_most),
)


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


def _devices(instance: Instance, counts: tuple[tuple[int, int], ...]) -> str:
    return " + ".join(f"{count} x {instance.servers[server].name}" for server, count in counts) or "none"
