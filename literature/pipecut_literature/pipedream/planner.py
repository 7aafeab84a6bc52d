"""PipeDream's optimiser (SOSP 2019) on an instance: as the paper states it, and as its program computes it.

The recurrences are those of :mod:`pipecut_literature.pipedream.paper` and
:mod:`pipecut_literature.pipedream.code`, which reproduce published results in a model of their own; here an
instance is put into that model and the plan back.

- *Minibatch*: PipeDream sums gradients once a minibatch, pipecut once a step, so a minibatch is the global batch.
  What it believes is divided by the micro-batches again.
- *Layers*: forward and backward time on the slowest class of device, in seconds; the paper's version takes what
  crosses each cut of the execution order. The program walks the graph itself and counts bytes too high where
  several layers are open at once; of the downsets that it finds those are kept that are a prefix of the execution
  order, as no other can be cut there. A layer without a producer is tied to the one before it, because the program
  follows the first source only and would lose it. Transfers are charged (``--activation_compression_ratio 1``).
- *Levels*: devices of a server, then servers, each with the slowest link of its level (its latency is not seen),
  if servers have equally many devices; else one level of all devices over the slowest link of the cluster.
- *Plan*: replicas share the micro-batches of a stage, which is form 0 on several devices (or as many replicas of
  one device, if the instance names 1 among its tensor-parallel degrees). A pipeline inside a server that several
  servers repeat becomes one pipeline, whose stages have the devices of all repetitions. Stages take the next
  devices of the line. Layers that may not take form 0 take the forms that move least.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pipecut.formulation.costs.bulk.crossing import crossing_bytes
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link, slowest
from pipecut.solvers.reference import flat_cluster
from pipecut.solvers.reference.algorithm_1 import best_forms
from pipecut.solvers.search.stoppable import stoppable
from pipecut.solvers.search.support import Support, blind_to
from pipecut_literature.common.priced import in_rows, priced
from pipecut_literature.pipedream import code as pipedream_code
from pipecut_literature.pipedream import paper as pipedream_paper
from pipecut_literature.pipedream.code import MachineLevel, PipeDreamStage
from pipecut_literature.pipedream.paper import LayerRow
from pipecut_literature.pipedream.profile import ProfiledLayer, ProfiledModel
from pipecut_literature.pipedream.states import States, antichain_states

NAME, NAME_OF_CODE = "pipedream", "pipedream_code"
MOST_STATES = 4_000
"""Antichains of the layer graph that the program's version walks; it keeps all pairs of them."""
MOST_STEPS = 10**11
"""Steps of a recurrence that are still begun: some minutes."""


def accepts(instance: Instance) -> Support:
    """Say what the paper's recurrence makes of an instance (``solvers.search.support``)."""
    return _within(instance, sum(level.machines**2 for level in levels_of(instance)) * len(instance.layers) ** 3)


def accepts_code(instance: Instance) -> Support:
    """Say what the program makes of an instance (``solvers.search.support``); its antichains are not counted."""
    *below, top = (level.machines**2 * len(instance.layers) ** 2 for level in levels_of(instance))
    return _within(instance, sum(below) * len(instance.layers) + top)


def _within(instance: Instance, steps: int) -> Support:
    support = blind_to("memory", "devices")(instance)
    if steps <= MOST_STEPS:
        return support
    reason = f"PipeDream's recurrence would take {steps:.2g} steps, more than {MOST_STEPS:.2g}; merge layers"
    return replace(support, reason=reason)


@stoppable(NAME)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return the plan of the paper's recurrence, priced by the evaluator (proof FEASIBLE).

    UNKNOWN if stopped. Raises ValueError where the recurrence would take more than MOST_STEPS.
    Cost: that of :func:`pipecut_literature.pipedream.paper.optimise`.
    """
    levels = levels_of(instance)
    accepts(instance).refuse()
    deadline = begin(limits).deadline
    plan = pipedream_paper.optimise(row_of(instance), levels, deadline)
    spans = ((Span(first, stop), devices) for first, stop, devices in _flattened(plan.stages))
    return _outcome(NAME, instance, list(spans), plan.period_s)


@stoppable(NAME_OF_CODE)
def solve_code(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return the plan of the program, priced by the evaluator (proof FEASIBLE).

    UNKNOWN if stopped. Raises ValueError for a layer graph with more than MOST_STATES antichains, and where
    the recurrence would take more than MOST_STEPS.
    Cost: that of :func:`pipecut_literature.pipedream.code.optimise_states`.
    """
    levels = levels_of(instance)
    accepts_code(instance).refuse()
    deadline = begin(limits).deadline
    states = prefixes(antichain_states(profile_of(instance), MOST_STATES))
    plan = pipedream_code.optimise_states(states, levels, deadline=deadline)
    ends = [0, *(mask.bit_count() for mask in states.layers)]
    spans = ((Span(ends[first], ends[stop]), devices) for first, stop, devices in _flattened(plan.stages))
    return _outcome(NAME_OF_CODE, instance, list(spans), plan.period_s)


