"""Paths for proofs about a step: those that the search weighs against all plans of so many stages.

What they prove does not depend on where they come from: whoever checks them counts what they go through
(``formulation.certificates.executed.paths``).
"""

from __future__ import annotations

from formulation.certificates.executed.paths import PathPass, WeighedPaths
from formulation.costs.tables import all_tables
from formulation.limits.deadline import NEVER, Deadline
from formulation.outcome import Limits
from formulation.problem.cuts import CutSpace
from formulation.problem.instance import Instance
from solvers.dynamic.states.states import state_space
from solvers.executed.asking import Search
from solvers.executed.bounds.game import Weights
from solvers.executed.bounds.pairs import least_passes
from solvers.executed.bounds.paths import FORWARD, PassPath
from solvers.executed.bounds.spans import spans_of
from solvers.executed.bounds.ways import ways_of
from solvers.executed.parts import stage_parts
from solvers.search.incumbent import Incumbent

NEARBY = (1, 4)
"""Paths are weighed against the plans up to so many times a limit: what is best near it is not best for all."""
LAST = 2
"""So many means of paths are taken that were tried last: what one leaves out the next one does not see."""


def weighed_paths(instance: Instance, step_ns: int, deadline: Deadline = NEVER) -> tuple[WeighedPaths, ...]:
    """Return weighed paths for numbers of stages, of which plans of about such a step may be.

    Raises ValueError as ``solvers.executed.solver.accepts`` does, StoppedError after the deadline. Cost: some tens
    of sums over all plans for each number of stages.
    """
    tables = all_tables(instance, deadline)
    parts, space = stage_parts(tables, CutSpace.of(instance)), state_space(tables)
    spans, least = spans_of(tables, parts.passes, parts.space), least_passes(parts.passes, parts.space)
    ways, found = ways_of(tables, space), list[WeighedPaths]()
    for times in NEARBY:
        most = times * step_ns
        limits = Limits(end_s=deadline.end_s, stopped=deadline.stopped)
        known = Incumbent("certify", instance, limits, most + 1)
        search = Search(known, parts, spans, ways, space, least)
        for stages, tried in search.tried(most):
            found += [_of(stages, weights) for weights in tried[-LAST:]]
    return tuple(sorted(found, key=lambda one: one.stages))


def _of(stages: int, weights: Weights) -> WeighedPaths:
    def passes(path: PassPath) -> tuple[PathPass, ...]:
        return tuple(PathPass(stage, "F" if row == FORWARD else "B", at) for row, stage, at in path.passes)

    return WeighedPaths(stages, tuple((weight, passes(path)) for weight, path in weights))
