"""Ways to lay a pipeline out: how many groups, of how many devices each, in which mode, and which they may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipecut.formulation.constraints.rules import check_mode
from pipecut.formulation.limits import Deadline
from pipecut.formulation.problem.constraints import Placement
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import modes


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """``choices[r]`` are the groups that rank ``r`` may have: of one size, class and mode for all ranks."""

    choices: tuple[tuple[Group, ...], ...]

    @property
    def ranks(self) -> int:
        """How many groups there are."""
        return len(self.choices)


def layouts(instance: Instance, deadline: Deadline) -> Iterator[GroupLayout]:
    """Yield every layout that an instance allows; plans of different layouts are different plans.

    Raises StoppedError after the deadline. Cost: that of listing the possible groups for each number of them.
    """
    chunks, demands, atoms = instance.training.chunks, instance.demands, CutSpace.of(instance).stops
    free = instance.constraints.placement is Placement.FREE
    groups = Group.possible(instance, deadline) if free else ()
    for ranks in range(2, min(instance.devices, atoms // chunks) + 1):
        if not instance.training.dealt_to(ranks):
            continue
        if not (demands.stages_at_least or 1) <= ranks * chunks <= (demands.stages_at_most or ranks * chunks):
            continue
        for size in range(1, instance.devices // ranks + 1):
            for mode in modes(instance, size):
                if free:
                    fitting = [one for one in groups if (one.devices, one.mode) == (size, mode)]
                    yield from _of_classes(instance, fitting, ranks)
                else:
                    row = tuple((Group.on_line(instance, rank * size, size, mode),) for rank in range(ranks))
                    allowed = not any(any(check_mode(instance, 0, one)) for (one,) in row)
                    classes = {_class_of(instance, one) for (one,) in row}
                    if allowed and len(classes) == 1 and None not in classes:
                        yield GroupLayout(row)


def _of_classes(instance: Instance, groups: list[Group], ranks: int) -> Iterator[GroupLayout]:
    """Yield a layout for each class of which there are groups."""
    by_class: dict[int, list[Group]] = {}
    for group in groups:
        found = _class_of(instance, group)
        if found is not None:
            by_class.setdefault(found, []).append(group)
    for row in by_class.values():
        yield GroupLayout((tuple(row),) * ranks)


def _class_of(instance: Instance, group: Group) -> int | None:
    """Return the class of all devices of a group; None if they are of several."""
    found = {instance.class_index(server) for server, _ in group.counts}
    return found.pop() if len(found) == 1 else None
