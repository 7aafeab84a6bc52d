"""A roofline: what the kernels of a part of a layer take, from sizes, speed and memory bandwidth of a device.

A product of ``m x k`` with ``k x n`` takes as long as one that is larger by ``outer`` rows and columns and by
``inner`` along the dimension that is summed, at the share ``largest`` of the peak:

    2 (m + outer) (k + inner) (n + outer) / (largest peak)

so small products are far from the peak and large ones near ``largest`` of it (a GEMM fills whole tiles, and fills
and drains a pipeline along k). Its bytes pass at the share ``memory`` of the bandwidth of the memory; the
longer of the two counts (Williams et al., CACM 2009). Other kernels move bytes only. No kernel is shorter than
``kernel_ns``.

A backward pass has two products for each of the forward pass, of the same three sizes: the sum runs along
columns for the gradient of the input, and along rows for that of the weights, which frozen weights do not have.

All micro-batches of a step but the first add their gradients of weights to those that are there: a kernel that
reads both and writes one (torch's ``AccumulateGrad``), in each of them the same part of it (:func:`adding`).

Everything is exact: times are fractions of ns, rounded by who asks.

What a layer computes, in sizes: its matrix products, and the bytes that its other kernels move.

All numbers are for one sample, in the elements of the layer graph, undivided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache


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


FLOPS_PER_MAC = 2
GRADIENTS_ADDED = 3
"""How often a byte of a gradient is moved when it is added: both are read, one is written."""
NS = 10**9


@dataclass(frozen=True, slots=True)
class Roofline:
    """The constants of the roofline. Raises ValueError for a share that is not above 0 and at most 1.

    ``largest``: share of the peak that the largest products reach; ``outer`` and ``inner``: by how much a product
    counts larger than it is; ``unsized``: share of the peak of products whose sizes are not known; ``memory``:
    share of the memory bandwidth; ``kernel_ns``: the shortest kernel; ``update``: how many times as many bytes as
    it must an optimiser moves, 1 for one that is a single kernel. The defaults of ``largest``, ``outer``,
    ``inner`` and ``memory`` are those that two published rows and a microbenchmark give
    (literature/docs/fidelity.md).
    """

    largest: Fraction = Fraction(823, 1000)
    outer: int = 167
    inner: int = 167
    unsized: Fraction = Fraction(6, 10)
    memory: Fraction = Fraction(22, 25)
    kernel_ns: int = 5_000
    update: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        for name in ("largest", "unsized", "memory"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"roofline.{name} is {getattr(self, name)}, expected more than 0 and at most 1")
        if self.update < 1:
            raise ValueError(f"roofline.update is {self.update}, expected 1 or more")
        for name in ("outer", "inner", "kernel_ns"):
            if getattr(self, name) < 0:
                raise ValueError(f"roofline.{name} is {getattr(self, name)}, expected 0 or more")


DEFAULT_ROOFLINE = Roofline()


@dataclass(frozen=True, slots=True)
class Speeds:
    """A device: peak in FLOP/s, bandwidth of its memory in bytes per second (0: bytes take no time)."""

    flops_per_second: int
    memory_bytes_per_second: int


@dataclass(frozen=True, slots=True)
class LayerPart:
    """What a device does of a layer: samples (of a micro-batch), and the parts of its input and of its columns."""

    samples: Fraction
    inner: Fraction = Fraction(1)
    columns: Fraction = Fraction(1)

    def __hash__(self) -> int:
        """Return a number by whole numbers alone, which is much faster than those of fractions."""
        return hash((*self.samples.as_integer_ratio(), self.inner.denominator, self.columns.denominator))


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of what a kernel touches, for a whole layer: ``activation`` scales those of the layer graph.

    ``products`` is how many the backward pass has for one with weights: 2, 1 without the gradient of the weights,
    or 0 where no gradient is asked of the layer.
    """

    activation: Fraction
    weights: int
    gradients: int
    products: int


