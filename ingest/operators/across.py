"""What operators do across rows or columns: products of activations, experts, and losses over a vocabulary.

It says which further ways there are to split a layer (``formulation.problem.layers``). Bytes are those of
the whole example batch, as everywhere among operators.
"""

from __future__ import annotations

import math

from pipecut.formulation.problem.layers import Across, Axis
from pipecut.ingest.operators.columns import Find
from pipecut.ingest.operators.operations import Operation
from pipecut.ingest.operators.products import factors, is_product

BY_EXPERTS = ("_grouped_mm", "transformers::grouped_mm_fallback")
"""Products of tokens that are sorted by expert with the weights of all experts."""
NUMBER_BYTES = 4
"""A loss adds up in 32 bits."""


def across(operation: Operation, find: Find) -> Across | None:
    """Return what an operator does across rows or columns, or None.

    A product of activations, attention among them, needs the rows of all but its first factor; its heads are the
    columns that its factors have in common, so of grouped queries those of keys and values.
    """
    pair = factors(operation)
    if operation.name in BY_EXPERTS and pair is not None:
        return Across(Axis.EXPERTS, pair[1].shape[0])
    if is_product(operation):
        names = ("query", "key", "value")
        parts = [operation.tensor(name) for name in names] if pair is None else list(pair)
        heads = [find(part) for part in parts]
        # Keys and values that were repeated for their queries are sent once.
        sent = [part.total_bytes // (one.minor if one else 1) for part, one in zip(parts, heads, strict=True)]
        return Across(Axis.CONTEXT, math.gcd(*(one.count for one in heads if one)), sum(sent[1:]))
    if operation.name == "cross_entropy_loss":
        scores = operation.operands[0]
        classes = scores.shape[1 if scores.rank > 1 else 0]
        return Across(Axis.VOCABULARY, sent_bytes=NUMBER_BYTES * (scores.elements // max(1, classes)))
    return None
