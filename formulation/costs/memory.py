"""How many bytes the fullest device of a stage holds, by kind (:class:`MemoryParts`).

A stage holds the weights (once for every version kept), gradients and optimiser state of its share; the
activations kept for each micro-batch in flight, and what it received of each; and the largest input and output
of one layer with their gradients while it runs. A stage that recomputes keeps for each micro-batch in flight only
what it received, and the activations of the one that runs backward (GPipe, arXiv 1811.06965, §2.3). One that
computes named layers again does so with these (Korthikanti et al., arXiv 2205.05198, §5), and also keeps what they
read from other layers of the stage. One that computes runs of layers again, each by itself, keeps what each run
reads (``formulation.problem.precision``), and the activations of one run at a time.

Parts are first those of one version and one micro-batch, and then multiplied (:meth:`MemoryParts.times`) by how
often the stage keeps them (:class:`Keeps`). Nobody needs to take one part away from a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction

from pipecut.formulation.costs.forms import EXPERTS, PARTIAL, SHARDINGS, WHOLE, Fullest
from pipecut.formulation.costs.once import once
from pipecut.formulation.costs.times import cut_bytes, held, holders, layout_form, waits
from pipecut.formulation.executed import most_kept
from pipecut.formulation.problem.constraints import NAMED
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import into
from pipecut.formulation.problem.modes import Mode, forward_passes
from pipecut.formulation.problem.plan import Plan, Stage
from pipecut.formulation.problem.precision import NOTHING_COPIED, Copy
from pipecut.formulation.problem.units import ceil_div
from pipecut.formulation.schedules.keeps import Keeps


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes on one device, by kind. All but the working set add up over layers; of that the largest counts.

    ``stash`` are activations of the stage's own layers that wait for their backward pass, ``received`` those that
    came from another stage; ``working_set`` is what one layer needs while it runs. ``recomputed`` are
    activations of layers that are computed again, of the one micro-batch whose backward pass runs. Where several
    runs of a stage are computed again, both are those of the run, or of the kept layer, that needs most at once.
    With backward passes in halves ``recomputed`` are those of all micro-batches between the two, as are
    ``output_gradients``, from which the second half makes the gradients of weights.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    stash: int = 0
    received: int = 0
    working_set: int = 0
    recomputed: int = 0
    output_gradients: int = 0

    @property
    def lasting(self) -> int:
        """All that is held from pass to pass: everything but the working set."""
        held = self.weights + self.gradients + self.optimizer
        return held + self.stash + self.recomputed + self.output_gradients + self.received

    @property
    def total(self) -> int:
        """All parts together."""
        return self.lasting + self.working_set

    def times(self, keeps: Keeps, mode: Mode) -> MemoryParts:
        """Return what a stage in this mode holds, if these are the parts of one version and one micro-batch."""
        return MemoryParts(
            weights=keeps.versions * self.weights,
            gradients=self.gradients,
            optimizer=0 if mode.optimizer_on_host else self.optimizer,
            stash=keeps.in_flight * self.stash,
            received=keeps.in_flight * self.received,
            working_set=self.working_set,
            recomputed=keeps.again * self.recomputed,
            output_gradients=keeps.again * self.output_gradients,
        )

    @staticmethod
    def sum(parts: Iterable[MemoryParts]) -> MemoryParts:
        """Return the parts of several layers together on one device."""
        rows = list(parts)
        summed = {key.name: sum(getattr(one, key.name) for one in rows) for key in fields(MemoryParts)}
        return MemoryParts(**summed | {"working_set": max((one.working_set for one in rows), default=0)})

    @staticmethod
    def undivided(instance: Instance) -> MemoryParts:
        """Return the parts of the whole model on one device: one version of weights, one micro-batch."""
        return MemoryParts.sum(
            MemoryParts(
                weights=instance.parameter_bytes[layer],
                gradients=instance.gradient_bytes[layer],
                optimizer=instance.optimizer_bytes[layer],
                stash=instance.stash_bytes[layer],
                output_gradients=instance.output_bytes[layer] * waits(instance, layer),
                working_set=2 * (instance.input_bytes[layer] + instance.output_bytes[layer]),
            )
            for layer in range(len(instance.layers))
        )

    @staticmethod
    def of_layer(instance: Instance, kind: GroupKind, layer: int, form: int, copy: Copy | None) -> MemoryParts:
        """Return what one device holds of a layer that lies in this form, and copies this beside its own weights.

        Columns of a layer's output come with their own weights, and forms 1 and 3 shard the rows of a weight
        matrix; all else is copied. Inputs and outputs are divided as they lie: by rows or columns among the
        devices, or whole on each device of a replica (``formulation.costs.forms``); of unequal shares the largest
        counts. What a layer keeps for its backward pass is taken to be as its input lies, and what stays of its
        output as that lies. The working set is input and output, as they lie while the layer works, with their
        gradients, and of a layer whose weights or gradients are divided all that a device works with while it
        runs. Copied weights are held as the layer's own. What a second half of the backward pass waits with is the
        gradient of the output as it lies at work.
        """
        split, more = instance.layers[layer].split, copy or NOTHING_COPIED
        share, rows = held(instance, layer, form, kind), [SHARDINGS[split][one] for one, _, _ in kind.along(form)]
        among, sharded = holders(instance, layer, form, kind), kind.mode.sharded
        weights = instance.parameter_bytes[layer] + more.parameter_bytes
        gradients = instance.gradient_bytes[layer] + more.gradient_bytes
        optimizer = instance.optimizer_bytes[layer] + more.optimizer_bytes
        running = _part(share, weights) * (sharded.divides_weights and among > 1)
        running += _part(share, gradients) * (sharded.divides_gradients and among > 1)
        again, stash = forward_passes(instance, kind.mode, layer) > 1, instance.stash_bytes[layer]
        load = instance.cost.expert_load
        stash = _lying(kind, [row.takes for row in rows], stash, load)
        lent = _lying(kind, [row.made for row in rows], instance.lent_bytes[layer], load)
        lent *= kind.mode.recompute == NAMED
        made = [row.output_at_work for row in rows]
        return MemoryParts(
            weights=_part(share, weights, among if sharded.divides_weights else 1),
            gradients=_part(share, gradients, among if sharded.divides_gradients else 1),
            optimizer=_part(share, optimizer, among if sharded.divides_optimizer else 1),
            stash=lent if again else lent + stash,
            working_set=_lying(kind, [row.input_at_work for row in rows], 2 * instance.input_bytes[layer], load)
            + _lying(kind, made, 2 * instance.output_bytes[layer], load)
            + running,
            recomputed=stash if again else 0,
            output_gradients=_lying(kind, made, instance.output_bytes[layer], load) * waits(instance, layer),
        )

    @staticmethod
    def of_stage(instance: Instance, plan: Plan, index: int) -> MemoryParts:
        """Return the parts of the peak on one device of stage ``index`` of a plan.

        ``versions * weights + gradients + optimiser state + in_flight * (stash + received) + largest working
        set``, and of layers that are computed again the stash of one micro-batch. Where a group holds several
        stages, all of them, at the moment at which they keep most together.
        """
        stage, training = plan.stages[index], instance.training
        ranks = training.ranks(len(plan))
        if ranks < len(plan):
            rank = training.rank_of(index, len(plan))
            chunks = [stage_parts(instance, plan.stages[one]) for one in training.stages_of(rank, len(plan))]
            kept = most_kept(training.schedule, ranks, len(chunks), training.micro_batches)[rank]
            return chunks_memory(chunks, kept, stage.group.mode)
        keeps = Keeps.of(instance.training, index, len(plan))
        keeps = keeps if stage.warm_up is None else replace(keeps, in_flight=stage.warm_up)
        return stage_parts(instance, stage).times(keeps, stage.group.mode)


def chunks_memory(chunks: Sequence[MemoryParts], kept: Iterable[Sequence[int]], mode: Mode) -> MemoryParts:
    """Return what a device holds of several stages, given the parts of one micro-batch and version of each.

    ``kept`` are the numbers of micro-batches that it keeps of them at once, at every moment that may be worst;
    with backward passes in halves, behind these the numbers between two halves (``most_kept``). One of the stages
    works at a time, so working sets count once, and with whole backward passes what is computed again.
    """
    each = [one.stash + one.received for one in chunks]
    each += [one.recomputed + one.output_gradients for one in chunks]
    worst = max(kept, key=lambda row: sum(n * size for n, size in zip(row, each, strict=False)))
    between = worst[len(chunks) :]
    return replace(
        MemoryParts.sum(chunks),
        optimizer=0 if mode.optimizer_on_host else sum(one.optimizer for one in chunks),
        stash=sum(n * one.stash for n, one in zip(worst, chunks, strict=False)),
        received=sum(n * one.received for n, one in zip(worst, chunks, strict=False)),
        recomputed=sum(n * one.recomputed for n, one in zip(between, chunks, strict=True))
        if between
        else max(one.recomputed for one in chunks),
        output_gradients=sum(n * one.output_gradients for n, one in zip(between, chunks, strict=False)),
    )


_of_layer = once()(MemoryParts.of_layer)


@once()
def stage_parts(instance: Instance, stage: Stage) -> MemoryParts:
    """Return what one device of a stage holds of its layers: one version of weights, one micro-batch.

    What it received is kept where it is used first: the stash of a layer graph counts a tensor at the first layer
    that keeps it, which may lie before the cut.
    """
    kinds = stage.kinds(kind := GroupKind.of(instance, stage.group))
    layers = dict[int, MemoryParts]()
    for layer, own in kinds.items():
        source = layout_form(instance, stage.span, layer)
        form, copy = 0 if source is None else stage.form(source), instance.copied(layer, stage.span.first)
        layers[layer] = _of_layer(instance, own, instance.alike[layer], form, copy)
    received = received_bytes(instance, kind, stage.span.first)
    parts = MemoryParts.sum((*layers.values(), MemoryParts(received=received)))
    if not stage.again:
        return parts
    parts = replace(parts, stash=parts.stash + _lent(instance, stage, kind))
    if instance.training.schedule.in_halves:  # what any run computed again is there until the second half
        return parts
    runs = [MemoryParts.sum(layers[layer] for layer in run.layers) for run in stage.again]
    others = [layers[layer] for layer in kinds.keys() - {one for run in stage.again for one in run.layers}]
    runs += [replace(one, recomputed=0) for one in others]
    # While a run is computed again and taken back; of equals the part that is computed again.
    worst = max(runs, key=lambda one: (one.recomputed + one.working_set, one.recomputed))
    return replace(
        parts,
        recomputed=worst.recomputed + sum(one.recomputed for one in others),  # of a mode that no rule allows
        working_set=worst.working_set,
    )


def _lent(instance: Instance, stage: Stage, kind: GroupKind) -> int:
    """Return what stays on a device of outputs, as they lie, because of runs that are computed again."""
    found, load = 0, instance.cost.expert_load
    for layer, size in lent_by_runs(instance, stage.span.layers, [run.layers for run in stage.again]).items():
        source, split = layout_form(instance, stage.span, layer), instance.layers[layer].split
        rows = kind.along(0 if source is None else stage.form(source))
        found += _lying(kind, [SHARDINGS[split][one].made for one, _, _ in rows], size, load)
    return found


def received_bytes(instance: Instance, kind: GroupKind, cut: int) -> int:
    """Return what a device of a stage that begins at this cut keeps of what one micro-batch brought it."""
    return _part(kind.shares.rows.device, cut_bytes(instance, cut))


def _lying(kind: GroupKind, layouts: Sequence[str], size_bytes: int, load: Fraction) -> int:
    """Return what the fullest device has of an activation that lies so: all of it where it is not split.

    ``load`` times its share where that are the tokens of experts, and never more than all of its replica. Along
    two axes of a grid fractions multiply.
    """
    if len(layouts) > 1:
        parts = Fullest(load, kind.shares.samples).along(layouts, kind.grid)
        return _part(kind.shares.replica * math.prod(parts), size_bytes)
    if layouts[0] == EXPERTS:
        return _part(min(kind.shares.replica, kind.shares.columns.device * load), size_bytes)
    split = layouts[0] not in (WHOLE, PARTIAL)
    return _part(kind.shares.of(layouts[0]).device if split else kind.shares.replica, size_bytes)


def _part(share: Fraction, size_bytes: int, among: int = 1) -> int:
    """Return a device's share of a tensor in whole bytes, divided once more among some devices.

    Every part of every layer is rounded up here, alone.
    """
    return ceil_div(share.numerator * size_bytes, share.denominator * among)


def capacity_bytes(instance: Instance, group: Group) -> int:
    """Return the memory of the smallest device of a group."""
    return min(instance.servers[server].device_class.memory_bytes for server, _ in group.counts)


def lent_by_runs(instance: Instance, layers: range, runs: Sequence[range]) -> dict[int, int]:
    """Return by layer of a stage what stays of its output because runs of its layers are computed again alone.

    As much as the run needs that reads most of it, other than its own; and what kept layers read of a layer that
    is computed again. Not for readers behind a kept layer that reads it and keeps as much as it reads: it counts
    there. So what stays never falls as a stage gets more layers behind.
    Bytes, undivided; never more than the output. Cost: linear in the edges of the stage.
    """
    run_of = {layer: number for number, run in enumerate(runs) for layer in run}
    read, needed, counted = dict.fromkeys(layers, 0), dict[int, dict[tuple[bool, int], int]](), set[int]()
    edges = into(instance.edges, layers)
    for edge in edges:
        read[edge.consumer] += edge.size_bytes
    for edge in (edge for edge in edges if edge.producer in layers):
        own, reader = run_of.get(edge.producer), run_of.get(edge.consumer)
        if reader is None and instance.stash_bytes[edge.consumer] >= read[edge.consumer]:
            counted.add(edge.producer)
        elif own != reader and edge.producer not in counted:
            sizes = needed.setdefault(edge.producer, {})
            by = (False, edge.consumer) if reader is None else (True, reader)
            sizes[by] = sizes.get(by, 0) + edge.size_bytes
    return {layer: min(instance.output_bytes[layer], max(sizes.values())) for layer, sizes in needed.items()}
