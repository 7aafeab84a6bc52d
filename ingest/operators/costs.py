"""The table of known operators: what each keeps for the backward pass, how it treats columns, what it multiplies.

An operator that is not in the table counts as the bytes that it reads and writes, and is named in a note, never a
silent zero. To teach pipecut a new one, add its name to the family it belongs to, or give it rules where a model
is read (``model.operators`` of a scenario). Names are aten names without overload and without the underscore of
in-place versions.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipecut.ingest.operators import columns, products, stash
from pipecut.ingest.operators import products as macs
from pipecut.ingest.operators.operations import Operation


@dataclass(frozen=True, slots=True)
class Operator:
    """The rules of one operator: bytes kept for the backward pass, columns, multiply-accumulates.

    ``is_view`` marks operators that only rearrange or relabel; a layer is not named after them if it can be
    named after something else. ``rows_only``: devices can share its work by samples only.
    """

    kept: stash.Keeps
    columns: columns.Rule
    macs: Callable[[Operation], int]
    is_view: bool = False
    rows_only: bool = False


def _family(
    names: str,
    kept: stash.Keeps,
    rule: columns.Rule,
    count: Callable[[Operation], int] = macs.none,
    is_view: bool = False,
) -> dict[str, Operator]:
    return dict.fromkeys(names.split(), Operator(kept, rule, count, is_view))


_ELEMENT_WISE = (
    _family(
        "add sub rsub neg positive ceil floor round sign trunc eq ne lt le gt ge isnan isinf isfinite logical_not "
        "logical_and logical_or logical_xor bitwise_not bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ "
        "zeros_like ones_like full_like empty_like rand_like randn_like floor_divide remainder copy fill zero",
        stash.nothing,
        columns.element_wise,
    )
    | _family(
        "clone contiguous to _to_copy type_as float half double bfloat16 detach alias lift_fresh_copy",
        stash.nothing,
        columns.element_wise,
        is_view=True,
    )
    | _family(
        "gelu silu mish softplus hardswish hardsigmoid hardtanh relu6 elu celu selu leaky_relu prelu log log1p "
        "log2 abs sin cos asin acos atan sinh cosh pow clamp clamp_min clamp_max erf erfc log_sigmoid square "
        "threshold",
        stash.first_input,
        columns.element_wise,
    )
    | _family("relu sigmoid tan tanh exp expm1 sqrt rsqrt reciprocal", stash.output, columns.element_wise)
    | _family("mul multiply", stash.two_factors, columns.element_wise)
    | _family("div divide true_divide", stash.quotient, columns.element_wise)
    | _family("where masked_fill", stash.whole_numbers, columns.element_wise)
    | _family("maximum minimum", stash.inputs, columns.element_wise)
    | _family("dropout", stash.dropout, columns.element_wise)
    | _family("feature_dropout", stash.feature_dropout, columns.element_wise)
)

_REARRANGEMENTS = (
    _family(
        "view reshape _unsafe_view flatten unflatten unsqueeze squeeze view_as reshape_as",
        stash.nothing,
        columns.view,
        is_view=True,
    )
    | _family("expand expand_as broadcast_to", stash.nothing, columns.expand, is_view=True)
    | _family("transpose permute t numpy_T", stash.nothing, columns.permutation, is_view=True)
    | _family("chunk split split_with_sizes tensor_split", stash.nothing, columns.splitting, is_view=True)
    | _family("slice narrow", stash.nothing, columns.slicing, is_view=True)
    | _family("select unbind", stash.nothing, columns.along("dim", default=(0,)), is_view=True)
    | _family("movedim moveaxis swapaxes swapdims diagonal unfold", stash.nothing, columns.never, is_view=True)
    | _family("cat concat concatenate", stash.nothing, columns.concatenation)
    | _family("stack repeat tile repeat_interleave pixel_shuffle pixel_unshuffle", stash.nothing, columns.never)
    | _family("im2col channel_shuffle", stash.nothing, columns.never)
    | _family("roll flip", stash.nothing, columns.along("dims"))
    | _family("cumsum", stash.nothing, columns.along("dim"))
    | _family("tril triu", stash.nothing, columns.along(last=2))
    | _family("index index_select index_put", stash.whole_numbers, columns.never)
    | _family("gather take_along_dim scatter", stash.inputs, columns.never)
)

_REDUCTIONS = (
    _family("sum mean argmax argmin any all", stash.nothing, columns.along("dim"))
    | _family("var var_mean", stash.first_input, columns.along("dim"))
    | _family("std logsumexp norm linalg_vector_norm amax amin", stash.input_and_output, columns.along("dim"))
    | _family("max min topk sort", stash.chosen_indices, columns.along("dim", default=(-1,)))
)

_NORMALISATIONS = (
    _family("softmax _softmax log_softmax", stash.output, columns.along("dim"))
    | _family("batch_norm", stash.batch_norm, columns.per_channel)
    | _family("instance_norm", stash.instance_norm, columns.per_channel)
    | _family("layer_norm", stash.layer_norm, columns.normalised_rows)
    | _family("rms_norm", stash.rms_norm, columns.normalised_rows)
    | _family("group_norm", stash.group_norm, columns.per_group)
    | _family("glu", stash.first_input, columns.splitting)
)

_SPATIAL = (
    {
        f"{name}{rank}d": Operator(kept, columns.along(last=rank), macs.none, is_view=False)
        for rank in (1, 2, 3)
        for name, kept in (
            ("max_pool", stash.max_pooling),
            ("adaptive_max_pool", stash.max_pooling),
            ("avg_pool", stash.first_input),
            ("adaptive_avg_pool", stash.adaptive_average),
            ("upsample_nearest", stash.nothing),
            ("reflection_pad", stash.first_input),
            ("replication_pad", stash.first_input),
        )
    }
    | _family("upsample_linear1d", stash.nothing, columns.along(last=1))
    | _family("upsample_bilinear2d upsample_bicubic2d", stash.nothing, columns.along(last=2))
    | _family("upsample_trilinear3d", stash.nothing, columns.along(last=3))
    | _family("pad constant_pad_nd", stash.padding, columns.padding)
)

_PRODUCTS = (
    _family("conv1d conv2d conv3d", stash.weighted, products.columns, macs.convolution)
    | _family(
        "conv_transpose1d conv_transpose2d conv_transpose3d",
        stash.weighted,
        products.columns,
        macs.transposed_convolution,
    )
    | _family("linear", stash.rows_weighted, products.columns, macs.linear)
    | _family("embedding", stash.whole_numbers, products.columns)
    | _family("matmul", stash.matrices, products.columns, macs.product)
    | _family("mm bmm", stash.two_factors, products.columns, macs.product)
    | _family("addmm baddbmm", stash.two_factors, products.columns, macs.added_product)
    | _family("_grouped_mm transformers::grouped_mm_fallback", stash.grouped, products.columns, macs.grouped)
    | _family("einsum", stash.two_factors, products.einsum_columns, macs.einsum)
    | _family("scaled_dot_product_attention", stash.attention, columns.attention, macs.attention)
)

_RECURRENT = {
    name: Operator(stash.recurrent, columns.never, macs.recurrent, rows_only=True)
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
}
_LOSSES = (
    _family("cross_entropy_loss", stash.cross_entropy, columns.never)
    | _family(
        "nll_loss nll_loss_nd nll_loss2d mse_loss l1_loss smooth_l1_loss huber_loss", stash.inputs, columns.never
    )
    | _family("binary_cross_entropy binary_cross_entropy_with_logits kl_div", stash.inputs, columns.never)
)
_COUNTS = _family(
    "new_zeros new_ones new_empty new_full one_hot histc bincount argsort searchsorted bucketize isin",
    stash.nothing,
    columns.never,
)

OPERATORS: dict[str, Operator] = (
    _RECURRENT
    | _LOSSES
    | _COUNTS
    | _ELEMENT_WISE
    | _REARRANGEMENTS
    | _REDUCTIONS
    | _NORMALISATIONS
    | _SPATIAL
    | _PRODUCTS
)
"""Every operator with a formula. All but the products count zero multiply-accumulates."""
BY_BYTES = Operator(stash.everything, columns.never, macs.none, rows_only=True)
"""What stands for an operator without a formula: it reads and writes its operands and results, and keeps them."""


def rules_of(operation: Operation) -> Operator:
    """Return the rules of an operation: a user's own, those of the table, else :data:`BY_BYTES`."""
    return operation.rules or OPERATORS.get(operation.name, BY_BYTES)


def is_known(operation: Operation) -> bool:
    """Tell whether there is a formula for an operation."""
    return operation.rules is not None or operation.name in OPERATORS


def own_rules(named: Mapping[str, str | Operator]) -> dict[str, Operator]:
    """Return a user's rules: each is an :class:`Operator`, or the name of a known one that counts the same.

    Raises ValueError for a name that is not known.
    """
    found: dict[str, Operator] = {}
    for name, rule in named.items():
        if isinstance(rule, str) and rule not in OPERATORS:
            near = difflib.get_close_matches(rule, OPERATORS, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ValueError(f"model.operators.{name}: no operator '{rule}' is known{hint}")
        found[name] = OPERATORS[rule] if isinstance(rule, str) else rule
    return found