@lru_cache(maxsize=65_536)  # networks repeat their layers, and every kind of group asks for the same parts
def passes(
    work: Work, part: LayerPart, sizes: Bytes, speeds: Speeds, constants: Roofline
) -> tuple[Fraction, Fraction]:
    """Return the forward and the backward pass of a part of a layer, in ns, without what adds up gradients."""
    model = _Kernels(part, sizes, speeds, constants)
    first = next((product for product in work.products if product.weighted), None)
    forward, backward = list[Fraction](), list[Fraction]()
    for product in work.products:
        weights = sizes.weights if product is first else 0
        forward.append(model.product(product, model.sizes(product), weights))
        backward += model.gradients(product, weights, sizes.gradients if product is first else 0)
    element = part.samples * part.columns * sizes.activation
    read, written = element * work.read_bytes, element * work.written_bytes
    floor = work.kernels * constants.kernel_ns
    forward.append(max(model.moving(read + written), Fraction(floor)))
    backward.append(max(model.moving(2 * read + written), Fraction(floor)))
    return sum(forward, Fraction(0)), sum(backward, Fraction(0)) if sizes.products else Fraction(0)


@dataclass(frozen=True, slots=True)
class _Kernels:
    part: LayerPart
    bytes: Bytes
    speeds: Speeds
    constants: Roofline

    def sizes(self, product: Product) -> tuple[Fraction, Fraction, Fraction, Fraction]:
        """Return rows, inner, columns and copies of a device's part of a product."""
        part = self.part
        if product.weighted:
            return (
                product.rows * part.samples,
                product.inner * part.inner,
                product.columns * part.columns,
                Fraction(product.copies),
            )
        shared = product.copies * part.samples * part.inner * part.columns
        return Fraction(product.rows), Fraction(product.inner), Fraction(product.columns), shared

    def product(
        self, product: Product, sizes: tuple[Fraction, Fraction, Fraction, Fraction], weights: int
    ) -> Fraction:
        """Return the time of one product of these sizes, that moves a part of so many bytes of weights."""
        rows, inner, columns, copies = sizes
        c = self.constants
        flops = FLOPS_PER_MAC * copies * (rows + c.outer) * (inner + c.inner) * (columns + c.outer)
        computing = flops * NS / (c.largest * self.speeds.flops_per_second)
        moved = self._moved(product) + weights * self.part.inner * self.part.columns
        return max(computing, self.moving(moved), Fraction(c.kernel_ns))

    def gradients(self, product: Product, weights: int, gradients: int) -> Iterator[Fraction]:
        """Yield the products of the backward pass."""
        rows, inner, columns, copies = self.sizes(product)
        yield self.product(product, (rows, columns, inner, copies), weights)
        if not product.weighted or self.bytes.products > 1:
            yield self.product(product, (inner, rows, columns, copies), gradients)

    def moving(self, size: Fraction) -> Fraction:
        """Return the time to move so many bytes through memory."""
        speed = self.speeds.memory_bytes_per_second
        return size * NS / (self.constants.memory * speed) if speed else Fraction(0)

    def _moved(self, product: Product) -> Fraction:
        part = self.part
        taken, made = product.read_bytes * part.inner, product.written_bytes * part.columns
        if not product.weighted:
            taken = product.read_bytes * part.inner * part.columns
        return part.samples * self.bytes.activation * (taken + made)


def adding(part: LayerPart, sizes: Bytes, speeds: Speeds, constants: Roofline) -> Fraction:
    """Return the time to add the gradients of weights to those of the micro-batches before, in ns."""
    held = GRADIENTS_ADDED * sizes.gradients * part.inner * part.columns
    return _Kernels(part, sizes, speeds, constants).moving(held if sizes.products else Fraction(0))


def unsized(
    macs: int, moved_bytes: int, part: LayerPart, sizes: Bytes, speeds: Speeds, constants: Roofline
) -> tuple[Fraction, Fraction]:
    """Return the passes of a layer of which only multiply-accumulates and bytes of a sample are known.

    One kernel forward, and backward one for each gradient.
    """
    done = part.samples * part.inner * part.columns
    computing = FLOPS_PER_MAC * macs * done * NS / (constants.unsized * speeds.flops_per_second)
    moved = moved_bytes * done * sizes.activation
    weights = (sizes.weights * part.inner * part.columns) if macs else Fraction(0)
    speed = constants.memory * speeds.memory_bytes_per_second
    moving = (moved + weights) * NS / speed if speed else Fraction(0)
    one = max(computing, moving, Fraction(constants.kernel_ns))
    both = sizes.products if macs else min(sizes.products, 1)
    return one, both * one
