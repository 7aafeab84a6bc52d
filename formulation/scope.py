"""What a claim is about: among which plans none is better. Derived from the instance, and said wherever it stands.

A proof compares plans that cut the traced order of layers where cuts are allowed, on devices placed as allowed,
with the forms, replicas and recomputation that are allowed. It says nothing about other plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from formulation.constraints.plans.at_most import GoalLimit
from formulation.costs.amounts import goal_amount, plural
from formulation.problem.cuts import atom_graph, cut_space
from formulation.problem.instance import Instance
from formulation.problem.layers import FORMS, Split
from formulation.problem.modes import SPLITS
from formulation.problem.options import Placement, Recompute, Schedule

__all__ = ["scope_of", "scope_parts"]

SCHEDULES = {
    Schedule.NAIVE: "one micro-batch at a time",
    Schedule.GPIPE: "GPipe",
    Schedule.ONE_F_ONE_B: "1F1B",
    Schedule.ASYNC_ONE_F_ONE_B: "1F1B without a flush",
    Schedule.DOUBLE_BUFFERED: "1F1B without a flush, two weight versions",
}


@dataclass(frozen=True, slots=True)
class Scope:
    """Which plans a claim compares.

    ``cuts``: at how many places of the order of ``layers`` layers a stage may start; ``free_order``: this order
    was chosen, not given. ``forms`` are all that some layer may take, ``restricted_layers`` the number of layers
    that may not take all of them. ``micro_batch_choices``: among which numbers ``micro_batches`` was chosen
    (empty: it was given).
    ``tensor_parallel_degrees``, ``devices_per_stage``: empty where any is allowed (a degree is then the number of
    devices of the stage: it has one replica). ``demands`` are the names of other rules that limit plans.
    """

    layers: int
    cuts: int
    devices: int
    placement: Placement
    max_servers: int | None
    devices_per_stage: tuple[int, ...]
    tensor_parallel_degrees: tuple[int, ...]
    forms: tuple[int, ...]
    restricted_layers: int
    recompute: Recompute
    memory_limited: bool
    schedule: Schedule
    micro_batches: int
    free_order: bool
    micro_batch_choices: tuple[int, ...]
    demands: tuple[str, ...]
    at_most: tuple[GoalLimit, ...]


def scope_of(instance: Instance) -> Scope:
    """Return the scope of any claim about an instance."""
    constraints, seen = instance.constraints, ("no_cut", "together", "devices_per_stage")
    named = instance.demands.named()
    choosing = [layer.allowed_forms for layer in instance.layers if layer.split is not Split.FOLLOW]
    return Scope(
        layers=len(instance.layers),
        cuts=cut_space(instance).stops - 1,
        devices=instance.devices,
        placement=constraints.placement,
        max_servers=constraints.max_servers,
        devices_per_stage=instance.demands.devices_per_stage,
        tensor_parallel_degrees=constraints.tensor_parallel_degrees,
        forms=tuple(sorted({form for allowed in choosing for form in allowed})),
        restricted_layers=sum(allowed != FORMS for allowed in choosing),
        recompute=constraints.recompute,
        memory_limited=constraints.memory,
        schedule=instance.training.schedule,
        micro_batches=instance.training.micro_batches,
        free_order=instance.model.free_order and not atom_graph(instance).in_one_order_only,
        micro_batch_choices=instance.training.micro_batch_choices,
        demands=(*(one for one in named if one not in seen), *(own.name for own in constraints.own)),
        at_most=constraints.at_most,
    )


def scope_parts(scope: Scope) -> list[str]:
    """Say a scope in short parts, the most important first."""
    which = "an order" if scope.free_order else "the traced order"
    order = f"{which} of {scope.layers} {plural(scope.layers, 'layer')}"
    cuts = f"{scope.cuts} {plural(scope.cuts, 'cut')} of {order}"
    parts = [cuts, _devices(scope)]
    if scope.devices_per_stage:
        parts.append(f"{_either(scope.devices_per_stage)} devices a stage")
    parts.append(_sharing(scope))
    parts.append(
        {
            Recompute.NEVER: "no recomputation",
            Recompute.ALLOWED: "recomputation allowed",
            Recompute.ALWAYS: "every stage recomputes",
        }[scope.recompute]
    )
    parts.append("memory limited" if scope.memory_limited else "memory not limited")
    number = f"{scope.micro_batches} micro-{plural(scope.micro_batches, 'batch')}"
    choices = ", ".join(map(str, scope.micro_batch_choices))
    parts.append(f"{SCHEDULES[scope.schedule]}, {number}" + (f", chosen among {choices}" if choices else ""))
    parts += [f"{limit.goal} at most {goal_amount(limit.goal, limit.at_most)}" for limit in scope.at_most]
    if scope.demands:
        parts.append(f"limited by {', '.join(scope.demands)}")
    return parts


def _devices(scope: Scope) -> str:
    placed = "on the line" if scope.placement is Placement.LINE else "placed freely"
    words, most = f"{scope.devices} {plural(scope.devices, 'device')} {placed}", scope.max_servers
    return words if most is None else f"{words}, {most} {plural(most, 'server')} a stage"


def _sharing(scope: Scope) -> str:
    ways = ", ".join(SPLITS.get(form, f"form {form}") for form in scope.forms)
    forms = f"layers split by {ways}" if scope.forms else "no layer split"
    if scope.restricted_layers:
        forms += f" ({scope.restricted_layers} {plural(scope.restricted_layers, 'layer')} restricted)"
    degrees = scope.tensor_parallel_degrees
    return f"{forms}; {f'replicas of {_either(degrees)} devices' if degrees else 'one replica a stage'}"


def _either(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers))
