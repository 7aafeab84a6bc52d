"""What one device does to one micro-batch at one stage, and the token that PyTorch writes for it.

``2F0`` is the forward pass of micro-batch 0 at stage 2, ``0B1`` a whole backward pass, ``1I3`` and ``1W3`` its
two halves: the gradient of the input, which the stage before waits for, and the gradient of the weights, which
only the optimiser waits for (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241). The letters are
those of ``torch.distributed.pipelining.schedules``.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


class Kind(enum.IntEnum):
    """What is done; the value is the small number that stands for it in arrays."""

    FORWARD = 0
    BACKWARD = 1
    """Both gradients in one pass."""
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3

    @property
    def letter(self) -> str:
        """The letter of the token."""
        return LETTERS[self]


LETTERS = "FBIW"
"""Letters of tokens, by kind."""

_TOKEN = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one micro-batch at one stage, both counted from 0; ``str()`` is its token."""

    stage: int
    kind: Kind
    micro_batch: int

    def __post_init__(self) -> None:
        if self.stage < 0 or self.micro_batch < 0:
            raise ValueError(f"stage {self.stage}, micro-batch {self.micro_batch}: expected 0 or more")

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.letter}{self.micro_batch}"

    @classmethod
    def parse(cls, token: str) -> Action:
        """Return the action that a token stands for. Raises ValueError for anything else."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ValueError(f"{token!r} is no action; expected stage, one of F B I W, micro-batch, as in 2F0")
        stage, letter, micro_batch = match.groups()
        return cls(int(stage), Kind(LETTERS.index(letter)), int(micro_batch))
