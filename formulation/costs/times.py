"""The time formulas, one layer or one boundary at a time, in ns of one micro-batch (PipePar eqs. 3 and 4).

This is the specification. Solvers read the same numbers from tables (``formulation.costs.tables``) that are built
in bulk by other code; a test compares the two cell by cell.
"""

from __future__ import annotations

from fractions import Fraction

from formulation.costs import forms
from formulation.problem.groups import GroupKind
from formulation.problem.instance import FormEdge, Instance
from formulation.problem.layers import Split
from formulation.problem.options import Boundary, Synchronisation
from formulation.problem.plan import Span
from formulation.problem.units import Link, Volume, ceil_div, ceil_fraction

__all__ = ["compute_ns", "cut_bytes"]


def compute_ns(instance: Instance, layer: int, kind: GroupKind) -> int:
    """Forward plus backward time of a layer shared by a group; its slowest class sets the pace (eq. 3).

    A stage that recomputes runs the forward pass twice.
    """
    forwards = 1 + kind.recompute
    return max(
        forwards * ceil_fraction(instance.forward_ns[one][layer] * share)
        + ceil_fraction(instance.backward_ns[one][layer] * share)
        for one, share in zip(kind.classes, kind.shares.by_class, strict=True)
    )


def inside_ns(instance: Instance, layer: int, form: int, kind: GroupKind) -> int:
    """Communication inside a layer of this form for one micro-batch.

    Gradients are summed once a step: 1/M of that per micro-batch, or nothing where it is overlapped.
    """
    sync = 0
    if instance.cost.synchronisation is Synchronisation.CHARGED:
        sync = ceil_div(synchronisation_ns(instance, layer, form, kind), instance.training.micro_batches)
    return passes_ns(instance, layer, form, kind) + sync


def synchronisation_ns(instance: Instance, layer: int, form: int, kind: GroupKind) -> int:
    """Time to sum the gradients of a layer's weights over the devices that hold the same ones, once a step."""
    if kind.link is None:
        return 0
    volume = forms.synchronised(
        instance.layers[layer].split,
        form,
        kind.tensor_parallel_degree,
        kind.replicas,
        weights_bytes=instance.gradient_bytes[layer],
        shard=kind.shares.shard,
        kind=instance.cost.all_reduce,
    )
    return volume.transfer_ns(kind.link)


def passes_ns(instance: Instance, layer: int, form: int, kind: GroupKind) -> int:
    """Communication inside a layer in the passes of one micro-batch: form 1 forward, form 2 backward."""
    if kind.inner is None:
        return 0
    sizes = (
        instance.output_bytes[layer] * kind.shares.replica,
        instance.input_bytes[layer] * kind.shares.replica,
    )
    split, degree = instance.layers[layer].split, kind.tensor_parallel_degree
    volume = forms.inside(split, form, degree, sizes=sizes, kind=instance.cost.all_reduce)
    return volume.transfer_ns(kind.inner) * (1 + kind.recompute * (form == 1))


def between_ns(instance: Instance, edge: FormEdge, source: int, form: int, kind: GroupKind) -> int:
    """Communication to change a layout from form ``source`` to ``form`` at an edge inside a stage."""
    if kind.inner is None:
        return 0
    consumer = instance.layers[edge.consumer].split
    parts = (edge.size_bytes * kind.shares.gather, edge.size_bytes * kind.shares.turn)
    degree = kind.tensor_parallel_degree
    volume = forms.between(consumer, source, form, degree, parts=parts, forwards=1 + kind.recompute)
    return volume.transfer_ns(kind.inner)


def layout_form(instance: Instance, span: Span, layer: int) -> int | None:
    """Return the layer of this stage whose form is the layout of ``layer``; None if it came over a boundary."""
    source = instance.sources[layer]
    return source if source is not None and source in span else None


def cut_bytes(instance: Instance, cut: int) -> int:
    """Bytes of activations that cross a cut point (the index of the first layer after it), one way.

    Every tensor that is made before and used after the cut crosses it, also when it skips stages, and crosses
    it once however many layers use it: what a producer sends is at most its whole output.
    """
    sent: dict[int, int] = {}
    for edge in instance.edges:
        if edge.producer < cut <= edge.consumer:
            sent[edge.producer] = sent.get(edge.producer, 0) + edge.size_bytes
    return sum(min(size, instance.output_bytes[producer]) for producer, size in sent.items())


def activation_ns(instance: Instance, cut: int, link: Link | None) -> int:
    """Time of the activations that cross ``cut`` forward; 0 where they are not charged, or stay on a device."""
    if link is None or instance.cost.boundary is Boundary.NONE:
        return 0
    return Volume(Fraction(cut_bytes(instance, cut)), 1).transfer_ns(link)


def gradient_ns(instance: Instance, cut: int, link: Link | None) -> int:
    """Time of the gradients that cross ``cut`` backward; 0 where they are not charged, or stay on a device."""
    if link is None or instance.cost.boundary is not Boundary.BOTH:
        return 0
    return Volume(Fraction(cut_bytes(instance, cut)), 1).transfer_ns(link)


def is_matrix(instance: Instance, layer: int) -> bool:
    """Tell whether a layer multiplies by a weight matrix, so that its form shards its weights."""
    return instance.layers[layer].split is Split.MATRIX
