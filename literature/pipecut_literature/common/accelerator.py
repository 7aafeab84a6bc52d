"""A machine for predictions: what its accelerators and links do at best, and one efficiency for all of it.

The efficiency is the share of the peak that matrix products reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Peak FLOPs a second; bytes a second of memory, and of links inside a node.

    Links carry these bytes in either direction at the same time. ``None`` stands for no limit: to see what a term
    is worth, leave it out.
    """

    name: str
    peak_flops_per_second: int
    efficiency: Fraction = Fraction(1)
    memory_bytes_per_second: int | None = None
    near_bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise ValueError(
                f"{self.name}: efficiency is {float(self.efficiency):.3g}, expected above 0, at most 1"
            )

    def products_s(self, flops: int | Fraction) -> Fraction:
        """Return the seconds of matrix products."""
        return Fraction(flops) / (self.efficiency * self.peak_flops_per_second)

    def near_s(self, amount_bytes: int | Fraction) -> Fraction:
        """Return the seconds in which a device sends bytes to another one of its node."""
        near = self.near_bytes_per_second
        return Fraction(0) if near is None else Fraction(amount_bytes) / near
