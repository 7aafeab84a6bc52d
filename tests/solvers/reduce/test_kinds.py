"""Kinds of groups that others stand for: what stages take at least is what it is with cells of all kinds."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.reduce.line import SeatLine
from pipecut.solvers.reduce.solver import accepts
from pipecut.solvers.reduce.stages import ReducedStages
from pipecut.solvers.reduce.word import Word
from tests.examples import on_servers
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import has_groups
from tests.solvers.reduce.test_reduced import QUIET, repeated
from tests.solvers.step_time.test_formula import paced

ALL = mock.patch("pipecut.solvers.reduce.stages.stand_ins", lambda priced: list(range(len(priced[0].kinds))))


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(repeated().map(paced), st.integers(1, 8))
def test_stages_take_as_long_as_with_cells_of_all_kinds(instance: Instance, eighths: int) -> None:
    """With so little memory that it matters what is divided."""
    least = 1 + MemoryParts.undivided(instance).total * eighths // 8
    rows = [replace(one, device_class=replace(one.device_class, memory_bytes=least)) for one in instance.servers]
    asked = replace(instance.constraints, sharded=tuple(Sharded), memory=True)
    instance = replace(on_servers(instance, tuple(rows)), constraints=asked)
    assume(has_groups(instance) and accepts(instance).takes)
    word = Word.of(instance)
    line = SeatLine.of(instance, word.space)
    for each in (False, True):
        own = ReducedStages.of(word, line, each=each)
        with ALL:
            every = ReducedStages.of(word, line, each=each)
        for seat in range(len(line.groups)):
            for slot in range(min(3, instance.devices)):
                np.testing.assert_array_equal(own.least(seat, slot), every.least(seat, slot))
