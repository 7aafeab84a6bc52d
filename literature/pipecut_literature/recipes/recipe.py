"""Published configurations as data: the file, and what a line of it says."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from pipecut.ingest.text.yaml_source import Document
from pipecut_literature.megatron.llama import LlamaShape
from pipecut_literature.megatron.transformer import LayerRecompute, TransformerShape, iteration_flops

FILE = Path(__file__).with_name("published.yaml")
TERA = 10**12
Sharded = Literal["none", "optimizer", "gradients", "weights"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A published run: ``tensor`` x ``pipeline`` x ``data`` devices, ``chunks`` stages a pipeline rank.

    ``micro_batch`` are the samples of one in a replica; ``inside`` and ``between`` what sums inside a node, and an
    adapter, reach in GB/s (None: what the library says); ``year`` that of the source and its software; ``seconds``
    of a step as published, None where no time is. Raises ValueError for a batch that does not divide into
    micro-batches for every replica.
    """

    name: str
    model: str
    shape: TransformerShape | LlamaShape
    machine: str
    inside: Fraction | None
    between: Fraction | None
    year: int
    tensor: int
    pipeline: int
    data: int
    chunks: int
    micro_batch: int
    global_batch: int
    recompute: LayerRecompute
    seconds: Fraction | None
    source: str
    page: str
    sequence_parallel: bool = False
    sharded: Sharded = "none"
    reading: str = ""
    tools: int | None = None
    """Whose tools a planner shall have: those of 2021, or all that there are (None)."""

    def __post_init__(self) -> None:
        if self.global_batch % (self.data * self.micro_batch):
            raise ValueError(
                f"{self.name}: a batch of {self.global_batch} does not divide into micro-batches of"
                f" {self.micro_batch} on {self.data} replicas"
            )

    @property
    def devices(self) -> int:
        """Devices of the run."""
        return self.tensor * self.pipeline * self.data

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each pipeline in one step."""
        return self.global_batch // (self.data * self.micro_batch)

    @property
    def posed(self) -> tuple[object, ...]:
        """What the runs have in common that are one question to a planner."""
        return self.model, self.machine, self.devices, self.global_batch

    @property
    def degrees(self) -> str:
        """The degrees in few words."""
        return f"{self.tensor}, {self.pipeline}, {self.data}, {self.chunks}"


@dataclass(frozen=True, slots=True)
class Published:
    """All recipes of the file, and the sources that they name: (title, address)."""

    recipes: tuple[Recipe, ...]
    sources: dict[str, tuple[str, str]]

    def alike(self, recipe: Recipe) -> tuple[Recipe, ...]:
        """Return all runs of the same model, batch and devices: a planner is asked about them together."""
        return tuple(one for one in self.recipes if one.posed == recipe.posed)

    @staticmethod
    def read(path: Path = FILE) -> Published:
        """Read the file. Raises ScenarioError for what is no YAML, and ValueError or KeyError for a wrong line."""
        written: Any = Document.read(path).data
        sources = {name: (row["title"], row["url"]) for name, row in written["sources"].items()}
        recipes = tuple(_recipe(dict(row), written) for row in written["recipes"])
        return Published(recipes, sources)


def _recipe(row: dict[str, Any], written: dict[str, Any]) -> Recipe:
    ((kind, sizes),) = written["models"][row["model"]].items()
    shape = (TransformerShape if kind == "gpt" else LlamaShape)(**sizes)
    if row["source"] not in written["sources"]:
        raise ValueError(f"{row['name']}: no source {row['source']!r}")
    machine = written["machines"][row["machine"]]
    measured = {name: row.pop(name) for name in ("seconds", "tflops", "tokens") if name in row}
    devices = row["tensor"] * row["pipeline"] * row["data"]
    reached: dict[str, Any] = {
        name: Fraction(machine[name]) if name in machine else None for name in ("inside", "between")
    }
    seconds = _seconds(measured, shape, row["global_batch"], devices)
    year, row["recompute"] = written["sources"][row["source"]]["year"], LayerRecompute(row["recompute"])
    return Recipe(**row, **reached, shape=shape, year=year, seconds=seconds)


def _seconds(
    measured: dict[str, Any], shape: TransformerShape | LlamaShape, samples: int, devices: int
) -> Fraction | None:
    """Return the seconds of a step by what was measured; FLOP rates by the formula of the source."""
    if "seconds" in measured:
        return Fraction(measured["seconds"])
    if "tokens" in measured:
        return Fraction(samples * shape.sequence) / (Fraction(measured["tokens"]) * devices)
    if "tflops" in measured:
        gpt = isinstance(shape, TransformerShape)
        flops = iteration_flops(shape, samples, LayerRecompute.FULL) if gpt else shape.step_flops(samples)
        return Fraction(flops) / (Fraction(measured["tflops"]) * TERA * devices)
    return None
