"""(14) ``own``: what the families of a user's own constraints post."""

from __future__ import annotations

from ortools.sat.python import cp_model

from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_own(v: Variables) -> Posted:
    """(14) What the user's own families post."""
    for at, own in enumerate(v.tables.instance.constraints.own):
        for index, constraint in own.post(v):
            yield (at, *index), _constraint(own.name, constraint)


def _constraint(name: str, posted: object) -> cp_model.Constraint:
    """Hold a user's generator to what a family yields. Raises TypeError for anything else."""
    if not isinstance(posted, cp_model.Constraint):
        raise TypeError(f"own constraint {name}: yielded {posted!r}, expected what v.model.add returns")
    return posted


FAMILY = Family(14, "own", post_own)
