"""One weird trick (Krizhevsky, arXiv 1404.5997): data-parallel convolutions, model-parallel linear layers.

Convolutions hold few of the weights and most of the work, so every device takes them whole on a part of the batch
(form 0). Fully connected layers hold most of the weights: every device computes a part of the outputs from the
whole input, as in the paper, where the devices assemble the last convolution's activations and each trains a
subset of the neurons (form 2). One stage on all devices; no search.

A layer graph does not say which layer is which, but the work does: a fully connected layer uses each weight once
for each sample, a convolution once for each position of its output. So a matrix layer with as many
multiply-accumulates as weights, or fewer, is fully connected here; a linear layer that is applied to every token
of a sequence is not.
"""

from __future__ import annotations

import time

from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer, Split
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.reference.algorithm_1 import best_forms
from pipecut_literature.common.one_stage import in_forms, prefer, tables_of

NAME = "one_weird_trick"

CONVOLUTION, FULLY_CONNECTED = ((0,),), ((2,), (1,))
"""The forms of each kind of layer; where a layer may not take the first, the next, and else any of its own."""


def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return the plan with forms 0 and 2 as above, priced by the evaluator (proof FEASIBLE).

    Layers that may take neither, and layers that only bring tensors together, take of their own forms those with
    the least communication. ``limits`` do not bind. Cost: one run of
    :func:`solvers.reference.algorithm_1.best_forms`.
    """
    start = time.perf_counter()
    element_bytes = instance.model.element_bytes
    rows = tuple(_narrowed(layer, element_bytes) for layer in instance.layers)
    forms = best_forms(tables_of(instance, rows), 0, Span(0, len(rows)))
    found = sum(fully_connected(layer, element_bytes) for layer in instance.layers)
    total = sum(layer.split is Split.MATRIX for layer in instance.layers)
    return in_forms(NAME, instance, forms, (f"{found} of {total} matrix layers are fully connected",), start)


def fully_connected(layer: Layer, element_bytes: int) -> bool:
    """Tell whether a matrix layer uses its weights at most once a sample (``element_bytes`` each in the graph)."""
    return layer.split is Split.MATRIX and layer.macs * element_bytes <= layer.parameter_bytes


def _narrowed(layer: Layer, element_bytes: int) -> Layer:
    if layer.split is not Split.MATRIX:
        return layer
    for forms in FULLY_CONNECTED if fully_connected(layer, element_bytes) else CONVOLUTION:
        narrowed = prefer(layer, forms)
        if narrowed.allowed_forms == forms:
            return narrowed
    return layer
