"""What a claim is about: among which plans none is better. Derived from the instance, and said wherever it stands.

A proof compares plans that cut the traced order of layers where cuts are allowed, on devices placed as allowed,
with the forms, replicas, recomputation and sharding that are allowed. It says nothing about other plans.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.amounts import goal_amount, plural
from pipecut.formulation.problem.constraints import OnHost, Placement, Recompute, Sharded
from pipecut.formulation.problem.cuts import CutSpace, chooses_order
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, PAIRS, Split
from pipecut.formulation.problem.modes import SHARDED_IN_WORDS, SPLITS
from pipecut.formulation.problem.options import Samples
from pipecut.formulation.problem.training import Schedule


@dataclass(frozen=True, slots=True)
class Scope:
    """Which plans a claim compares.

    ``cuts``: at how many places of the order of ``layers`` layers a stage may start; ``free_order``: this order
    was chosen, not given. ``forms`` are all that some layer may take, ``restricted_layers`` the number of layers
    that may not take all of them. ``samples``: whether devices have whole ones. ``chunks``: how
    many stages each group holds. ``warm_up``: as in ``Training``, of 1F1B with a stage a group.
    ``micro_batch_choices``, ``schedule_choices``, ``chunk_choices``: among which ``micro_batches``, ``schedule``
    and ``chunks`` were chosen
    (empty: it was given). ``dealt``: how many stages groups of plain grids hold that are compared with all plans
    of one. ``recompute_layers``: how many layers a stage may compute again alone.
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
    samples: Samples
    recompute: Recompute
    recompute_layers: int
    sharded: tuple[Sharded, ...]
    optimizer_on_host: OnHost
    memory_limited: bool
    memory_margin: float
    schedule: Schedule
    warm_up: str | tuple[int, ...]
    chunks: int
    micro_batches: int
    free_order: bool
    micro_batch_choices: tuple[int, ...]
    schedule_choices: tuple[Schedule, ...]
    chunk_choices: tuple[int, ...]
    dealt: tuple[int, ...]
    demands: tuple[str, ...]
    at_most: tuple[GoalLimit, ...]


def scope_of(instance: Instance) -> Scope:
    """Return the scope of any claim about an instance."""
    asked, seen = instance.constraints, ("no_cut", "together", "devices_per_stage")
    choosing = [layer.allowed_forms for layer in instance.layers if layer.split is not Split.FOLLOW]
    parts, names = (asked, instance.training, instance.cost), [one.name for one in fields(Scope)]
    written: dict[str, Any] = {one: getattr(part, one) for part in parts for one in names if hasattr(part, one)}
    derived: dict[str, Any] = dict(
        layers=len(instance.layers),
        cuts=CutSpace.of(instance).stops - 1,
        devices=instance.devices,
        devices_per_stage=instance.demands.devices_per_stage,
        forms=tuple(sorted({form for allowed in choosing for form in allowed})),
        restricted_layers=sum(not set(FORMS) <= set(allowed) for allowed in choosing),
        recompute_layers=len(instance.demands.recompute_layers),
        memory_limited=asked.memory,
        memory_margin=float(asked.memory_margin),
        free_order=chooses_order(instance),
        chunk_choices=instance.training.chunk_choices if "chunks" in instance.training.left_open else (),
        demands=(*(one for one in instance.demands.named() if one not in seen), *(one.name for one in asked.own)),
    )
    return Scope(**(written | derived))


