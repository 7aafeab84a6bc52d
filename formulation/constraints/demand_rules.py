"""The rules behind a user's demands (``formulation.problem.demands``): who breaks which, with both numbers.

Each entry of a demand is checked on its own, so that a plan that breaks two pins breaks two rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from formulation.constraints.violation import Rule, Violation
from formulation.problem.demands import possible_cuts
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan

__all__ = ["DEMAND_RULES", "own_rule_name"]


def own_rule_name(name: str) -> str:
    """Return what the violations of a user's own constraint are filed under."""
    return f"own:{name}"


def check_stages(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(8) The number of stages lies within its bounds."""
    demands, stages = instance.demands, len(plan)
    if stages < demands.stages_at_least:
        message = f"the plan has {stages} stages, constraints.stages wants at least {demands.stages_at_least}"
        yield Violation("stages", "plan", stages, demands.stages_at_least, "stages", message)
    if demands.stages_at_most is not None and stages > demands.stages_at_most:
        message = f"the plan has {stages} stages, constraints.stages wants at most {demands.stages_at_most}"
        yield Violation("stages", "plan", stages, demands.stages_at_most, "stages", message)


def check_pin(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(9) Pinned layers lie in their stage, or in stages on devices of their servers only."""
    for at, pin in enumerate(instance.demands.pins):
        for index, stage in enumerate(plan.stages):
            inside = [layer for layer in pin.layers if layer in stage.span]
            if not inside:
                continue
            where, what = (
                f"stage {index}",
                f"constraints.pin[{at}]: stage {index} holds {_names(instance, inside)}",
            )
            if pin.stage is not None and index != _from_front(pin.stage, len(plan)):
                message = f"{what}, which belong in stage {pin.stage}" + (
                    f" of {len(plan)}" if pin.stage < 0 else ""
                )
                yield Violation("pin", where, index, _from_front(pin.stage, len(plan)), "stage", message)
            if pin.servers is not None:
                strays = [(server, count) for server, count in stage.group.counts if server not in pin.servers]
                if strays:
                    devices = sum(count for _, count in strays)
                    taken = " + ".join(f"{count} x {instance.servers[server].name}" for server, count in strays)
                    kept = ", ".join(instance.servers[server].name for server in pin.servers)
                    message = f"{what} and runs on {taken}, expected devices of {kept} only"
                    yield Violation("pin", where, devices, 0, "devices elsewhere", message)


def check_together(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(10) Layers that belong together share a stage."""
    for at, layers in enumerate(instance.demands.together):
        holders = [index for index, stage in enumerate(plan.stages) if any(one in stage.span for one in layers)]
        if len(holders) > 1:
            listed = ", ".join(map(str, holders))
            message = f"constraints.together[{at}]: its layers lie in {len(holders)} stages ({listed}), expected 1"
            yield Violation("together", f"stage {holders[1]}", len(holders), 1, "stages", message)


def check_apart(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(11) No stage holds layers of two sets that are to be apart."""
    for at, sets in enumerate(instance.demands.apart):
        for index, stage in enumerate(plan.stages):
            inside = [[layer for layer in layers if layer in stage.span] for layers in sets]
            met = [layers for layers in inside if layers]
            if len(met) > 1:
                both = " with ".join(_names(instance, layers) for layers in met)
                message = f"constraints.apart[{at}]: stage {index} holds {both}, which are to be apart"
                yield Violation("apart", f"stage {index}", len(met), 1, "sets of layers", message)


def check_no_cut(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(12) No stage but the first starts at a layer where the user or the model lets nothing be cut."""
    of_model = set(instance.model.closed())
    for index, stage in enumerate(plan.stages):
        first = stage.span.first
        if index > 0 and first in instance.demands.no_cut:
            starts = f"stage {index} starts at layer {instance.layers[first].name}"
            message = (
                f"model.cuts: {starts}, which is no place to cut; {_places_around(instance, first)}"
                if first in of_model
                else f"constraints.no_cut: {starts}, before which no cut is allowed"
            )
            yield Violation("no_cut", f"stage {index}", 1, 0, "cuts", message)


def _places_around(instance: Instance, layer: int) -> str:
    """Name the places to cut before and behind a layer."""
    *_, before = (cut for cut in possible_cuts(instance) if cut < layer)
    behind = next(cut for cut in possible_cuts(instance) if cut > layer)
    names = [instance.layers[cut].name for cut in (before, behind) if 0 < cut < len(instance.layers)]
    return f"the nearest are {' and '.join(names)}" if names else "the model has none"


def check_devices_per_stage(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(13) The number of devices of a stage is one of those allowed."""
    allowed = instance.demands.devices_per_stage
    for index, stage in enumerate(plan.stages):
        devices = stage.group.devices
        if allowed and devices not in allowed:
            listed = ", ".join(map(str, allowed))
            message = (
                f"constraints.devices_per_stage: stage {index} has {devices} devices, expected one of {listed}"
            )
            nearest = min(allowed, key=lambda one: abs(one - devices))
            yield Violation("devices_per_stage", f"stage {index}", devices, nearest, "devices", message)


def check_own(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(14) The user's own constraints, each filed under its name."""
    for own in instance.constraints.own:
        for violation in own.check(instance, plan):
            yield replace(violation, rule=own_rule_name(own.name))


DEMAND_RULES: tuple[Rule, ...] = (
    Rule(8, "stages", check_stages),
    Rule(9, "pin", check_pin),
    Rule(10, "together", check_together),
    Rule(11, "apart", check_apart),
    Rule(12, "no_cut", check_no_cut),
    Rule(13, "devices_per_stage", check_devices_per_stage),
    Rule(14, "own", check_own),
)


def _from_front(stage: int, stages: int) -> int:
    """Return a stage's index from the front; one counted from the end of a plan with too few is negative."""
    return stage if stage >= 0 else stages + stage


def _names(instance: Instance, layers: Sequence[int]) -> str:
    """Name layers: the first and, of several, the last."""
    first, last = instance.layers[layers[0]].name, instance.layers[layers[-1]].name
    return f"layer {first}" if len(layers) == 1 else f"{len(layers)} layers ({first} to {last})"