def levels_of(instance: Instance) -> tuple[MachineLevel, ...]:
    """Return the cluster as PipeDream sees it, lowest level first."""
    inside = {server.devices for server in instance.servers}
    if len(inside) > 1 or len(instance.servers) == 1 or inside == {1}:
        return (_level(instance.devices, flat_cluster.slowest_link(instance)),)
    links = enumerate(instance.links)
    between = [link for one, row in links for other, link in enumerate(row) if one != other and link is not None]
    local = [server.link for server in instance.servers if server.link is not None]
    return _level(inside.pop(), slowest(tuple(local))), _level(len(instance.servers), slowest(tuple(between)))


def row_of(instance: Instance) -> LayerRow:
    """Return the layers of an instance in execution order, with what crosses each cut, for one global batch."""
    steps = instance.training.micro_batches
    return LayerRow(
        tuple(layer.name for layer in instance.layers),
        tuple(cost * steps / NS_PER_SECOND for cost in _costs(instance)),
        instance.parameter_bytes,
        (*(size * steps for size in crossing_bytes(instance)[1:-1]), 0),
    )


def profile_of(instance: Instance) -> ProfiledModel:
    """Return the layer graph as a profile of one global batch, every layer reached from the first one.

    What PipeDream calls an input or an unused output is planned here, as every layer of an instance is, so
    descriptions hold no operator.
    """
    steps = instance.training.micro_batches
    rows = zip(instance.layers, _costs(instance), instance.output_bytes, instance.parameter_bytes, strict=True)
    layers = tuple(
        ProfiledLayer(layer.name, "", cost * steps, 0, output * steps, weights)
        for layer, cost, output, weights in rows
    )
    edges = {(edge.producer, edge.consumer) for edge in instance.edges}
    fed = {consumer for _, consumer in edges}
    edges |= {(layer - 1, layer) for layer in range(1, len(layers)) if layer not in fed}
    return ProfiledModel(layers, tuple(sorted(edges)))


def prefixes(states: States) -> States:
    """Return those states whose layers are the first ones of the execution order."""
    kept = [place for place, mask in enumerate(states.layers) if mask & mask + 1 == 0]
    return replace(
        states,
        layers=tuple(states.layers[place] for place in kept),
        compute_s=states.compute_s[kept],
        weight_bytes=states.weight_bytes[kept],
        stash_bytes=states.stash_bytes[kept],
        output_bytes=states.output_bytes[kept],
        before=states.before[np.ix_(kept, kept)],
    )


def _costs(instance: Instance) -> list[int]:
    """Return forward plus backward of each layer on one device of the slowest class, in ns of a micro-batch."""
    return [int(cost) for cost in flat_cluster.flat_view(instance, 1, None).tables.compute[0]]


def _level(machines: int, link: Link | None) -> MachineLevel:
    """Return one level; a single machine has no link, and its bandwidth is never used."""
    return MachineLevel(machines, link.bits_per_second / BITS_PER_BYTE if link is not None else 1.0)


def _flattened(stages: Sequence[PipeDreamStage], copies: int = 1) -> Iterator[tuple[int, int, int]]:
    """Yield (first, stop, devices) of the innermost stages, with the devices of all their copies."""
    for stage in stages:
        if stage.inner:
            yield from _flattened(stage.inner, copies * stage.replicas)
        else:
            yield stage.first, stage.stop, copies * stage.replicas


def _outcome(name: str, instance: Instance, stages: list[tuple[Span, int]], period_s: float) -> Outcome:
    """Lay replicated stages on the line and price them."""
    believed = "the recurrence expects", round(period_s * NS_PER_SECOND / instance.training.micro_batches)
    notes = (flat_cluster.levels_in_words(len(levels_of(instance))),)
    return priced(name, instance, replicated_on_line(instance, stages), accepts, notes, believed=believed)


def replicated_on_line(instance: Instance, stages: Sequence[tuple[Span, int]]) -> Plan:
    """Return stages (layers, devices) on the next devices of the line, every layer in form 0 where it may be."""
    starts = itertools.accumulate((devices for _, devices in stages), initial=0)
    copies = 1 in instance.constraints.tensor_parallel_degrees
    groups = tuple(
        Group.on_line(instance, first, devices, Mode(devices if copies else 1))
        for first, (_, devices) in zip(starts, stages, strict=False)
    )
    tables = build_tables(in_rows(instance), groups)
    flat_cluster.refuse_without_forms(tables)
    return Plan(
        tuple(
            Stage(span, group, best_forms(tables, kind, span))
            for (span, _), group, kind in zip(stages, groups, tables.kind_of, strict=True)
        )
    )
