"""A plan: a candidate answer, valid or not. Rules judge it (``formulation.constraints.rules``), costs price it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.layers import PAIRS, SINGLE_FORMS
from pipecut.formulation.problem.modes import split_words

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.training import Training
    from pipecut.formulation.problem.units import Link


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open run of layers: ``first <= layer < stop``."""

    first: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.first)

    def __contains__(self, layer: int) -> bool:
        return self.first <= layer < self.stop

    @property
    def layers(self) -> range:
        """The layer indices of the span."""
        return range(self.first, self.stop)


@dataclass(frozen=True, slots=True)
class Stage:
    """A span of layers on a device group, with one parallel form for each layer (FOLLOW layers: 0).

    ``warm_up`` is how many forward passes it runs before its first backward pass, where the training lets every
    stage choose (``Training.warm_up``); None: as many as the training says.
    ``again`` are runs of its layers, in order, that are each computed again by themselves before their backward
    pass, where the stage as a whole keeps its activations (``Mode.recompute`` says so for whole stages).
    """

    span: Span
    group: Group
    forms: tuple[int, ...]
    warm_up: int | None = None
    again: tuple[Span, ...] = ()

    def form(self, layer: int) -> int:
        """Return the form of a layer of this stage, by its index in the model."""
        return self.forms[layer - self.span.first]

    def in_words(self, form: int) -> str:
        """Say how a form divides a layer of this stage: of a pair ``output features 4 x context 2``."""
        return split_words(form, self.group.grid)

    def on(self, group: Group) -> Stage:
        """Return the stage on other devices or in another mode, with those of its forms that there can be.

        Form 0 on replicas of one device; where devices lie in no grid, of a pair the form over neighbours. No
        runs where the group computes all again, or named layers.
        """
        forms = self.forms
        if group.tensor_parallel_degree == 1:
            forms = (0,) * len(forms)
        elif group.mode.grid == 1:
            forms = tuple(PAIRS.get(form, (form,))[0] for form in forms)
        return replace(self, group=group, forms=forms, again=() if group.mode.recompute else self.again)

    @property
    def shared_in_words(self) -> str:
        """How its devices share it, blocks computed again, warm-up if not as the training says; else nothing."""
        blocks, mode = len(self.again), self.group.mode.in_words(self.group.devices)
        again = f"recomputes {blocks} {'block' if blocks == 1 else 'blocks'}" if blocks else ""
        warm_up = "" if self.warm_up is None else f"warm-up {self.warm_up}"
        return ", ".join(filter(None, (mode, again, warm_up)))

    def over(self, span: Span, forms: tuple[int, ...]) -> Stage:
        """Return it with other layers; runs that are computed again and not all among these are kept."""
        again = (run for run in self.again if span.first <= run.first and run.stop <= span.stop)
        return replace(self, span=span, forms=forms, again=tuple(again))

    def fields(self, names: Sequence[str]) -> dict[str, Any]:
        """Return its mode as plain data, under the keys of :meth:`Mode.fields`; ``names`` are those of all layers.

        ``recompute`` are pairs of the first and the last layer of each run, where it computes some again.
        """
        runs = [[names[run.first], names[run.stop - 1]] for run in self.again]
        return self.group.mode.fields() | ({"recompute": runs} if runs else {})

    def kinds(self, kind: GroupKind) -> dict[int, GroupKind]:
        """Return by layer the kind of the stage's group: one that recomputes for the layers of ``again``."""
        whole = replace(kind, mode=replace(kind.mode, recompute=True))
        runs = {layer: whole for run in self.again for layer in run.layers}
        return {layer: runs.get(layer, kind) for layer in self.span.layers}


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages in pipeline order."""

    stages: tuple[Stage, ...]

    def __len__(self) -> int:
        return len(self.stages)

    def plain(self) -> Plan:
        """Return the plan with no grid where no layer of a stage makes use of it."""
        groups = (replace(one.group, mode=replace(one.group.mode, grid=1)) for one in self.stages)
        return Plan(
            tuple(
                replace(stage, group=group) if PAIRS.keys().isdisjoint(stage.forms) else stage
                for stage, group in zip(self.stages, groups, strict=True)
            )
        )

    def keeping(self, run: Span) -> Plan:
        """Return the plan in which this run of layers is not computed again by itself."""
        stages = (replace(one, again=tuple(own for own in one.again if own != run)) for one in self.stages)
        return Plan(tuple(stages))

    def splits(self) -> dict[int, str]:
        """Return in words how forms divide layers: every form of its own, and the pairs that the plan has."""
        used = {form for stage in self.stages for form in stage.forms}
        return {form: split_words(form) for form in sorted({*SINGLE_FORMS, *used})}

    def link_before(self, instance: Instance, index: int) -> Link | None:
        """Return the link that the boundary before a stage goes over; None where nothing leaves its device.

        That is where both stages run on one group (``Training.turns_at``), or on the only device of a server.
        """
        if instance.training.turns_at(index, len(self)):
            return None
        return Group.link_between(instance, self.stages[index - 1].group, self.stages[index].group)

    def warm_ups(self, training: Training) -> tuple[int, ...]:
        """Return by stage the forward passes before its first backward pass, under 1F1B.

        Some order can be executed if no stage has more of them than the one before it, and only then. Backward
        pass k of stage s comes behind its forward pass k + w_s - 1, and waits for backward pass k of stage s + 1,
        which comes behind forward pass k + w_{s+1} - 1 there and so needs that of stage s. Were w_{s+1} the
        larger, stage s would come to it only behind the pass that waits for it. Else pairs can be gone through in
        order, forward passes from the front and backward passes from the back (``formulation.executed``).
        """
        rows = zip(self.stages, training.warm_ups(len(self)), strict=True)
        return tuple(given if stage.warm_up is None else stage.warm_up for stage, given in rows)

    def unlike_classic(self, training: Training) -> int | None:
        """Return the first stage that warms up otherwise than 1F1B of groups with one stage each commonly does.

        None if none does.
        """
        if not training.warms_up:
            return None
        least = (min(len(self) - at, training.micro_batches) for at in range(len(self)))
        pairs = enumerate(zip(self.warm_ups(training), least, strict=True))
        return next((at for at, (many, classic) in pairs if many != classic), None)
