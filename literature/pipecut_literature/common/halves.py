"""Two halves of a machine, again and again: how HyPar and AccPar see a layer and a cluster.

A type (pipecut's form) says which dimension of a layer two halves split. With ``a`` the part of one half:

====  =====================  =====================  ==========================
form  input, weights, output  both halves sum        the tensor between layers
====  =====================  =====================  ==========================
0     a, 1, a                gradient of weights     by rows
1     a, a, 1                output                  taken by columns, made whole
2     1, a, a                gradient of input       taken whole, made by columns
====  =====================  =====================  ==========================

A sum moves the whole tensor; a change between rows and columns ``a (1 - a)`` of it and a change to whole the part
of the other half, forward and backward (AccPar Tables 4 and 5; HyPar Tables 1 and 2 are their forms 0 and 1).
What a half holds is split again at the next level. Layers that are no matrix products have no types in the papers;
they keep one layout, and sum only weights, which all devices hold where the layout is rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction

from pipecut.formulation.costs.forms import SHARDINGS, WHOLE
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FormEdge, Split
from pipecut.formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link

_ONE = Fraction(1)


@dataclass(frozen=True, slots=True)
class LayerShare:
    """What a half holds of a layer: parts of its input, its weights and its output."""

    taken: Fraction = _ONE
    weights: Fraction = _ONE
    made: Fraction = _ONE

    def split(self, split: Split, form: int, part: Fraction) -> LayerShare:
        """Return what is left to a half that takes ``part`` of this share."""
        if split is Split.MATRIX:
            taken, weights, made = ((part, _ONE, part), (part, part, _ONE), (_ONE, part, part))[form]
        else:
            taken, weights, made = ((part, _ONE, part), (_ONE, _ONE, _ONE), (part, part, part))[form]
        return LayerShare(self.taken * taken, self.weights * weights, self.made * made)


def summed_bytes(instance: Instance, layer: int, form: int, share: LayerShare) -> Fraction:
    """Bytes of the partial sums that two halves of a share exchange, for one step of training.

    Activations count for all micro-batches of the step, weights once.
    """
    weights, batches = instance.gradient_bytes[layer] * share.weights, instance.training.micro_batches
    if instance.layers[layer].split is not Split.MATRIX:
        return weights if form == 0 else Fraction(0)
    made = instance.output_bytes[layer] * share.made * batches
    return (weights, made, instance.input_bytes[layer] * share.taken * batches)[form]


def moved_bytes(
    instance: Instance, edge: FormEdge, source: int, form: int, share: LayerShare, part: Fraction
) -> Fraction:
    """Bytes that the half with more to fetch moves at a form edge, forward and backward, for one step.

    ``share`` is that of the consumer, ``part`` the part of one of the halves.
    """
    split = instance.layers[edge.consumer].split
    have, wanted = SHARDINGS[Split.MATRIX][source].made, SHARDINGS[split][form].takes
    moved = _fetched(have, wanted, part) + _fetched(wanted, have, part)
    return edge.size_bytes * instance.training.micro_batches * share.taken * moved


def _fetched(have: str, want: str, part: Fraction) -> Fraction:
    if have in (want, WHOLE):
        return Fraction(0)
    return max(part, 1 - part) if want == WHOLE else part * (1 - part)


@dataclass(frozen=True)
class Halves:
    """A machine cut in two: the first half has ``part`` of the speed, and ``link`` is the slowest between them."""

    part: Fraction
    link: Link
    first: Machine
    second: Machine

    def sent_ns(self, size_bytes: Fraction) -> Fraction:
        """Return how long so many bytes take between the halves, in ns."""
        return size_bytes * BITS_PER_BYTE * NS_PER_SECOND / self.link.bits_per_second

    @functools.cached_property
    def alike(self) -> bool:
        """Tell whether the halves are equal, so that one stands for both."""
        return self.part == Fraction(1, 2) and self.first == self.second


Machine = Halves | int
"""A machine of several devices, or the device class of one (its index in the instance)."""


def bisected(instance: Instance) -> Machine:
    """Cut the cluster in two until every part is one device.

    Device classes are parted first (AccPar: TPU-v2 from TPU-v3), then servers, then the devices of a server, each
    in line order and as evenly as their number allows.
    """
    return _bisected(instance, tuple((at, server.devices) for at, server in enumerate(instance.servers)))


_Counts = tuple[tuple[int, int], ...]


def _bisected(instance: Instance, counts: _Counts) -> Machine:
    if sum(count for _, count in counts) == 1:
        return instance.class_index(next(iter(counts))[0])
    one, other = _parted(instance, counts)
    link = Group.link_between(instance, Group(one), Group(other))
    if link is None:
        raise ValueError(f"no link between devices {one} and {other} (server index, count)")
    speed = _flops_per_second(instance, one)
    part = Fraction(speed, speed + _flops_per_second(instance, other))
    return Halves(part, link, _bisected(instance, one), _bisected(instance, other))


def _parted(instance: Instance, counts: _Counts) -> tuple[_Counts, _Counts]:
    classes = list(dict.fromkeys(instance.class_index(server) for server, _ in counts))
    if len(classes) > 1:
        early = classes[: len(classes) // 2]
        one = tuple(row for row in counts if instance.class_index(row[0]) in early)
        return one, tuple(row for row in counts if row not in one)
    if len(counts) > 1:
        middle = len(counts) // 2
        return counts[:middle], counts[middle:]
    server, count = next(iter(counts))
    return ((server, count - count // 2),), ((server, count // 2),)


def _flops_per_second(instance: Instance, counts: _Counts) -> int:
    return sum(instance.servers[server].device_class.flops_per_second * count for server, count in counts)
