"""AccPar (Song et al., HPCA 2020): a type a layer, by dynamic programming over computing and communication.

The cluster is cut in two until every part is one device (:func:`pipecut_literature.common.halves.bisected`),
unequal devices first. For the two halves of a machine a layer of type t after one of type s takes

    T(machine, t, s) = (A(what t sums) + A(what changes its layout from s to t)) / bandwidth
                       + max( T(first, t, s), T(second, t, s) )

on the halves' own shares of the tensors, and its computing time on what its share leaves to a single device. The
types with the least sum over all layers are found by dynamic programming over the types, as in the paper; where
that treats a block between a fork and a join as one step with 3 x 3 costs, the search here keeps the types of all
layers still looked at (:mod:`solvers.reference.algorithm_1`), which is exact for any graph.

Where this differs from the paper. Types: AccPar chooses them anew at each level of the hierarchy; a plan of
pipecut has one form a layer, so a type is kept at all levels and their costs add up. The ratio is to let both
halves finish together. Here they share one link, so what a layer sums takes both the same time, and the ratio is
that of their speeds; the change of layout is not balanced. Pipecut shares a stage equally among its devices, so
the ratio is believed here and then lost: the evaluator prices equal shares, at the pace of the slowest class.
Latency is not seen.
"""

from __future__ import annotations

from fractions import Fraction

from pipecut.formulation.costs.amounts import exact_duration, plural
from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FormEdge
from pipecut.solvers.search.stoppable import stoppable
from pipecut_literature.common import one_stage
from pipecut_literature.common.halves import Halves, LayerShare, Machine, bisected, moved_bytes, summed_bytes
from pipecut_literature.common.one_stage import BetweenCosts, InsideCosts, rounded

NAME = "accpar"


@stoppable(NAME)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return AccPar's plan with one type a layer, priced by the evaluator (proof FEASIBLE).

    UNKNOWN if stopped. Cost: O(devices x (layers + form edges)) exact fractions, O(log devices) of them for
    equal devices in powers of two, and one run of :func:`solvers.reference.algorithm_1.best_forms`.
    """
    inside, between = costs(instance, begin(limits).deadline)
    forms = one_stage.least_forms(one_stage.tables_of(instance, instance.layers), inside, between)
    believed = one_stage.sum_of_costs(instance, forms, inside, between)
    machine = bisected(instance)
    many = instance.training.micro_batches
    notes = [f"AccPar expects {exact_duration(believed)} for one step of {many} micro-{plural(many, 'batch')}"]
    if isinstance(machine, Halves) and not machine.alike:
        part = float(machine.part)
        notes.append(f"AccPar gives {part:.1%} of the work to the first half of the cluster; priced: equal shares")
    return one_stage.in_forms(NAME, instance, forms, tuple(notes))


def costs(instance: Instance, deadline: Deadline = NEVER) -> tuple[InsideCosts, BetweenCosts]:
    """Return AccPar's own costs of one step in ns, rounded up once each.

    By layer and form: computing and the sums inside the layer. By form edge and forms: the change of layout.
    """
    machine = bisected(instance)

    def inside(layer: int, form: int) -> Fraction:
        return _layer_ns(instance, machine, layer, form, LayerShare(), Fraction(1))

    def between(edge: FormEdge, source: int, form: int) -> Fraction:
        return _edge_ns(instance, machine, edge, source, form, LayerShare())

    return rounded(instance, inside, between, deadline)


def _layer_ns(
    instance: Instance, machine: Machine, layer: int, form: int, share: LayerShare, work: Fraction
) -> Fraction:
    """Time of a layer on a machine that holds a share of its tensors and does a part of its work."""
    if not isinstance(machine, Halves):
        whole = instance.forward_ns[machine][layer] + instance.backward_ns[machine][layer]
        return work * whole * instance.training.micro_batches
    split, part = instance.layers[layer].split, machine.part
    own = machine.sent_ns(summed_bytes(instance, layer, form, share))
    first = _layer_ns(instance, machine.first, layer, form, share.split(split, form, part), work * part)
    if machine.alike:
        return own + first
    rest = 1 - part
    second = _layer_ns(instance, machine.second, layer, form, share.split(split, form, rest), work * rest)
    return own + max(first, second)


def _edge_ns(
    instance: Instance, machine: Machine, edge: FormEdge, source: int, form: int, share: LayerShare
) -> Fraction:
    """Time of a change of layout on a machine that holds a share of the consumer's tensors."""
    if not isinstance(machine, Halves):
        return Fraction(0)
    split, part = instance.layers[edge.consumer].split, machine.part
    own = machine.sent_ns(moved_bytes(instance, edge, source, form, share, part))
    first = _edge_ns(instance, machine.first, edge, source, form, share.split(split, form, part))
    if machine.alike:
        return own + first
    second = _edge_ns(instance, machine.second, edge, source, form, share.split(split, form, 1 - part))
    return own + max(first, second)
