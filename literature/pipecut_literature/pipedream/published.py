"""What PipeDream's program prints for its own profiles, and Table 1 of its first paper, as data."""

from __future__ import annotations

from typing import NamedTuple

FAST_GBIT, SLOW_GBIT = 25, 10
"""Clusters A and B of arXiv 1806.03377, Gbit/s between machines of one device."""


class ProgramRow(NamedTuple):
    """One run of the program: profile, states, machines, Gbit/s, then what it prints.

    ``charged`` is the plan with ``--activation_compression_ratio 1`` and its seconds per minibatch, with the
    speed-up over one machine and over data parallelism; ``free`` the plan without that switch, where no transfer
    between stages is charged. Numbers stay texts: they are compared digit by digit.
    """

    profile: str
    states: int
    machines: int
    gbit: int
    charged: tuple[str, str]
    speedups: tuple[str, str]
    free: tuple[str, str]


PROGRAM_ROWS = (
    ProgramRow("alexnet", 22, 4, 25, ("3-1", "0.02824596523"), ("3.0206", "2.8318"), ("2-1-1", "0.02226628064")),
    ProgramRow("alexnet", 22, 4, 10, ("3-1", "0.03246091307"), ("2.6284", "5.1746"), ("2-1-1", "0.0229012016")),
    ProgramRow("alexnet", 22, 8, 25, ("7-1", "0.01244949104"), ("6.8534", "3.6051"), ("4-1-1-1-1", "0.01162")),
    ProgramRow("alexnet", 22, 8, 10, ("7-1", "0.0150994944"), ("5.6506", "6.3715"), ("3-1-1-1-1-1", "0.01162")),
    ProgramRow("vgg16", 40, 4, 25, ("3-1", "0.1733872663"), ("3.8788", "1.7358"), ("3-1", "0.1715365997")),
    ProgramRow("vgg16", 40, 4, 10, ("3-1", "0.1763491659"), ("3.8137", "2.8364"), ("3-1", "0.1744984992")),
    ProgramRow("vgg16", 40, 8, 25, ("7-1", "0.09366112878"), ("7.1805", "1.7248"), ("6-1-1", "0.09175018302")),
    ProgramRow("vgg16", 40, 8, 10, ("7-1", "0.1008413934"), ("6.6692", "2.7545"), ("4-2-1-1", "0.093357134")),
    ProgramRow("resnet18", 100, 4, 25, ("3-1", "0.06902318076"), ("3.7631", "1.1034"), ("2-1-1", "0.065918")),
    ProgramRow("resnet18", 100, 4, 10, ("3-1", "0.0822083584"), ("3.1596", "1.1312"), ("2-1-1", "0.065918")),
    ProgramRow(
        "resnet18", 100, 8, 25, ("6-2", "0.03691174192"), ("7.0368", "1.0570"), ("5-1-1-1", "0.0338367572")
    ),
    ProgramRow(
        "resnet18", 100, 8, 10, ("5-2-1", "0.04360132538"), ("5.9572", "1.1200"), ("4-1-1-1-1", "0.033883")
    ),
    ProgramRow("squeezenet1_0", 99, 4, 25, ("4", "0.07253998704"), ("3.9339", "1.0000"), ("3-1", "0.07168544299")),
    ProgramRow("squeezenet1_0", 99, 4, 10, ("4", "0.0743377176"), ("3.8388", "1.0000"), ("3-1", "0.07213960747")),
    ProgramRow("squeezenet1_0", 99, 8, 25, ("5-3", "0.0362979751"), ("7.8618", "1.0020"), ("5-1-1-1", "0.035818")),
    ProgramRow(
        "squeezenet1_0", 99, 8, 10, ("8", "0.0374185436"), ("7.6263", "1.0000"), ("5-1-1-1", "0.0359137289")
    ),
    ProgramRow("gnmt", 99, 4, 25, ("1-1-1-1", "0.025868"), ("3.4566", "8.0551"), ("1-1-1-1", "0.025868")),
    ProgramRow("gnmt", 99, 4, 10, ("1-1-1-1", "0.025868"), ("3.4566", "18.8415"), ("1-1-1-1", "0.025868")),
    ProgramRow("resnet50", 240, 4, 25, ("3-1", "0.1164263171"), ("3.8086", "1.1629"), ("1-1-1-1", "0.111497")),
    ProgramRow("resnet50", 240, 4, 10, ("2-2", "0.1519926032"), ("2.9174", "1.1329"), ("1-1-1-1", "0.111497")),
)


class PaperRow(NamedTuple):
    """A row of Table 1 of the paper: model, machines, cluster, and measured speed-ups over one machine.

    ``plan`` and ``speedup`` are PipeDream's, ``bsp`` data parallelism's; ``saved`` percent of its communication.
    """

    model: str
    machines: int
    cluster: str
    gbit: int
    bsp: str
    plan: str
    speedup: str
    over_bsp: str
    saved: str


PAPER_ROWS = (
    PaperRow("vgg16", 4, "A", FAST_GBIT, "1.47", "2-1-1", "3.14", "2.13", "90"),
    PaperRow("vgg16", 8, "A", FAST_GBIT, "2.35", "7-1", "7.04", "2.99", "95"),
    PaperRow("vgg16", 16, "A", FAST_GBIT, "3.28", "9-5-1-1", "9.86", "3.00", "91"),
    PaperRow("vgg16", 8, "B", SLOW_GBIT, "1.36", "7-1", "6.98", "5.12", "95"),
)
"""The rows of a model whose profile is published; those of Inception-v3 and S2VT are not in these data."""
