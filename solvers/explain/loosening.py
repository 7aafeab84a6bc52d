"""The limits of an instance one by one, and the instance without some of them; and the choices that are off.

A *choice that is off* (``Opening``) is one that a scenario leaves out unless it says otherwise, such as
recomputation. No plan of a scenario that leaves it out speaks of it, though most people mean it to be open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from formulation.constraints.constraint import of_plans
from formulation.constraints.devices.memory import enough_bytes, more_memory
from formulation.constraints.devices.placement import can_be_free
from formulation.constraints.layers.no_cut import PLACES
from formulation.constraints.loosening import Limit, changed
from formulation.problem.constraints import OnHost, Placement, Recompute, Sharded
from formulation.problem.cuts import CutSpace
from formulation.problem.instance import Instance
from formulation.problem.layers import Axis

MOST_DEGREES = 8
"""So many tensor-parallel degrees are opened at most: each is a kind of groups more."""
BY_PROGRAM = ("constraints.recompute", "constraints.sharded", "constraints.optimizer_on_host")
"""Keys that a scenario leaves no choice in where a program runs the plan, which asks for equal samples."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A choice that an instance leaves out: its key in a scenario, what is to be written there, and in words.

    ``fields`` are those of Constraints that open it; ``choices`` numbers of micro-batches.
    """

    key: str
    written: str
    words: str
    fields: Mapping[str, Any]
    choices: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """What is to be written in a scenario."""
        return f"{self.key}: {self.written}"


def openings(instance: Instance, closed: Collection[str] = ()) -> tuple[Opening, ...]:
    """Return the choices that an instance leaves out and could have, but for some ``closed`` keys.

    Those come first that leave plans most like the others. Of one key, the later opens more. Where a program runs
    the plan, what it does not run is closed too.
    """
    shut = (*closed, *(BY_PROGRAM if instance.constraints.equal_samples else ()))
    found = (one for one in _openings(instance) if one.key not in shut)
    return tuple(one for one in found if opened(instance, [one]) is not None)


def left_out(some: Iterable[Opening]) -> tuple[str, ...]:
    """Return in words what is left out where some choices are off, each key once."""
    return tuple({one.key: one.words for one in reversed(list(some))}.values())[::-1]


def opened(instance: Instance, some: Iterable[Opening]) -> Instance | None:
    """Return the instance with some choices open; None where it cannot have them all."""
    fields: dict[str, Any] = {}
    training = instance.training
    try:
        for one in some:
            fields |= one.fields
            if one.choices:
                training = replace(training, micro_batch_choices=one.choices, micro_batches=one.choices[0])
        return replace(instance, training=training, constraints=replace(instance.constraints, **fields))
    except ValueError:
        return None


def _openings(instance: Instance) -> Iterator[Opening]:
    constraints, training = instance.constraints, instance.training
    if constraints.recompute is Recompute.NEVER:
        key, words = "constraints.recompute", "recomputation"
        yield Opening(key, "allowed", words, {"recompute": Recompute.ALLOWED})
    if constraints.recompute in (Recompute.NEVER, Recompute.ALLOWED) and len(CutSpace.of(instance).places) > 2:
        fields = {"recompute": Recompute.BLOCKS, "recompute_layers": ()}
        yield Opening("constraints.recompute", "blocks", "recomputation of single blocks", fields)
    if not training.micro_batch_choices:
        every = tuple(one for one in range(1, training.global_batch + 1) if training.global_batch % one == 0)
        yield Opening("training.micro_batches", "choose", "other numbers of micro-batches", {}, every)
    if set(constraints.sharded) == {Sharded.NONE}:
        written = f"[{', '.join(Sharded)}]"
        yield Opening("constraints.sharded", written, "sharded states (ZeRO)", {"sharded": tuple(Sharded)})
    if not constraints.tensor_parallel_degrees:
        degrees = _degrees(instance)
        key, written = "constraints.tensor_parallel_degrees", str(list(degrees))
        yield Opening(key, written, "replicas", {"tensor_parallel_degrees": degrees})
    if constraints.placement is Placement.LINE and can_be_free(instance):
        yield Opening("constraints.placement", "free", "free placement", {"placement": Placement.FREE})
    if constraints.optimizer_on_host is OnHost.NEVER:
        fields = {"optimizer_on_host": OnHost.ALLOWED}
        yield Opening("constraints.optimizer_on_host", "allowed", "the memory of the host", fields)
    axes = [one for one in Axis if one is not Axis.PAIRS and one not in constraints.splits]
    axes = [one for one in axes if _gives_forms(instance, one)]
    if axes:
        splits = (*constraints.splits, *axes)
        written = f"[{', '.join(splits)}]"
        yield Opening("constraints.splits", written, f"splits by {' and '.join(axes)}", {"splits": splits})


def _degrees(instance: Instance) -> tuple[int, ...]:
    """Return how many devices a replica may have: all numbers if they are few, else powers of two."""
    if instance.devices <= MOST_DEGREES:
        return tuple(range(1, instance.devices + 1))
    return tuple(1 << power for power in range(MOST_DEGREES) if 1 << power <= instance.devices)


def _gives_forms(instance: Instance, axis: Axis) -> bool:
    """Tell whether some layer has more forms along an axis."""
    wider = opened(instance, [Opening("", "", "", {"splits": (*instance.constraints.splits, axis)})])
    if wider is None:
        return False
    pairs = zip(instance.layers, wider.layers, strict=True)
    return any(set(two.allowed_forms) - set(one.allowed_forms) for one, two in pairs)


def limits_of(instance: Instance) -> tuple[Limit, ...]:
    """Return every limit of an instance, those first that an explanation should rather do without."""
    values = sorted(of_plans(instance.constraints), key=lambda one: one.rank)
    return tuple(limit for one in values for limit in one.loosenings(instance))


def without(instance: Instance, limits: Iterable[Limit]) -> Instance:
    """Return the instance without some of its limits."""
    gone = {(limit.kind, limit.entry) for limit in limits}
    new: dict[str, Any] = {}
    for one in of_plans(instance.constraints):
        new |= one.without(gone, instance)
    if any(kind == PLACES for kind, _ in gone):
        instance = replace(instance, model=replace(instance.model, cuts=None))
    # How much memory devices have is a limit of the cluster, not of the constraints.
    classes = {str(name) for kind, name in gone if kind == "memory"}
    every = (replace(instance, training=one) for one in instance.training.choices) if classes else ()
    return more_memory(changed(instance, **new), classes, max(map(enough_bytes, every), default=0))
