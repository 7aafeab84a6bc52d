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
from solvers.executed.bounds.game import Game
from solvers.executed.bounds.pairs import least_passes
from solvers.executed.bounds.paths import FORWARD, PassPath
from solvers.executed.bounds.spans import spans_of
from solvers.executed.bounds.ways import ways_of
from solvers.executed.parts import stage_parts
from solvers.search.incumbent import Incumbent

__all__: list[str] = []

NEARBY = (2, 3)
"""Where no plan of so many stages is within the limit, paths are weighed against plans of up to 3 halves of it."""


def weighed_paths(instance: Instance, step_ns: int, deadline: Deadline = NEVER) -> tuple[WeighedPaths, ...]:
    """Return weighed paths for numbers of stages, of which plans of about such a step may be.

    Raises ValueError as ``solvers.executed.solver.accepts`` does, StoppedError after the deadline. Cost: some tens
    of sums over all plans for each number of stages.
    """
    tables = all_tables(instance, deadline)
    parts, space = stage_parts(tables, CutSpace.of(instance)), state_space(tables)
    spans, least = spans_of(tables, parts.passes, parts.space), least_passes(parts.passes, parts.space)
    found: dict[int, WeighedPaths] = {}
    for halves in NEARBY:
        most = halves * step_ns // 2
        limits = Limits(end_s=deadline.end_s, stopped=deadline.stopped)
        known = Incumbent("certify", instance, limits, most + 1)
        for game in Search(known, parts, spans, ways_of(tables, space), space, least).games(most):
            found.setdefault(len(game.sums.slots), _of(game))
    return tuple(found[stages] for stages in sorted(found))


def _of(game: Game) -> WeighedPaths:
    def passes(path: PassPath) -> tuple[PathPass, ...]:
        return tuple(PathPass(stage, "F" if row == FORWARD else "B", at) for row, stage, at in path.passes)

    return WeighedPaths(len(game.sums.slots), tuple((weight, passes(path)) for weight, path in game.weights))
