"""AmoebaNet-D (L, D) for ImageNet as layers on a line: weights, products and kept activations of every cell.

The two cells are those of Real et al. (arXiv 1802.01548, Fig. 2) as the TPU reference implementation and, after
it, torchgpipe's benchmark read them: the normal cell puts states 0, 3, 4 and 6 together. A stem convolution of
D / 4 channels and two reduction cells bring 224 x 224 images to 28 x 28 with D channels; three groups of L / 3
normal cells follow, with a reduction cell, which halves the side and doubles the channels, between them; then
average pooling and 1,000 classes. All convolutions are ReLU, convolution without bias, batch normalisation; a cell
first brings its two inputs to its own number of channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipecut.formulation.predictor.roofline import Product, Work

SIDE = 224
CLASSES = 1000


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution: channels in and out, elements of its kernel, side of its square input and output."""

    inputs: int
    outputs: int
    kernel: int
    side_in: int
    side_out: int

    @property
    def parameters(self) -> int:
        """Weights, and scale and shift of the normalisation behind."""
        return self.inputs * self.outputs * self.kernel + 2 * self.outputs

    @property
    def flops(self) -> int:
        """Multiplications and additions for one sample."""
        return 2 * self.inputs * self.outputs * self.kernel * self.side_out**2

    @property
    def kept_elements(self) -> int:
        """Kept for one sample: its input, which is the output of ReLU, and the input of the normalisation."""
        return self.inputs * self.side_in**2 + self.outputs * self.side_out**2

    @property
    def product(self) -> Product:
        """The product, bytes in elements: a row for each element of the output's side, squared."""
        taken, made = self.inputs * self.side_in**2, self.outputs * self.side_out**2
        return Product(self.side_out**2, self.inputs * self.kernel, self.outputs, 1, True, taken, made)


@dataclass(frozen=True, slots=True)
class ConvolutionalLayer:
    """One layer of the line, for one sample; ``boundary_elements`` go on to the next: its output and its input.

    ``work`` has elements where it says bytes.
    """

    name: str
    parameters: int
    flops: int
    kept_elements: int
    boundary_elements: int
    work: Work


_Operation = tuple[int, str]
NORMAL: tuple[_Operation, ...] = (
    (1, "conv_1x1"), (1, "max_pool"), (1, "none"), (0, "conv_1x7_7x1"), (0, "conv_1x1"),
    (0, "conv_1x7_7x1"), (2, "max_pool"), (2, "none"), (1, "avg_pool"), (5, "conv_1x1"),
)  # fmt: skip
REDUCTION: tuple[_Operation, ...] = (
    (0, "max_pool"), (0, "max_pool"), (2, "none"), (1, "conv_3x3"), (2, "conv_1x7_7x1"),
    (2, "max_pool"), (3, "none"), (1, "max_pool"), (2, "avg_pool"), (3, "conv_1x1"),
)  # fmt: skip
"""Operations by the state that they read; each pair is added to the next state. 0 is the cell's own input brought
to its channels, 1 that of the cell before; in a reduction cell operations on these two halve the side."""
NORMAL_JOINED, REDUCTION_JOINED = 4, 3
"""How many states the output of a cell puts together."""


def _operation(name: str, channels: int, side_in: int, side_out: int) -> Iterator[Convolution]:
    """Yield the convolutions of an operation; the long ones work on a quarter of the channels."""
    quarter = channels // 4
    if name == "conv_1x1":
        yield Convolution(channels, channels, 1, side_in, side_out)
    elif name in ("conv_3x3", "conv_1x7_7x1"):
        yield Convolution(channels, quarter, 1, side_in, side_in)
        kernels = (9,) if name == "conv_3x3" else (7, 7)
        for kernel in kernels:
            yield Convolution(quarter, quarter, kernel, side_in if kernel == kernels[0] else side_out, side_out)
        yield Convolution(quarter, channels, 1, side_out, side_out)


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell: channels and side of its input and of the input before that, and its own channels."""

    channels: int
    inputs: int
    before: int
    side: int
    side_before: int
    reduction: bool

    @property
    def side_out(self) -> int:
        return self.side // 2 if self.reduction else self.side

    @property
    def outputs(self) -> int:
        return self.channels * (REDUCTION_JOINED if self.reduction else NORMAL_JOINED)

    def convolutions(self) -> Iterator[Convolution]:
        yield Convolution(self.inputs, self.channels, 1, self.side, self.side)
        if self.side_before != self.side or self.before != self.channels:
            yield Convolution(self.before, self.channels, 1, self.side_before, self.side)
        for state, name in REDUCTION if self.reduction else NORMAL:
            yield from _operation(name, self.channels, self._side(state), self.side_out)

    def pooled_elements(self) -> int:
        """Return the inputs of max pooling, each state once, which it keeps to find the largest again."""
        states = {state for state, name in (REDUCTION if self.reduction else NORMAL) if name == "max_pool"}
        return sum(self.channels * self._side(state) ** 2 for state in states)

    def _side(self, state: int) -> int:
        return self.side if state < 2 else self.side_out

    def layer(self, name: str) -> ConvolutionalLayer:
        every = tuple(self.convolutions())
        return ConvolutionalLayer(
            name,
            sum(one.parameters for one in every),
            sum(one.flops for one in every),
            sum(one.kept_elements for one in every) + self.pooled_elements(),
            self.outputs * self.side_out**2 + self.inputs * self.side**2,
            _work(every, self.pooled_elements()),
        )


def _work(every: tuple[Convolution, ...], pooled: int = 0) -> Work:
    """Return the products of convolutions, and the kernels behind: normalisation with ReLU, and max pooling.

    A normalisation reads its input for the statistics and again to scale it, and writes it once; a pooling reads
    each state that it takes, and writes as much.
    """
    made = sum(one.product.written_bytes for one in every)
    return Work(tuple(one.product for one in every), 2 * len(every), 2 * made + pooled, made + pooled)


def amoebanet_d(layers: int, filters: int) -> tuple[ConvolutionalLayer, ...]:
    """Return the stem, the cells and the classifier of AmoebaNet-D (L, D), for one sample.

    Raises ValueError unless L is a multiple of 3 and D one of 4, both above 0.
    """
    if layers < 1 or filters < 1 or layers % 3 or filters % 4:
        raise ValueError(f"AmoebaNet-D ({layers}, {filters}): expected multiples of 3 and 4 above 0")
    channels = filters // 4
    stem = Convolution(3, channels, 9, SIDE, SIDE // 2)
    output = channels * stem.side_out**2
    found = [ConvolutionalLayer("stem", stem.parameters, stem.flops, stem.kept_elements, output, _work((stem,)))]
    inputs = before = channels
    side = side_before = stem.side_out
    group = (False,) * (layers // 3)
    for at, reduction in enumerate((True, True, *group, True, *group, True, *group)):
        channels *= 2 if reduction else 1
        cell = _Cell(channels, inputs, before, side, side_before, reduction)
        found.append(cell.layer(f"cell {at}"))
        inputs, before, side, side_before = cell.outputs, inputs, cell.side_out, side
    found.append(
        ConvolutionalLayer("classifier", (inputs + 1) * CLASSES, 2 * inputs * CLASSES, inputs, CLASSES, Work())
    )
    return tuple(found)
