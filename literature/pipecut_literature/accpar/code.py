"""AccPar's and HyPar's choice of layer types, as AccPar's program makes it.

Source: linghaosong/AccPar, ``src/accpar.cpp`` (AccPar: Song et al., HPCA 2020; HyPar: HPCA 2019).

A chain of L matrix-product layers, F_l the input, W_l the weights, F_{l+1} the output, A(X) the elements of X.
A type says which dimension two halves of a machine split. Each adds up partial sums of one tensor, and moves part
of F_l if the layer before has another type (h = 1/2 is the share of a half; gradients are as large as tensors)::

    type      splits     adds up                   after type:  0 (I)        1 (II)      2 (III)
    0 (I)     batch      W_l                                    0            h A(F)      2 h h A(F)
    1 (II)    inputs     F_{l+1}, after pooling                 2 h h A(F)   h A(F)      0
    2 (III)   outputs    F_l                                    h A(F)       0           h A(F)

    cost[l][t] = A(what t adds up) + min over u of ( cost[l-1][u] + moved after u )              (Viterbi)

This is done for 2^H devices in H levels: plan one level, halve what the types split (I: rows of F_l and F_{l+1};
II: columns of F_l, rows of W; III: columns of W and F_{l+1}), plan the next. HyPar knows types I and II only.
The program minimises elements moved, not time: the paper adds computing time, and a share other than one half for
unequal devices; neither is in the code. Ties go to the smallest type. Cost: 9 L H.

The program takes every network of 18, 34 or 50 layers for a ResNet and adds a term for shortcuts that is priced
along the back-pointers found so far, so it is no longer exact; those are refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

ACCPAR = (0, 1, 2)
"""The types that AccPar chooses from: I, II and III."""
HYPAR = (0, 1)
"""The types that HyPar chooses from: data parallelism and model parallelism."""
TAKEN_FOR_RESNETS = (18, 34, 50)


@dataclass(frozen=True, slots=True)
class MatrixLayer:
    """A convolution or a fully connected layer: channels, and positions of the maps and of the kernel (1 if none).

    ``outputs_map`` is measured after the pooling that follows.
    """

    name: str
    inputs: int
    inputs_map: int
    kernel: int
    outputs: int
    outputs_map: int

    def __post_init__(self) -> None:
        if min(self.inputs, self.inputs_map, self.kernel, self.outputs, self.outputs_map) < 1:
            raise ValueError(f"layer {self.name}: expected whole numbers above 0")


@dataclass(frozen=True, slots=True)
class TypePlan:
    """For each level, highest first: the type of every layer, and the elements that each pair of halves moves."""

    types: tuple[tuple[int, ...], ...]
    elements: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class _Share:
    """What one device of the current level holds of a layer: elements of F_l, W_l and F_{l+1}."""

    taken: Fraction
    weights: Fraction
    made: Fraction

    def halved(self, kind: int) -> _Share:
        """Return half of the share, split by one type."""
        half = Fraction(1, 2)
        return (
            _Share(self.taken * half, self.weights, self.made * half),
            _Share(self.taken * half, self.weights * half, self.made),
            _Share(self.taken, self.weights * half, self.made * half),
        )[kind]

    def added_up(self, kind: int) -> Fraction:
        """Return the elements of the partial sums that the two halves exchange."""
        return (self.weights, self.made, self.taken)[kind]


def optimise(
    layers: Sequence[MatrixLayer], batch: int = 512, levels: int = 7, types: Sequence[int] = ACCPAR
) -> TypePlan:
    """Choose the types of all layers for 2^levels devices; the defaults are those of the program.

    Raises ValueError for a network without layers, or one that the program would take for a ResNet.
    """
    if not layers or len(layers) in TAKEN_FOR_RESNETS or batch < 1 or levels < 0:
        raise ValueError(f"{len(layers)} layers: expected some, but not {TAKEN_FOR_RESNETS}; batch above 0")
    shares = [
        _Share(
            Fraction(batch * layer.inputs * layer.inputs_map),
            Fraction(layer.inputs * layer.outputs * layer.kernel),
            Fraction(batch * layer.outputs * layer.outputs_map),
        )
        for layer in layers
    ]
    chosen, elements = [], []
    for _ in range(levels):
        kinds, moved = _level(shares, types)
        chosen.append(kinds)
        elements.append(moved)
        shares = [share.halved(kind) for share, kind in zip(shares, kinds, strict=True)]
    return TypePlan(tuple(chosen), tuple(elements))


def between(before: int, after: int, size: Fraction) -> Fraction:
    """Return the elements that two halves exchange when a tensor of ``size`` elements goes from type to type."""
    quarter, half = Fraction(1, 4), Fraction(1, 2)
    table = ((Fraction(0), 2 * quarter, half), (half, half, Fraction(0)), (2 * quarter, Fraction(0), half))
    return table[before][after] * size


def _level(shares: Sequence[_Share], types: Sequence[int]) -> tuple[tuple[int, ...], Fraction]:
    """Find the types that move the fewest elements at one level."""
    cost = {kind: shares[0].added_up(kind) for kind in types}
    pointers: list[dict[int, int]] = []
    for share in shares[1:]:
        step, behind = {}, {}
        for kind in types:
            best = min(types, key=lambda u, kind=kind, share=share: cost[u] + between(u, kind, share.taken))
            step[kind] = share.added_up(kind) + cost[best] + between(best, kind, share.taken)
            behind[kind] = best
        cost = step
        pointers.append(behind)
    found = [min(types, key=lambda kind: cost[kind])]
    least = cost[found[0]]
    for behind in reversed(pointers):
        found.append(behind[found[-1]])
    return tuple(reversed(found)), least
