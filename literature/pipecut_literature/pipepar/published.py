"""What PipePar published: Table I in numbers, Fig. 4 as measured from its bars (CSCWD 2021)."""

from __future__ import annotations

from typing import NamedTuple


class ModelRow(NamedTuple):
    """A row of Table I: parameters, and "Total Flops (G)" in hundredths of 10**9."""

    parameters: int
    flops_e7: int


TABLE_I = {
    "vgg13": ModelRow(133_047_848, 1134),
    "vgg16": ModelRow(138_357_544, 1550),
    "vgg19": ModelRow(143_667_240, 1967),
    "resnet34": ModelRow(21_797_672, 367),
    "resnet50": ModelRow(25_557_032, 412),
    "resnet152": ModelRow(60_192_808, 1157),
}
BATCHES = (64, 128)


class Bars(NamedTuple):
    """Bars of Fig. 4: how many times as fast as data parallelism, measured to about 0.03."""

    accpar: float
    pipepar: float


FIGURE_4 = {
    (64, "vgg13"): Bars(5.71, 9.95),
    (64, "vgg16"): Bars(5.91, 9.02),
    (64, "vgg19"): Bars(4.74, 6.74),
    (64, "resnet34"): Bars(1.07, 4.57),
    (64, "resnet50"): Bars(1.14, 3.00),
    (64, "resnet152"): Bars(1.10, 2.14),
    (128, "vgg13"): Bars(6.72, 7.08),
    (128, "vgg16"): Bars(5.08, 7.62),
    (128, "vgg19"): Bars(4.21, 6.05),
    (128, "resnet34"): Bars(1.10, 2.42),
    (128, "resnet50"): Bars(1.18, 2.41),
    (128, "resnet152"): Bars(1.15, 2.00),
}
"""By minibatch and model."""
