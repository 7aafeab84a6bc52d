"""The programs that train pipelines as far as pipecut knows them: what each can be told."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipecut.formulation.problem.constraints import Recompute, Sharded
from pipecut.formulation.problem.layers import Axis
from pipecut.formulation.problem.training import Schedule, Training


class ComputedAgain(enum.StrEnum):
    """What is computed again before a backward pass."""

    NOTHING = "nothing"
    BLOCKS = "blocks"
    """Every numbered block, each by itself."""
    STAGES = "stages"
    """Every stage as a whole."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a program can be told.

    ``divides``: what replicas divide; ``orders``: its names for orders of passes, of one stage a group and of
    several; ``formats``: its settings by the bytes of weights, gradients and activations; ``again``: what it
    computes again where it computes anything again; ``splits``: whether it divides layers.
    """

    name: str
    divides: tuple[Sharded, ...]
    orders: Mapping[tuple[Schedule, bool], str]
    formats: Mapping[tuple[int, int, int], Mapping[str, Any]]
    again: ComputedAgain = ComputedAgain.BLOCKS
    splits: bool = True

    def narrowed(self, opened: Mapping[str, object]) -> Mapping[str, object]:
        """Return what is opened of constraints, by key, as far as it can be told."""
        again = Recompute.ALLOWED if self.again is ComputedAgain.STAGES else Recompute.BLOCKS
        known = {"sharded": [Sharded.NONE, *self.divides], "recompute": again, "splits": [Axis.SEQUENCE]}
        known |= {} if self.splits else {"splits": [], "tensor_parallel_degrees": [1]}
        return {key: known.get(key, value) for key, value in opened.items()}

    def name_of(self, training: Training) -> str:
        """Return its name for the order of passes of a training."""
        return self.orders[training.schedule, training.chunks > 1]

    def order_of(self, name: str, chunks: int) -> tuple[Schedule, int]:
        """Return the order of passes that it has under a name, where groups hold so many stages."""
        found = ((one, many) for (one, many), known in self.orders.items() if known == name)
        return next(one for one, many in found if many == (chunks > 1)), chunks

    def settings_of(self, training: Training) -> Mapping[str, Any]:
        """Return its settings for the bytes of elements of a training."""
        return self.formats[_bytes(training)]

    def problem(self, training: Training) -> str:
        """Say what it does not run of a training: the order of passes, or the formats; nothing if it does."""
        several = training.chunks > 1
        if (training.schedule, several) not in self.orders:
            known = ", ".join(one for (_, many), one in self.orders.items() if many == several)
            does = f"runs {known}" if known else "gives each stage devices of its own"
            does = "runs whole backward passes" if training.schedule.in_halves else does
            order = f"{training.schedule}{f' of {training.chunks} stages a group' * several}"
            order += ", which has no flush" * (not training.schedule.flushes)
            first, chunks = next(iter(self.orders))[0], ", training.chunks: 1" * several
            return f"the plan is for {order}, and {self.name} {does}: plan with training.schedule: {first}{chunks}"
        if _bytes(training) not in self.formats:
            rows = self.formats, [_bytes(training)]
            listed, found = (["/".join(map(str, one)) for one in row] for row in rows)
            told = f"weights/gradients/activations take {found[0]} bytes, and what is written for {self.name} says"
            return f"{told} {', '.join(listed)}: plan with one of these as training.precision"
        return ""


def _bytes(training: Training) -> tuple[int, int, int]:
    found = training.elements
    return found.weights, found.gradients, found.activations


TORCHTITAN = Runtime(
    "torchtitan",
    divides=(Sharded.WEIGHTS, Sharded.GRADIENTS),
    orders={
        (Schedule.ONE_F_ONE_B, False): "1F1B",
        (Schedule.GPIPE, False): "GPipe",
        (Schedule.ONE_F_ONE_B, True): "Interleaved1F1B",
        (Schedule.ZERO_BUBBLE_V, True): "ZBVZeroBubble",
    },
    formats={
        (4, 4, 4): {"dtype": "float32", "mixed_precision_param": "float32"},
        (4, 4, 2): {"dtype": "float32", "mixed_precision_param": "bfloat16"},
        (2, 2, 2): {"dtype": "bfloat16", "mixed_precision_param": "bfloat16"},
    },
)
MEGATRON = Runtime(
    "Megatron-LM",
    divides=(Sharded.OPTIMIZER,),
    orders={(Schedule.ONE_F_ONE_B, False): "1F1B", (Schedule.ONE_F_ONE_B, True): "interleaved 1F1B"},
    formats={
        (4, 4, 4): {},
        (2, 4, 2): {"bf16": True},
        (2, 2, 2): {"bf16": True, "grad-reduce-in-bf16": True},
    },
)
DEEPSPEED = Runtime(
    "DeepSpeed",
    divides=(Sharded.OPTIMIZER,),
    orders={(Schedule.ONE_F_ONE_B, False): "1F1B"},
    formats={
        (4, 4, 4): {},
        (2, 4, 2): {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
        (2, 2, 2): {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}},
    },
    again=ComputedAgain.STAGES,
    splits=False,
)
RUNTIMES: Mapping[str, Runtime] = {"torchtitan": TORCHTITAN, "megatron": MEGATRON, "deepspeed": DEEPSPEED}
"""By the word for it in a scenario, and in ``pipecut export --to``."""
