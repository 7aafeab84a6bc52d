"""The columns in which the layers of a stage are added up, and the passes that these sums make.

By the formula (:class:`Formula`) a stage takes its time in one pass, which is the forward one here: the backward
pass and the synchronisation take nothing. In a period (:class:`Period`) both passes are one. In a step they are
passes of their own. Where times add up the columns
are the passes. Where communication hides behind computing (``StageTime.OVERLAP``) a pass of a stage takes the
larger of two sums, so its computing and its communicating are added up apart, and what is computed again before a
backward pass apart from that. No such pass is a sum over layers, but none is below the sum of either side: those
are its bounds, for which not every form needs to be looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.passes import change_parts, change_passes, layer_parts, layer_passes
from pipecut.formulation.costs.tables import Times
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FormEdge
from pipecut.formulation.problem.options import StageTime, Synchronisation
from pipecut.formulation.problem.precision import Copy
from pipecut.formulation.problem.training import Schedule

FORWARD, BACKWARD, SYNC, WEIGHTS = 0, 1, 2, 3
"""The passes of a stage: forward, backward (with what it computes again), synchronisation once a step.

Under a schedule with backward passes in halves also what of them is for the gradients of weights.
"""
COLUMNS = 3
"""Passes without halves."""


@dataclass(frozen=True, slots=True)
class Formula:
    """What a goal is by its formula: ``once`` the latency, the slowest stage or boundary ``often`` times in all.

    The latency, which is all stages and boundaries in a row, has the slowest in it: this counts ``often - once``
    times more. A plan takes at least ``often`` times each of its stages and boundaries.
    """

    once: int
    often: int

    @staticmethod
    def of(instance: Instance) -> Formula | None:
        """Return what the first goal of an instance is made of; None for one that no such formula says."""
        goal, training = instance.goals[0], instance.training
        many = training.micro_batches
        if goal is Goal.BOTTLENECK:
            return Formula(0, 1)
        if goal is not Goal.ITERATION_TIME:
            return None
        if training.schedule is Schedule.NAIVE:
            return Formula(many, many)
        return Formula(1 if training.schedule.flushes else 0, many)


@dataclass(frozen=True, slots=True)
class Period:
    """What keeps plans to a period without a flush: after so many ``micro_batches`` weights are updated.

    A synchronisation that is ``charged`` keeps its device from the next pass. Else it runs beside them, and may
    take as long as these micro-batches.
    """

    micro_batches: int
    charged: bool

    @staticmethod
    def of(instance: Instance) -> Period | None:
        """Return how plans keep to a period; None where the first goal is another."""
        charged = instance.cost.synchronisation is Synchronisation.CHARGED
        return Period(instance.training.micro_batches, charged) if instance.goals[0] is Goal.PERIOD else None

    @property
    def pairs(self) -> int:
        """After so many pairs of passes everything comes again."""
        return self.micro_batches if self.charged else 1

    def alone(self, pace: Times, sync: Times) -> Times:
        """Return the period of stages with nothing before or behind them."""
        often = -(-sync // self.micro_batches)
        return pace + often if self.charged else np.maximum(pace, often)


def columns_of(instance: Instance) -> PricedColumns:
    """Return the columns of an instance."""
    halves, overlap = instance.training.schedule.in_halves, instance.cost.stage_time is StageTime.OVERLAP
    found = Overlapped(instance.training.micro_batches, halves=halves) if overlap else Added(halves=halves)
    return found if Period.of(instance) is None else Paced(found, overlap=overlap)


def compared(passes: Times) -> Times:
    """Return by what passes of whole stages are compared: each but the synchronisation.

    Nobody waits for that but the end of the step. It follows upon a backward pass, with which it is compared;
    where backward passes have halves, each of which is compared, upon that of the weights.
    """
    own = passes.copy()
    last = BACKWARD if own.shape[1] == COLUMNS else WEIGHTS
    own[:, SYNC] += own[:, last]
    if last == WEIGHTS:
        own[:, BACKWARD] -= own[:, WEIGHTS]
    return own


class OfFormula:
    """A stage takes what it computes and what it communicates, or the longer of the two; a column for each."""

    width = 2

    def __init__(self, *, overlap: bool) -> None:
        self._overlap = overlap

    def passes(self, sums: Times) -> Times:
        """Return the time of the stage as its forward pass."""
        time = sums.max(axis=-1) if self._overlap else sums.sum(axis=-1)
        return np.stack([time, np.zeros_like(time), np.zeros_like(time)], axis=-1)

    def below(self, often: Sequence[int]) -> Times:
        """Return both columns together, or each by itself."""
        many = often[FORWARD]
        return np.array([[many, 0], [0, many]] if self._overlap else [[many, many]], dtype=np.int64)

    def compared(self, sums: Times) -> Times:
        """Return what is communicated: what is computed is the same in all forms."""
        return sums[:, 1:]

    def within(self, passes: Sequence[int]) -> tuple[Times, Times]:
        """Return what is below the time of the stage."""
        rows = self.below((1, 0, 0))
        return rows, np.full(len(rows), passes[FORWARD], dtype=np.int64)


class Added:
    """Times add up: a column for each pass."""

    def __init__(self, *, halves: bool) -> None:
        self.width = COLUMNS + halves

    def of_layer(
        self, instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None
    ) -> Sequence[int]:
        """Return the passes of the layer."""
        return layer_passes(instance, layer, form, kind, copy)[: self.width]

    def of_change(
        self, instance: Instance, edge: FormEdge, source: int, form: int, kind: GroupKind
    ) -> Sequence[int]:
        """Return how much longer the change makes forward and backward pass."""
        return (*change_passes(instance, edge, source, form, kind), 0, 0)[: self.width]

    def passes(self, sums: Times) -> Times:
        """Return the sums themselves."""
        return sums

    def below(self, often: Sequence[int]) -> Times:
        """Return one row: each column as often as its pass."""
        return np.array([[*often, *(0,) * (self.width - len(often))]], dtype=np.int64)

    def compared(self, sums: Times) -> Times:
        """Return the passes, the synchronisation behind the one that it follows upon."""
        return compared(sums)

    def within(self, passes: Sequence[int]) -> tuple[Times, Times]:
        """Return what is compared of the passes, and of the limits."""
        return compared(np.eye(self.width, dtype=np.int64)).T, compared(np.array([passes]))[0]


class Paced:
    """Both passes of a micro-batch as one, the forward one here: of a period nothing else matters."""

    def __init__(self, of: PricedColumns, *, overlap: bool) -> None:
        self.width = of.width
        self.of_layer, self.of_change = of.of_layer, of.of_change
        self._of, self._overlap = of, overlap

    def passes(self, sums: Times) -> Times:
        """Return both passes together, none, and the synchronisation."""
        found = self._of.passes(sums).copy()
        found[..., FORWARD] += found[..., BACKWARD]
        found[..., BACKWARD] = 0
        return found

    def below(self, often: Sequence[int]) -> Times:
        """Return what is below both passes as often as the forward one counts."""
        return self._of.below((often[FORWARD], often[FORWARD], often[SYNC]))

    def compared(self, sums: Times) -> Times:
        """Return the pace and the synchronisation; where these are no sums, what they are made of."""
        return self._of.compared(sums) if self._overlap else self.passes(sums)[:, [FORWARD, SYNC]]

    def within(self, passes: Sequence[int]) -> tuple[Times, Times]:
        """Return rows for the pace, and for the synchronisation."""
        rows = [self.below((1, 0, 0)), self.below((0, 0, 1))]
        return np.concatenate(rows), np.repeat([passes[FORWARD], passes[SYNC]], [len(one) for one in rows])


COMPUTED, SENT = slice(0, 3), slice(3, 6)
"""Of either, by order: forward pass, backward pass, what is computed again before that."""
SUMMED = 6
OF_WEIGHTS = slice(7, 9)
"""What of the backward pass is for weights: computed, sent."""


class Overlapped:
    """Communication hides behind the computing of its own pass.

    Computing hardly depends on forms, so of it there is one sum for all forms of a stage.
    """

    def __init__(self, micro_batches: int, *, halves: bool) -> None:
        self.width = 9 if halves else 7
        self._halves, self._most_late = halves, micro_batches - 1

    def of_layer(
        self, instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None
    ) -> Sequence[int]:
        """Return what the layer computes and sends in each pass, in the order of the columns."""
        return layer_parts(instance, layer, form, kind, copy)[: self.width]

    def of_change(
        self, instance: Instance, edge: FormEdge, source: int, form: int, kind: GroupKind
    ) -> Sequence[int]:
        """Return what the change sends in each pass; it computes nothing."""
        return (0, 0, 0, *change_parts(instance, edge, source, form, kind), 0, 0, 0)[: self.width]

    def passes(self, sums: Times) -> Times:
        """Return of each pass the longer of computing and sending."""
        larger = np.maximum(sums[..., COMPUTED], sums[..., SENT])
        found = [larger[..., 0], larger[..., 1] + larger[..., 2], sums[..., SUMMED]]
        if self._halves:
            inputs = sums[..., [1, 4]] - sums[..., OF_WEIGHTS]
            found.append(larger[..., 1] - inputs.max(axis=-1))
        return np.stack(found, axis=-1)

    def below(self, often: Sequence[int]) -> Times:
        """Return a row for each choice, by pass, of what takes longer: none is above the passes."""
        forward, backward, sync, weights = (*often, 0)[:4]
        rows: list[Times] = []
        # What is computed again is the forward pass of some layers, and mostly of all: on the same side as that.
        for one, other, inputs in itertools.product((0, 3), (1, 4), (1, 4) if self._halves else (1,)):
            row = np.zeros(self.width, dtype=np.int64)
            row[[one, one + 2, SUMMED]] = forward, backward, sync
            row[other] += backward + weights
            row[inputs] -= weights
            if self._halves:
                row[7 + (inputs == 4)] = weights
            rows.append(row)
        return np.array(rows)

    def compared(self, sums: Times) -> Times:
        """Return what is computed and sent in each pass, but for columns in which no rows differ."""
        found = [sums[:, :SUMMED], sums[:, [SUMMED]]]
        if self._halves:
            # Of the second halves at most so many more than of the first ones stand behind one another, and they
            # take the longer, the less the first ones take.
            inputs = sums[:, [1, 4]] - sums[:, OF_WEIGHTS]
            found = [
                sums[:, :SUMMED],
                inputs,
                sums[:, [SUMMED]] - self._most_late * inputs.sum(axis=1, keepdims=True),
            ]
        rows = np.concatenate(found, axis=1)
        told = np.ptp(rows, axis=0) > 0 if len(rows) else np.zeros(rows.shape[1], dtype=np.bool_)
        told[5] &= bool((rows[:, 5] != rows[:, 3]).any())
        told[-1] = True
        return rows[:, told]

    def within(self, passes: Sequence[int]) -> tuple[Times, Times]:
        """Return rows for forward pass, backward pass, and that with the synchronisation."""
        forward, backward, sync = passes[:COLUMNS]
        rows, most = list[Times](), list[int]()
        for often, limit in (((1, 0, 0), forward), ((0, 1, 0), backward), ((0, 1, 1), backward + sync)):
            own = self.below(often)
            rows.append(own)
            most += [limit] * len(own)
        return np.concatenate(rows), np.array(most, dtype=np.int64)


PricedColumns = Added | Paced | Overlapped
"""Columns that are priced: ``of_layer`` and ``of_change`` return what a layer, or a change of layout, adds."""
PassColumns = OfFormula | PricedColumns
"""How passes are made of sums over layers and changes of layout, so many columns (``width``) of rows of numbers.

``passes`` returns the passes that sums make; of a part of a stage they are no more than those of the whole.
``below`` returns how often columns count in sums that no stage is below, a row each, always so many: a stage is
not below them if its passes count so often. Only those for weights may count less than 0 times, together with the
backward pass not. ``compared`` returns numbers by which rows are compared: if none of one row is larger than in
another, a stage that goes on from it is no worse, however it goes on. ``within`` returns how often columns count
in sums, and the most that these are, where no pass takes more.
"""
