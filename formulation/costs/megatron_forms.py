"""The tensor-parallel layout of Megatron-LM as forms: a matrix by columns, the next one by rows.

Source: Shoeybi et al., arXiv 1909.08053, section 3. Of two matrices with nothing but element-wise work between
them the first is split by columns, so that what stands between works on its own columns and nothing is sent; the
second is split by rows, takes these columns as they are, and one all-reduce sums its output. In the forms of the
formulation (``formulation.costs.forms``) that is form 2, which takes its input whole and makes columns, and then
form 1, which takes columns and makes its output whole: a chain of two matrices has forms (2, 1). The other way
round, (1, 2), sums what is between the two, which may be large, and leaves an output that nobody summed.

The two ends follow the same section. An embedding is split along the vocabulary, its input dimension, and summed:
form 1. The last matrix of a model is split along the vocabulary too, its output dimension now, and the loss is
computed on columns, so that the scores are never gathered: form 2, and form 7 of the loss where it may take that.
With sequence parallelism (Korthikanti et al., arXiv 2205.05198) the same matrices have forms 4 and 3, and what is
whole elsewhere lies by rows; :func:`as_megatron` knows both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import PAIRS, Split
from pipecut.formulation.problem.plan import Plan, Span, Stage

BY_ROWS_OF_DATA, SUMMED, COLUMNS = 0, 1, 2
"""Forms by the layout of what they make: rows of the batch, whole after a sum, columns."""
SUMMED_TO_ROWS, OF_ROWS, OF_VOCABULARY = 3, 4, 7
"""The first two are summed and columns with sequence parallelism; the last is that of a loss on columns."""
OF_TOKENS = (0, 5)
"""Forms by samples, and attention by parts of the sequence."""


def megatron_forms(instance: Instance, span: Span) -> tuple[int, ...]:
    """Return the forms of a tensor-parallel stage, one per layer (FOLLOW layers: 0).

    A matrix is split by columns if all that it makes ends in matrices of the stage that can sum, through layers
    that can work on columns; or if nothing of it goes anywhere, and something flows into it: the end of the model.
    Any other one sums its output, also where its partner lies behind the end of the stage. Joins keep columns
    between a pair, and are whole elsewhere. A layer that may not take its form works on rows of the batch (form 0)
    if it may, else in the first form that it may take. Cost: linear in layers and edges.
    """
    by_columns = _split_by_columns(instance, span)
    taken = _producers(instance, span)
    made_columns: set[int] = set()
    forms = dict.fromkeys(span.layers, 0)
    for layer in span.layers:
        row = instance.layers[layer]
        fed = any(one in made_columns for one in taken[layer])
        columns = fed if row.split is not Split.MATRIX else layer in by_columns and not fed
        if columns and OF_VOCABULARY in row.allowed_forms:
            forms[layer], columns = OF_VOCABULARY, False
        elif row.split is not Split.FOLLOW:
            forms[layer] = _allowed(row.allowed_forms, COLUMNS if columns else SUMMED)
            columns = forms[layer] == COLUMNS
        if columns:
            made_columns.add(layer)
    return tuple(forms.values())


def forms_in(instance: Instance, spans: Iterable[Span], *, sequence: bool) -> tuple[int, ...]:
    """Return the forms of all layers of a model whose pairs of matrices lie inside runs of layers.

    ``spans`` are these runs, all of them. With ``sequence`` parallelism what is summed is left in rows, and what
    lies whole elsewhere lies in rows.
    """
    forms = [form for span in spans for form in megatron_forms(instance, span)]
    if not sequence:
        return tuple(forms)
    return tuple(
        _in_sequence(row.split, row.allowed_forms, form) for row, form in zip(instance.layers, forms, strict=True)
    )


def _in_sequence(split: Split, allowed: tuple[int, ...], form: int) -> int:
    if split is Split.MATRIX:
        return {SUMMED: SUMMED_TO_ROWS, COLUMNS: OF_ROWS}.get(form, form)
    return BY_ROWS_OF_DATA if form == SUMMED and BY_ROWS_OF_DATA in allowed else form


def as_megatron(instance: Instance, plan: Plan) -> str:
    """Say that all stages of a plan that split their layers do it as Megatron-LM does; nothing if they do not.

    With sequence parallelism it is enough that matrices are split so, by columns and then summed, where norms,
    dropouts and additions between the pairs lie by rows or whole. In a grid devices in a row do so, and different
    rows have samples or parts of the sequence of their own.
    """
    divided = [_in_rows(stage) for stage in plan.stages if stage.group.tensor_parallel_degree > 1]
    forms = [(stage, megatron_forms(instance, stage.span)) for stage in divided]
    grids = any(stage.group.mode.grid > 1 for stage in divided)
    beside = ", in rows of a grid with samples or parts of the sequence across" * grids
    if not divided:
        return ""
    if all(stage.forms == own for stage, own in forms):
        return f"layers are split as Megatron-LM splits them: matrices by columns, then summed{beside}"
    if all(_with_rows(instance, stage, own) for stage, own in forms):
        return f"layers are split as Megatron-LM splits them with sequence parallelism{beside}"
    return ""


def _in_rows(stage: Stage) -> Stage:
    """Return a stage with the forms of layers inside the rows of a grid, where rows have tokens of their own."""
    rows = {number: one for number, (one, other) in PAIRS.items() if other in OF_TOKENS}
    return replace(stage, forms=tuple(rows.get(form, form) for form in stage.forms))


def _with_rows(instance: Instance, stage: Stage, own: tuple[int, ...]) -> bool:
    for layer, form, wanted in zip(stage.span.layers, stage.forms, own, strict=True):
        plain = {SUMMED_TO_ROWS: SUMMED, OF_ROWS: COLUMNS}.get(form, form)
        between = instance.layers[layer].split is Split.JOIN and {plain, wanted} == {BY_ROWS_OF_DATA, SUMMED}
        if plain != wanted and not between:
            return False
    return bool({SUMMED_TO_ROWS, OF_ROWS}.intersection(stage.forms))


def _allowed(allowed: tuple[int, ...], wanted: int) -> int:
    if wanted in allowed:
        return wanted
    return BY_ROWS_OF_DATA if BY_ROWS_OF_DATA in allowed else allowed[0]


def _split_by_columns(instance: Instance, span: Span) -> set[int]:
    """Return the matrices that are first of a pair, whatever flows into them, and the end of the model."""
    consumers: dict[int, list[int]] = {}
    for edge in instance.edges:
        consumers.setdefault(edge.producer, []).append(edge.consumer)
    fed = {edge.consumer for edge in instance.edges}
    ends_well: dict[int, bool] = {}
    found: set[int] = set()
    for layer in reversed(span.layers):
        row = instance.layers[layer]
        after = consumers.get(layer, [])
        closed = bool(after) and all(one in span and ends_well[one] for one in after)
        matrix, columns = row.split is Split.MATRIX, COLUMNS in row.allowed_forms
        if matrix and columns and (closed or (not after and layer in fed)):
            found.add(layer)
        passes = row.split is Split.FOLLOW or columns
        ends_well[layer] = SUMMED in row.allowed_forms if matrix else closed and passes
        ends_well[layer] |= OF_VOCABULARY in row.allowed_forms
    return found


def _producers(instance: Instance, span: Span) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {layer: [] for layer in span.layers}
    for edge in instance.edges:
        if edge.consumer in span and edge.producer in span:
            found[edge.consumer].append(edge.producer)
    return found
