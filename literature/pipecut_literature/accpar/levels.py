"""One training step on a machine that is cut in two again and again, with types chosen anew at every level.

This is the model of HyPar and AccPar as their papers have it; the solvers of the same names keep one type a layer,
since a plan of pipecut does. A layer takes as long as the slower half of it at every level, plus what the halves
exchange; layers follow one another.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

import networkx as nx

from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import FORMS, Layer, Split, layer_graph
from pipecut.formulation.problem.options import CostModel, Samples
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut_literature.accpar.code import MatrixLayer
from pipecut_literature.accpar.published import ARRAY, BATCH, BYTES_PER_ELEMENT
from pipecut_literature.common.halves import Halves, LayerShare, Machine, bisected, moved_bytes, summed_bytes
from pipecut_literature.common.one_stage import BetweenCosts, InsideCosts, least_forms, prefer, rounded, tables_of
from pipecut_literature.one_weird_trick import planner as one_weird_trick

Choose = Callable[[InsideCosts, BetweenCosts], tuple[int, ...]]
"""From the bytes that two halves exchange, by layer and type and by edge and types, to a type for each layer."""


class Planner(enum.StrEnum):
    """Whose types, and whose shares: AccPar's follow the speeds of the halves, the others' are equal."""

    DATA_PARALLEL = "data parallel"
    OWT = "OWT"
    HYPAR = "HyPar"
    ACCPAR_EQUAL = "AccPar, equal shares"
    ACCPAR = "AccPar"


def array(graph: nx.DiGraph, bandwidth: Link, counts: Iterable[tuple[str, int, int]] = ARRAY) -> Instance:
    """Return the training of AccPar's evaluation on an array of (class, devices, FLOP/s), one link everywhere."""
    memory = 1 << 36
    servers = [
        Server(name, DeviceClass(name, memory, speed), devices, bandwidth) for name, devices, speed in counts
    ]
    pairs = [(one.name, other.name, bandwidth) for one, other in itertools.combinations(servers, 2)]
    training = Training(global_batch=BATCH, bytes_per_element=BYTES_PER_ELEMENT)
    return build_instance(
        graph, cluster_graph("array", servers, pairs), training, CostModel(samples=Samples.FRACTIONS)
    )


def chain_graph(name: str, layers: Iterable[MatrixLayer]) -> nx.DiGraph:
    """Return the layer graph of a chain as AccPar's program reads it: matrix layers, outputs after pooling.

    The files do not say how many positions a convolution has before pooling, so its work is that of those after.
    """
    size = BYTES_PER_ELEMENT
    rows = [
        Layer(
            row.name,
            "matrix",
            Split.MATRIX,
            parameter_bytes=size * row.inputs * row.outputs * row.kernel,
            input_bytes=size * row.inputs * row.inputs_map,
            output_bytes=size * row.outputs * row.outputs_map,
            stash_bytes=0,
            macs=row.inputs * row.outputs * row.kernel * row.outputs_map,
        )
        for row in layers
    ]
    edges = [(one.name, other.name, other.input_bytes) for one, other in itertools.pairwise(rows)]
    return layer_graph(name, rows, edges, element_bytes=size)


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Time of one training step in ns, exact, and its part that a device computes."""

    total_ns: Fraction
    compute_ns: Fraction


def step(instance: Instance, planner: Planner) -> TrainingStep:
    """Return the step of a planner's types on the whole array, by the model of the papers.

    Cost: O(devices x (layers + edges)) fractions, far fewer where halves are alike.
    """
    machine = bisected(instance)
    if planner is not Planner.ACCPAR:
        machine = equal_parts(machine)
    walk = _Walk(instance, _chooser(instance, planner))
    times = walk.layers_ns(machine, [LayerShare()] * len(instance.layers), Fraction(1))
    compute = (_computed_ns(instance, machine, layer) for layer in range(len(instance.layers)))
    return TrainingStep(sum(times, Fraction(0)), sum(compute, Fraction(0)))


def _computed_ns(instance: Instance, machine: Machine, layer: int) -> Fraction:
    """Return how long the slowest device of a machine computes a layer that is all the machine's."""
    if not isinstance(machine, Halves):
        whole = instance.forward_ns[machine][layer] + instance.backward_ns[machine][layer]
        return Fraction(whole * instance.training.micro_batches)
    first = machine.part * _computed_ns(instance, machine.first, layer)
    return (
        first if machine.alike else max(first, (1 - machine.part) * _computed_ns(instance, machine.second, layer))
    )


