"""What HetPipe published (Park et al., USENIX ATC 2020), images per second with minibatches of 32.

A virtual worker is written by its devices: V TITAN V, R TITAN RTX, G RTX 2060, Q Quadro P4000.
"""

from __future__ import annotations

from typing import NamedTuple

MODELS = {"VGG-19": "vgg19.yaml", "ResNet-152": "resnet152.yaml"}
"""Scenario files in ``scenarios/hetpipe``."""
BATCH = 32

ONE_V = {"VGG-19": 159, "ResNet-152": 112}
"""Table 4: a single TITAN V."""

HOROVOD = {
    "VGG-19": (("VVVV", 164), ("VVVVRRRR", 205), ("VVVVRRRRQQQQ", 265), ("VVVVRRRRQQQQGGGG", 339)),
    "ResNet-152": (("VVVV", 233), ("VVVVRRRR", 353), ("VVVVRRRRQQQQ", 415)),
}
"""Table 4: data parallelism on so many devices. ResNet-152 does not fit into a G."""


class PublishedRun(NamedTuple):
    """A run: virtual workers, minibatches in flight in each (N_m), whether parameters lie locally, images/s."""

    label: str
    workers: tuple[str, ...]
    in_flight: int
    local: bool
    images_per_second: int


TABLE_4 = {
    "VGG-19": (
        PublishedRun("4 [V]", ("VVVV",), 5, True, 300),
        PublishedRun("8 [VR]", ("VR",) * 4, 4, True, 530),
        PublishedRun("12 [VRQ]", ("VRQ",) * 4, 5, True, 572),
        PublishedRun("16 [VRQG]", ("VRGQ",) * 4, 5, True, 606),
    ),
    "ResNet-152": (
        PublishedRun("4 [V]", ("VVVV",), 5, True, 256),
        PublishedRun("8 [VR]", ("VR",) * 4, 5, True, 516),
        PublishedRun("12 [VRQ]", ("VRQ",) * 4, 6, True, 538),
        PublishedRun("16 [VRQG]", ("VRGQ",) * 4, 7, True, 580),
    ),
}
"""N_m is the published total of concurrent minibatches divided by the number of virtual workers."""

_NP = ("VVVV", "RRRR", "GGGG", "QQQQ")
_ED = ("VRGQ",) * 4
_HD = ("VVQQ", "VVQQ", "RRGG", "RRGG")

FIGURE_5 = {
    "VGG-19": (
        PublishedRun("NP", _NP, 2, False, 97),
        PublishedRun("ED", _ED, 5, False, 172),
        PublishedRun("ED-local", _ED, 5, True, 606),
        PublishedRun("HD", _HD, 2, False, 85),
    ),
    "ResNet-152": (
        PublishedRun("NP", _NP, 2, False, 224),
        PublishedRun("ED", _ED, 7, False, 456),
        PublishedRun("ED-local", _ED, 7, True, 580),
        PublishedRun("HD", _HD, 4, False, 410),
    ),
}
"""D = 0; bars measured in the figure, to about 8 images/s (the bars that Table 4 repeats are exact)."""

FIGURE_4 = {
    "VGG-19": (
        ("VVVV", 119),
        ("RRRR", 107),
        ("GGGG", 62),
        ("QQQQ", 51),
        ("VRGQ", 60),
        ("VVQQ", 116),
        ("RRGG", 68),
    ),
    "ResNet-152": (
        ("VVVV", 96),
        ("RRRR", 87),
        ("GGGG", 58),
        ("QQQQ", 43),
        ("VRGQ", 42),
        ("VVQQ", 53),
        ("RRGG", 58),
    ),
}
"""One virtual worker, one minibatch in flight; bars measured in the figure."""

PIPEDREAM_RESNET152 = 158
"""PipeDream on the same cluster: the best of its plans, of 12 to 14 stages such as 4-2-1x10."""
