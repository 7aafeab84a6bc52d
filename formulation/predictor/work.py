"""What a layer computes, in sizes: its matrix products, and the bytes that its other kernels move.

All numbers are for one sample, in the elements of the layer graph, undivided.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Product:
    """``copies`` products of a matrix of ``rows`` x ``inner`` with one of ``inner`` x ``columns``.

    ``weighted``: the second matrix are weights of the layer, the same for all samples, so that more samples are
    more rows; else more samples are more copies. ``read_bytes`` and ``written_bytes`` are the activations that
    it takes and makes (those of a convolution are smaller than ``rows`` x ``inner``). Raises ValueError for a
    size below 1.
    """

    rows: int
    inner: int
    columns: int
    copies: int = 1
    weighted: bool = True
    read_bytes: int = 0
    written_bytes: int = 0

    def __post_init__(self) -> None:
        if (
            min(self.rows, self.inner, self.columns, self.copies) < 1
            or min(self.read_bytes, self.written_bytes) < 0
        ):
            raise ValueError(f"{self}: expected sizes of 1 or more, and bytes of 0 or more")

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one sample."""
        return self.rows * self.inner * self.columns * self.copies


@dataclass(frozen=True, slots=True)
class Work:
    """The products of a layer, and the kernels behind them: how many, and the bytes that they read and write.

    Raises ValueError for a negative number.
    """

    products: tuple[Product, ...] = ()
    kernels: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def __post_init__(self) -> None:
        for one in fields(self)[1:]:
            if getattr(self, one.name) < 0:
                raise ValueError(f"{self}: {one.name} is below 0")
