"""What PipeDream's program prints for its own profiles, and Table 1 of its first paper: ``published.yaml``."""

from __future__ import annotations

from typing import NamedTuple

from pipecut_literature.studies.study import published

_TABLES = published(__file__)


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


PROGRAM_ROWS = tuple(
    ProgramRow(profile, states, machines, gbit, tuple(charged), tuple(speedups), tuple(free))
    for profile, states, machines, gbit, charged, speedups, free in _TABLES["program"]
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


PAPER_ROWS = tuple(PaperRow(*row) for row in _TABLES["paper"])