def equal_parts(machine: Machine) -> Machine:
    """Return a machine whose halves get equal work whatever their speeds."""
    if not isinstance(machine, Halves):
        return machine
    first, second = equal_parts(machine.first), equal_parts(machine.second)
    return replace(machine, part=Fraction(1, 2), first=first, second=second)


def _chooser(instance: Instance, planner: Planner) -> Choose:
    if planner is Planner.OWT:
        found = one_weird_trick.solve(instance).plan
        if found is None:
            raise LookupError("one weird trick returned no plan")
        (stage,) = found.stages
        return lambda _inside, _between: stage.forms
    types = {Planner.DATA_PARALLEL: (0,), Planner.HYPAR: (0, 1)}.get(planner, FORMS)
    rows = tuple(layer if layer.split is Split.FOLLOW else prefer(layer, types) for layer in instance.layers)
    tables = tables_of(instance, rows)
    return lambda inside, between: least_forms(tables, inside, between)


class _Walk:
    """Times of all layers on a machine, level by level."""

    def __init__(self, instance: Instance, choose: Choose) -> None:
        self._instance, self._choose = instance, choose

    def layers_ns(self, machine: Machine, shares: list[LayerShare], work: Fraction) -> list[Fraction]:
        """Return the time of every layer on a machine that holds these shares and does a part of the work."""
        instance = self._instance
        if not isinstance(machine, Halves):
            pairs = zip(instance.forward_ns[machine], instance.backward_ns[machine], strict=True)
            return [work * (one + other) * instance.training.micro_batches for one, other in pairs]
        forms = self._types(machine, shares)
        own = self._exchanged_ns(machine, shares, forms)
        first = self._half(machine.first, shares, forms, work, machine.part)
        if machine.alike:
            return [one + more for one, more in zip(own, first, strict=True)]
        second = self._half(machine.second, shares, forms, work, 1 - machine.part)
        return [one + max(pair) for one, *pair in zip(own, first, second, strict=True)]

    def _half(
        self, machine: Machine, shares: list[LayerShare], forms: tuple[int, ...], work: Fraction, part: Fraction
    ) -> list[Fraction]:
        rows = zip(self._instance.layers, shares, self._layouts(forms), strict=True)
        return self.layers_ns(
            machine, [share.split(row.split, form, part) for row, share, form in rows], work * part
        )

    def _layouts(self, forms: tuple[int, ...]) -> list[int]:
        return [0 if source is None else forms[source] for source in self._instance.sources]

    def _types(self, machine: Halves, shares: list[LayerShare]) -> tuple[int, ...]:
        instance = self._instance
        return self._choose(
            *rounded(
                instance,
                lambda layer, form: summed_bytes(instance, layer, form, shares[layer]),
                lambda edge, source, form: moved_bytes(
                    instance, edge, source, form, shares[edge.consumer], machine.part
                ),
            )
        )

    def _exchanged_ns(self, machine: Halves, shares: list[LayerShare], forms: tuple[int, ...]) -> list[Fraction]:
        """Return what two halves exchange for every layer, in ns; changes of layout count for the consumer."""
        instance = self._instance
        amounts = [summed_bytes(instance, at, form, shares[at]) for at, form in enumerate(self._layouts(forms))]
        for edge in instance.form_edges:
            share = shares[edge.consumer]
            source, form = forms[edge.source], forms[edge.consumer]
            amounts[edge.consumer] += moved_bytes(instance, edge, source, form, share, machine.part)
        return [machine.sent_ns(size) for size in amounts]
