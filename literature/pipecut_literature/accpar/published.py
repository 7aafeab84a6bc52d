"""What AccPar and HyPar published, and what AccPar's program prints: the numbers that the study compares with.

Sources: AccPar (Song et al., HPCA 2020); its program, linghaosong/AccPar, with its file ``networks/Alexnet.txt``.
Tables lie in ``published.yaml``.
"""

from __future__ import annotations

from pipecut_literature.accpar.code import MatrixLayer
from pipecut_literature.studies.study import published

_TABLES = published(__file__)
ALEXNET = tuple(
    MatrixLayer(name, inputs, taken**2, kernel**2, outputs, made**2)
    for name, inputs, taken, kernel, outputs, made in _TABLES["alexnet"]
)

BATCH = 512
BYTES_PER_ELEMENT = 2
LEVELS = 7

PROGRAM_TYPES = {planner: tuple(levels) for planner, levels in _TABLES["program_types"].items()}
SPEED_UPS = {planner: float(speed) for planner, speed in _TABLES["speed_ups"].items()}

ARRAY = (("TPU-v2", 128, 180 * 10**12), ("TPU-v3", 128, 420 * 10**12))
"""Device class, number of devices, FLOP/s."""
