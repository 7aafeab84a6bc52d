"""The tensor-parallel layout of Megatron-LM as forms: column-parallel, then row-parallel, nothing in between.

Megatron splits the first of two matrices by columns (form 2), lets what stands between them work on its columns,
and splits the second by rows (form 1), which sums its output; everything else is whole on every device. In the
layouts of ``formulation.forms`` these are the changes that cost nothing. Source: Shoeybi et al., arXiv 1909.08053,
section 3. Sequence parallelism (norms by rows) is not modelled.
"""

from __future__ import annotations

from formulation.instance import Instance
from formulation.layers import Split
from formulation.plan import Span

COLUMNS, WHOLE, ROWS = 2, 1, 0


def megatron_forms(instance: Instance, span: Span) -> tuple[int, ...]:
    """Return the form of every layer of a stage (FOLLOW layers: 0).

    What crosses the boundary before a stage is whole. A matrix that nothing flows into (an embedding) takes form
    1. A layer that may not take its form takes form 0 if it may, else the first that it may.
    """
    producers: dict[int, list[int]] = {}
    for edge in instance.edges:
        producers.setdefault(edge.consumer, []).append(edge.producer)
    made: dict[int, int] = {}
    for layer in span.layers:
        row = instance.layers[layer]
        taken = [made[one] for one in producers.get(layer, []) if one in made]
        by_columns = COLUMNS in taken
        if row.split is Split.FOLLOW:
            made[layer] = taken[0] if taken else WHOLE
            continue
        if row.split is Split.JOIN:
            wanted = COLUMNS if by_columns else WHOLE
        else:
            wanted = WHOLE if by_columns or layer not in producers else COLUMNS
        fallback = ROWS if ROWS in row.allowed_forms else row.allowed_forms[0]
        made[layer] = wanted if wanted in row.allowed_forms else fallback
    return tuple(0 if instance.layers[layer].split is Split.FOLLOW else made[layer] for layer in span.layers)
