"""Published runs of transformers on A100 GPUs, as data: what was trained on what, and how long it took.

Sources: Megatron-LM (Narayanan et al., SC'21, arXiv 2104.04473), Table 1, with micro-batch sizes and numbers of
chunks from the authors' script ``examples/sc21/run_table_1.sh``; Korthikanti et al. (arXiv 2205.05198), Tables 3
to 5 and §6.3. Both used nodes of 8 A100 with 80 GB, NVLink and NVSwitch, and eight 200 Gbit/s InfiniBand
adapters; sequences of 2,048 tokens, a vocabulary of 51,200, and full recomputation in SC'21.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from pipecut_literature.megatron.transformer import LayerRecompute, TransformerShape, iteration_flops

TOKENS, VOCABULARY = 2048, 51200
TERA = 10**12


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A published run. ``ranks`` pipeline ranks of ``chunks`` stages each, ``replicas`` of the whole pipeline.

    ``micro_batch`` are the samples of one in a replica, ``degree`` the devices that a layer is split over.
    ``sums_beside``: the software sums gradients of inputs while it multiplies for those of weights, as Megatron-LM
    does since February 2022 (commit 83b1e42f).
    Raises ValueError for layers that do not divide among stages, and a batch that does not divide into
    micro-batches for every replica.
    """

    name: str
    shape: TransformerShape
    micro_batch: int
    degree: int
    recompute: LayerRecompute
    sequence_parallel: bool
    ranks: int
    chunks: int
    replicas: int
    global_batch: int
    sums_beside: bool = False

    def __post_init__(self) -> None:
        if self.shape.layers % self.stages:
            raise ValueError(f"{self.name}: {self.shape.layers} layers do not divide among {self.stages} stages")
        if self.global_batch % (self.replicas * self.micro_batch):
            raise ValueError(
                f"{self.name}: a batch of {self.global_batch} does not divide into micro-batches of "
                f"{self.micro_batch} on {self.replicas} replicas"
            )

    @property
    def stages(self) -> int:
        """Stages of the pipeline, all chunks of all ranks."""
        return self.ranks * self.chunks

    @property
    def devices(self) -> int:
        """Devices of the run."""
        return self.ranks * self.degree * self.replicas

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each pipeline in one step."""
        return self.global_batch // (self.replicas * self.micro_batch)


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """A run and its iteration time. ``tflops`` is the published FLOP rate of a device, where that was printed."""

    training: TrainingRun
    iteration_s: Fraction
    tflops: int | None = None

    @property
    def name(self) -> str:
        """The model, as the source calls it."""
        return self.training.name


@dataclass(frozen=True, slots=True)
class KorthikantiModel:
    """A row of Korthikanti et al.'s Table 3, with the chunks of its schedule (§6)."""

    name: str
    shape: TransformerShape
    ranks: int
    chunks: int
    global_batch: int
    micro_batch: int


def _model(name: str, sizes: tuple[int, int, int], plan: tuple[int, int, int, int]) -> KorthikantiModel:
    layers, hidden, heads = sizes
    return KorthikantiModel(name, TransformerShape(layers, hidden, heads, TOKENS, VOCABULARY), *plan)


MODELS = (
    _model("22B", (48, 6144, 64), (1, 1, 4, 4)),
    _model("175B", (96, 12288, 96), (8, 3, 64, 1)),
    _model("530B", (105, 20480, 128), (35, 3, 280, 1)),
    _model("1T", (128, 25600, 160), (64, 1, 512, 1)),
)
"""Korthikanti et al., Table 3, with a tensor-parallel degree of 8: (ranks, chunks, global batch, micro-batch)."""


def _step(model: KorthikantiModel, seconds: str, *, full: bool, replicas: int = 1) -> PublishedStep:
    recompute = LayerRecompute.FULL if full else LayerRecompute.SELECTIVE
    name = f"{model.name}, {'full' if full else 'selective, sequence'}" + (
        f", {replicas} replicas" * (replicas > 1)
    )
    training = TrainingRun(
        name,
        model.shape,
        model.micro_batch,
        8,
        recompute,
        not full,
        model.ranks,
        model.chunks,
        replicas,
        model.global_batch * replicas,
        sums_beside=True,
    )
    return PublishedStep(training, Fraction(seconds))


ITERATION_TIMES = (
    _step(MODELS[0], "1.42", full=True),
    _step(MODELS[0], "1.10", full=False),
    _step(MODELS[1], "18.13", full=True),
    _step(MODELS[1], "13.75", full=False),
    _step(MODELS[2], "49.05", full=True),
    _step(MODELS[2], "37.83", full=False),
    _step(MODELS[2], "39.15", full=False, replicas=8),
    _step(MODELS[3], "94.42", full=True),
    _step(MODELS[3], "71.49", full=False),
)
"""Korthikanti et al., Table 5, and the run with 8-fold data parallelism of §6.3."""


def _sc21(
    sizes: tuple[int, int, int], plan: tuple[int, int, int, int], batch: int, each: int, tflops: int
) -> PublishedStep:
    heads, hidden, layers = sizes
    degree, ranks, chunks, devices = plan
    shape = TransformerShape(layers, hidden, heads, TOKENS, VOCABULARY)
    name = f"{shape.parameters / 10**9:.1f}B"
    replicas, full = devices // (degree * ranks), LayerRecompute.FULL
    training = TrainingRun(name, shape, each, degree, full, False, ranks, chunks, replicas, batch)
    flops = iteration_flops(shape, batch, full)
    return PublishedStep(training, Fraction(flops, devices * tflops * TERA), tflops)


MEGATRON_TABLE_1 = (
    _sc21((24, 2304, 24), (1, 1, 1, 32), 512, 16, 137),
    _sc21((32, 3072, 30), (2, 1, 1, 64), 512, 16, 138),
    _sc21((32, 4096, 36), (4, 1, 1, 128), 512, 16, 142),
    _sc21((48, 6144, 40), (8, 1, 1, 256), 1024, 8, 135),
    _sc21((64, 8192, 48), (8, 2, 1, 512), 1536, 4, 138),
    _sc21((80, 10240, 60), (8, 4, 3, 1024), 1792, 2, 140),
    _sc21((96, 12288, 80), (8, 8, 2, 1536), 2304, 2, 148),
    _sc21((128, 16384, 96), (8, 16, 2, 1920), 2160, 1, 155),
    _sc21((128, 20480, 105), (8, 35, 3, 2520), 2520, 1, 163),
    _sc21((160, 25600, 128), (8, 64, 1, 3072), 3072, 1, 163),
)
"""SC'21, Table 1: (heads, width, layers), (tensor-parallel degree, ranks, chunks, devices), global batch,
micro-batch, TFLOP/s of a device. The paper prints rates; iteration times follow from its FLOP formula, eq. (3)."""
