"""Published runs of transformers on A100 GPUs (``published.yaml``): what was trained on what, how long it took.

Sources: Megatron-LM (Narayanan et al., SC'21, arXiv 2104.04473), Table 1, with micro-batch sizes and numbers of
chunks from the authors' script ``examples/sc21/run_table_1.sh``; Korthikanti et al. (arXiv 2205.05198), Tables 3
to 5 and §6.3. Both used nodes of 8 A100 with 80 GB, NVLink and NVSwitch, and eight 200 Gbit/s InfiniBand
adapters; sequences of 2,048 tokens, a vocabulary of 51,200, and full recomputation in SC'21.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from pipecut_literature.megatron.transformer import LayerRecompute, TransformerShape, iteration_flops
from pipecut_literature.studies.study import published

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
    """A run and its iteration time."""

    training: TrainingRun
    iteration_s: Fraction

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


def _model(name: str, sizes: list[int], plan: list[int]) -> KorthikantiModel:
    layers, hidden, heads = sizes
    return KorthikantiModel(name, TransformerShape(layers, hidden, heads, TOKENS, VOCABULARY), *plan)


def _step(name: str, seconds: str, full: bool, replicas: int) -> PublishedStep:
    """Return a run of Korthikanti et al., with full recomputation or with selective and sequence parallelism."""
    model = next(one for one in MODELS if one.name == name)
    how = "full" if full else "selective, sequence"
    training = TrainingRun(
        f"{name}, {how}" + (f", {replicas} replicas" if replicas > 1 else ""),
        model.shape,
        model.micro_batch,
        degree=8,
        recompute=LayerRecompute.FULL if full else LayerRecompute.SELECTIVE,
        sequence_parallel=not full,
        ranks=model.ranks,
        chunks=model.chunks,
        replicas=replicas,
        global_batch=model.global_batch * replicas,
        sums_beside=True,
    )
    return PublishedStep(training, Fraction(seconds))


def _sc21(sizes: list[int], plan: list[int], batch: int, each: int, tflops: int) -> PublishedStep:
    heads, hidden, layers = sizes
    degree, ranks, chunks, devices = plan
    shape = TransformerShape(layers, hidden, heads, TOKENS, VOCABULARY)
    name = f"{shape.parameters / 10**9:.1f}B"
    replicas, full = devices // (degree * ranks), LayerRecompute.FULL
    training = TrainingRun(name, shape, each, degree, full, False, ranks, chunks, replicas, batch)
    flops = iteration_flops(shape, batch, full)
    return PublishedStep(training, Fraction(flops, devices * tflops * TERA))


_TABLES = published(__file__)
MODELS = tuple(_model(name, *row) for name, row in _TABLES["models"].items())
ITERATION_TIMES = tuple(_step(*row) for row in _TABLES["iteration_times"])
MEGATRON_TABLE_1 = tuple(_sc21(*row) for row in _TABLES["sc21"])
