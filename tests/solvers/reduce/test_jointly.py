"""Searches of several numbers of micro-batches side by side: whoever is ruled out is let go."""

from __future__ import annotations

from dataclasses import replace
from typing import cast
from weakref import WeakSet

from pipecut.formulation.limits import Deadline
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Training
from pipecut.solvers.reduce.jointly import Jointly
from pipecut.solvers.reduce.reduced_dp import Search
from tests.examples import chain, instance_of, matrix, mesh


class Hopeless:
    """A search that rules all plans out in its second step; before each it looks who else is ``there``."""

    def __init__(self, upper: int, there: WeakSet[Hopeless], steps: list[int]) -> None:
        self.upper, self.best, self.there, self.steps = upper, FORBIDDEN, there, steps
        self.bound, self.plan = 0, cast("Plan | None", None)
        there.add(self)

    def begin(self) -> None:
        """Do nothing: it has no tables."""

    def step(self) -> bool:
        """Rule half of the plans out, or all."""
        assert all(one.bound < one.upper for one in self.there)
        self.bound = self.upper if self.bound else self.upper // 2
        self.steps.append(self.bound)
        return self.bound < self.upper


def test_a_number_that_is_ruled_out_is_let_go_before_anybody_goes_on() -> None:
    """Its tables are large, and nobody asks it any more."""
    there, steps = WeakSet[Hopeless](), list[int]()

    def begun(_: Instance, upper: int, __: Deadline) -> Search:
        return cast("Search", Hopeless(upper, there, steps))

    layers = chain([matrix("a", 3), matrix("b", 5)], [1])
    ways = [Training(global_batch=8, micro_batches=many) for many in (1, 2, 4, 8)]
    parts = [replace(instance_of(layers, mesh(2), training=one), goals=(Goal.STEP_TIME,)) for one in ways]
    found = Jointly.run(parts, Limits(), None, begun)
    assert len(steps) == 2 * len(parts)
    assert all(outcome.proof is Proof.INFEASIBLE for _, outcome in found)
