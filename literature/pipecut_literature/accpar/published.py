"""What AccPar and HyPar published, and what AccPar's program prints: the numbers that the study compares with.

Sources: AccPar (Song et al., HPCA 2020); its program, linghaosong/AccPar, with its file ``networks/Alexnet.txt``.
"""

from __future__ import annotations

from pipecut_literature.accpar.code import MatrixLayer

ALEXNET = (
    MatrixLayer("conv1", 3, 224**2, 11**2, 96, 55**2),
    MatrixLayer("conv2", 96, 55**2, 5**2, 256, 27**2),
    MatrixLayer("conv3", 256, 27**2, 3**2, 384, 13**2),
    MatrixLayer("conv4", 384, 13**2, 3**2, 384, 13**2),
    MatrixLayer("conv5", 384, 13**2, 3**2, 256, 6**2),
    MatrixLayer("fc1", 9216, 1, 1, 4096, 1),
    MatrixLayer("fc2", 4096, 1, 1, 4096, 1),
    MatrixLayer("fc3", 4096, 1, 1, 1000, 1),
)
"""Input channels, input map, kernel, output channels, output map after pooling."""

BATCH = 512
BYTES_PER_ELEMENT = 2
LEVELS = 7

PROGRAM_TYPES = {
    "AccPar": ("00000121", "00000211", "00000121", "00000212", "00000121", "00021212", "00001121"),
    "HyPar": ("00000111", "00000111", "00000111", "00000100", "00000111", "00001000", "00011111"),
}
"""The types of AlexNet's layers at each level, highest first, as the program prints them for 128 devices."""

SPEED_UPS = {"OWT": 2.98, "HyPar": 3.78, "AccPar": 6.30}
"""Geometric means over its networks, data parallelism = 1, on 128 TPU-v2 and 128 TPU-v3 (abstract)."""

ARRAY = (("TPU-v2", 128, 180 * 10**12), ("TPU-v3", 128, 420 * 10**12))
"""Device class, number of devices, FLOP/s."""