def scope_parts(scope: Scope) -> list[str]:
    """Say a scope in short parts, the most important first."""
    which = "an order" if scope.free_order else "the traced order"
    order = f"{which} of {scope.layers} {plural(scope.layers, 'layer')}"
    cuts = f"{scope.cuts} {plural(scope.cuts, 'cut')} of {order}"
    parts = [cuts, _devices(scope)]
    if scope.devices_per_stage:
        parts.append(f"{_either(scope.devices_per_stage)} devices a stage")
    parts.append(_sharing(scope))
    if scope.samples is Samples.FRACTIONS:
        parts.append("samples divided in fractions")
    alone = f", also of {scope.recompute_layers} named {plural(scope.recompute_layers, 'layer')} alone"
    parts.append(
        {
            Recompute.NEVER: "no recomputation",
            Recompute.ALLOWED: "recomputation allowed" + alone * (scope.recompute_layers > 0),
            Recompute.BLOCKS: "recomputation allowed, also of single blocks",
            Recompute.EVERY_BLOCK: "every block recomputed by itself",
            Recompute.ALWAYS: "every stage recomputes",
        }[scope.recompute]
    )
    if set(scope.sharded) != {Sharded.NONE}:
        parts.append(f"{' or '.join(SHARDED_IN_WORDS[one] for one in scope.sharded)} sharded")
    if scope.optimizer_on_host is not OnHost.NEVER:
        parts.append(
            f"optimiser on the host {'allowed' if scope.optimizer_on_host is OnHost.ALLOWED else 'always'}"
        )
    margin = f" with a margin of {100 * scope.memory_margin:g} %" if scope.memory_margin else ""
    parts.append(f"memory limited{margin}" if scope.memory_limited else "memory not limited")
    parts += _order(scope)
    parts += [f"{limit.goal} at most {goal_amount(limit.goal, limit.at_most)}" for limit in scope.at_most]
    if scope.demands:
        parts.append(f"limited by {', '.join(scope.demands)}")
    return parts


def _order(scope: Scope) -> list[str]:
    """Say in which order passes run, of how many micro-batches, and among which of both it was chosen."""
    orders = [
        _in_words(schedule, chunks, scope.warm_up)
        for schedule in scope.schedule_choices or (scope.schedule,)
        for chunks in scope.chunk_choices or (1 if scope.dealt else scope.chunks,)
        if chunks == 1 or schedule is Schedule.ONE_F_ONE_B or schedule.in_a_v
    ]
    dealt = [f"plain grids of interleaved 1F1B of {_either(scope.dealt)} stages a group"] * bool(scope.dealt)
    orders = [*dict.fromkeys(orders), *dealt]
    number = f"{scope.micro_batches} micro-{plural(scope.micro_batches, 'batch')}"
    if scope.micro_batch_choices:
        number += f", chosen among {', '.join(map(str, scope.micro_batch_choices))}"
    order = _in_words(scope.schedule, scope.chunks, scope.warm_up)
    return [f"{order}, {number}"] if len(orders) == 1 else [f"{order}, chosen among {', '.join(orders)}", number]


def _in_words(schedule: Schedule, chunks: int, warm_up: str | tuple[int, ...]) -> str:
    """Name the order in which the passes of so many stages a group run, and how 1F1B warms up."""
    order = schedule.words
    if chunks > 1 and not schedule.in_a_v:
        return f"interleaved {order} of {chunks} stages a group"
    if schedule is not Schedule.ONE_F_ONE_B or warm_up == "classic":
        return order
    if isinstance(warm_up, tuple):
        return f"{order} with warm-up {' '.join(map(str, warm_up))}"
    return f"eager {order}" if warm_up == "eager" else f"{order} and eager, the warm-up of every stage chosen"


def _devices(scope: Scope) -> str:
    placed = "on the line" if scope.placement is Placement.LINE else "placed freely"
    words, most = f"{scope.devices} {plural(scope.devices, 'device')} {placed}", scope.max_servers
    return words if most is None else f"{words}, {most} {plural(most, 'server')} a stage"


def _sharing(scope: Scope) -> str:
    ways = ", ".join(SPLITS.get(form, f"form {form}") for form in scope.forms if form not in PAIRS)
    ways += ", two of these at once" * (not PAIRS.keys().isdisjoint(scope.forms))
    forms = f"layers split by {ways}" if scope.forms else "no layer split"
    if scope.restricted_layers:
        forms += f" ({scope.restricted_layers} {plural(scope.restricted_layers, 'layer')} restricted)"
    degrees = scope.tensor_parallel_degrees
    if not degrees:
        return f"{forms}; one replica a stage"
    return f"{forms}; replicas of {_either(degrees)} {plural(degrees[-1], 'device')}"


def _either(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers))
