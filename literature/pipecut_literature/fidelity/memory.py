"""Korthikanti et al.'s activation memory as closed forms, beside the schedule executed and a traced model."""

from __future__ import annotations

from fractions import Fraction

from pipecut_literature.megatron import transformer_memory as activations
from pipecut_literature.megatron.published import MODELS, KorthikantiModel
from pipecut_literature.megatron.transformer import (
    LayerRecompute,
    TransformerShape,
    attention_core_flops,
    iteration_flops,
)
from pipecut_literature.megatron.transformer_memory import ActivationLayout, layer_activation_bytes
from pipecut_literature.studies.study import StudyTable, gib, share, words

MIB = 2**20
TP = 8
LAYOUTS = (
    ("none", "sbh (34 + 5as/h)", ActivationLayout()),
    ("tensor parallel", "sbh (10 + 24/t + 5as/ht)", ActivationLayout(TP)),
    ("tensor and sequence parallel", "sbh/t (34 + 5as/h)", ActivationLayout(TP, sequence_parallel=True)),
    ("tensor parallel, selective", "sbh (10 + 24/t)", ActivationLayout(TP, recompute=LayerRecompute.SELECTIVE)),
    (
        "tensor and sequence parallel, selective",
        "34 sbh/t",
        ActivationLayout(TP, sequence_parallel=True, recompute=LayerRecompute.SELECTIVE),
    ),
    ("full recomputation", "2 sbh", ActivationLayout(TP, recompute=LayerRecompute.FULL)),
)
"""The six configurations of the paper's Table 2; t = 8 but for the first."""


def memory_table() -> StudyTable:
    """Return all six configurations for all four models."""
    rows = [_cells(model, *layout) for model in MODELS for layout in LAYOUTS]
    return StudyTable(
        "Korthikanti et al., Table 2 and eq. (5): activations on the first rank",
        ("model", "configuration", "bytes per layer", "MiB", "first rank, GiB", "extras, GiB", "executed, GiB"),
        tuple(rows),
        words(__file__, "activations", equal=_equal_rows(), rows=len(rows)),
    )


def _cells(model: KorthikantiModel, name: str, formula: str, layout: ActivationLayout) -> tuple[str, ...]:
    shape, each = model.shape, model.micro_batch
    layer = layer_activation_bytes(shape, each, layout)
    closed, counted = _both(model, layout)
    extras = activations.extra_bytes(shape, each, layout.tensor_parallel_degree, model.ranks)
    return (model.name, name, formula, f"{float(layer) / MIB:.1f}", gib(closed), gib(extras), gib(counted))


def _both(model: KorthikantiModel, layout: ActivationLayout) -> tuple[int, int]:
    """Return the layers' bytes on the first rank by the closed form, and at the peak of the executed schedule."""
    shape, each, ranks, chunks = model.shape, model.micro_batch, model.ranks, model.chunks
    closed = activations.first_stage_bytes(shape, each, layout, ranks, chunks)
    return closed, activations.counted_first_stage_bytes(
        shape, each, layout, ranks, chunks, model.global_batch // each
    )


def _equal_rows() -> int:
    pairs = [_both(model, layout) for model in MODELS for _, _, layout in LAYOUTS]
    return sum(closed == counted for closed, counted in pairs)


def statements_table() -> StudyTable:
    """Return what the paper says of these numbers in words and figures, beside ours."""
    rows = []
    for model in MODELS:
        shape, each = model.shape, model.micro_batch
        base, *others = (layer_activation_bytes(shape, each, layout) for _, _, layout in LAYOUTS[1:])
        core = Fraction(5 * shape.heads * shape.sequence, shape.hidden)
        rows.append(
            (model.name, *(share(one / base) for one in others), share(core / (34 + core)), *_again(shape))
        )
    return StudyTable(
        "Korthikanti et al., Figure 7 and §5: shares of activation memory",
        (
            *("model", "sequence parallel", "selective", "both", "full recomputation"),
            *("saved by selective", "FLOPs repeated", "by eq. (8)"),
        ),
        tuple(rows),
        words(__file__, "statements"),
    )


def _again(shape: TransformerShape) -> tuple[str, str]:
    """Return the share of FLOPs that selective recomputation repeats: counted, and by the paper's eq. (8)."""
    core, model = shape.layers * attention_core_flops(shape, 1), iteration_flops(shape, 1, LayerRecompute.NONE)
    printed = 12 * shape.layers * shape.sequence**2 * shape.hidden  # 72 B L s h² (s / 3h - s / 6h)
    return share(Fraction(core, model)), share(Fraction(printed, model))


TRACED = TransformerShape(layers=1, hidden=768, heads=12, sequence=1024, vocabulary=1000)
"""A layer of GPT-2 small; the vocabulary does not matter here."""


def traced_layer_bytes(shape: TransformerShape) -> int:
    """Return what pipecut's own trace of a GPT keeps for one layer and one sample, in bytes of 32-bit numbers.

    Raises ImportError without PyTorch. Cost: the model is built, once.
    """
    from pipecut.formulation.problem.layers import layers_of
    from pipecut.ingest.models.gpt import gpt
    from pipecut.ingest.torch.trace import trace

    module, inputs = gpt(shape.layers, shape.hidden, shape.heads, shape.vocabulary, shape.sequence)
    graph = trace(module, inputs, "gpt")
    return sum(layer.stash_bytes for layer in layers_of(graph) if layer.name.startswith("blocks.0."))


def statistics_bytes(shape: TransformerShape) -> int:
    """Return what the formulas leave out: two 32-bit numbers a token for each LayerNorm, one for each query."""
    return shape.sequence * (2 * 2 * 4 + 4 * shape.heads)


def traced_table() -> StudyTable:
    """Return the paper's count for one layer step by step, down to what the trace keeps."""
    formula = layer_activation_bytes(TRACED, 1, ActivationLayout())
    selective = layer_activation_bytes(TRACED, 1, ActivationLayout(recompute=LayerRecompute.SELECTIVE))
    plain = layer_activation_bytes(TRACED, 1, ActivationLayout(recompute=LayerRecompute.SELECTIVE, dropout=False))
    steps = [
        ("sbh (34 + 5as/h), 16-bit", formula),
        ("fused attention keeps no scores: - 5as²b", selective),
        ("no dropout, no masks: - 2sbh", plain),
        ("32-bit numbers instead of 16-bit: x 2", 2 * plain),
        ("statistics of LayerNorms and softmax: + 4s (4 + a)", 2 * plain + statistics_bytes(TRACED)),
    ]
    try:
        steps.append(("traced by pipecut", Fraction(traced_layer_bytes(TRACED))))
        remark = "The last two lines are equal, which a test holds for other sizes too."
    except ImportError:
        remark = "The trace itself needs PyTorch, which was not installed when this was written."
    return StudyTable(
        "One layer of GPT-2 small (h 768, a 12, s 1,024), one sample: the formula and pipecut's trace",
        ("count", "bytes"),
        tuple((name, f"{int(amount):,}") for name, amount in steps),
        (remark,),
    )
