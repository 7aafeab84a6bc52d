"""Every solver by name, and what each can do: the explicit table through which all of them are asked.

Published planners have a table of their own (``planners.catalogue``), which the command line joins to this one.
Importing this module imports no solver; ``load`` and ``accepts`` do, the latter without OR-Tools, so that
``pipecut --help`` never waits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formulation.outcome import Limits, Outcome
    from formulation.problem.instance import Instance
    from solvers.search.support import Support

    Solve = Callable[[Instance, Limits], Outcome]

__all__ = ["AUTO", "SOLVERS", "SolverEntry", "entry"]


def _takes_all(instance: Instance) -> Support:
    from solvers.search.support import takes_all

    return takes_all(instance)


@dataclass(frozen=True, slots=True)
class SolverEntry:
    """A way to find a plan: its name, one line about it, and what it can do.

    ``load`` imports and returns ``solve``; ``accepts`` says what the method makes of an instance. An ``exact``
    method proves what it finds where its support says so, and has a row in ``solvers.ingredients.METHODS``.
    """

    name: str
    summary: str
    load: Callable[[], Solve]
    accepts: Callable[[Instance], Support] = _takes_all
    exact: bool = False


def entry(
    name: str, summary: str, module: str, *, solve: str = "solve", support: str = "", exact: bool = False
) -> SolverEntry:
    """Return an entry whose ``solve`` is in a module, and whose ``accepts`` is there or where ``support`` says.

    ``support`` is a module, or ``module:function``.
    """
    home, _, function = (support or module).partition(":")
    return SolverEntry(
        name,
        summary,
        lambda: getattr(importlib.import_module(module), solve),
        lambda instance: getattr(importlib.import_module(home), function or "accepts")(instance),
        exact,
    )


AUTO = entry(
    "auto",
    "whoever sees the whole instance and is fastest, checked by another; the default",
    "solvers.auto.solve",
    support="solvers.search.support:takes_all",
)
MAIN = "cpsat"
"""The declarative model, which sees every rule."""
SOLVERS: tuple[SolverEntry, ...] = (
    entry(
        "cpsat",
        "the declarative model in OR-Tools CP-SAT",
        "solvers.cpsat.solver",
        support="solvers.cpsat.support",
        exact=True,
    ),
    entry("line_dp", "the exact dynamic programme over the line", "solvers.dynamic.line.solver", exact=True),
    entry(
        "state_dp", "the exact dynamic programme over device states", "solvers.dynamic.states.solver", exact=True
    ),
    entry(
        "paced_dp", "the exact branch and bound over bottlenecks", "solvers.dynamic.step_time.solver", exact=True
    ),
    entry(
        "cpsat_atoms",
        "the declarative model on places to cut",
        "solvers.cpsat.on_atoms.solver",
        support="solvers.cpsat.on_atoms.support",
        exact=True,
    ),
    entry("brute_force", "the enumeration of all plans", "solvers.exhaustive", exact=True),
)


def solver_names() -> tuple[str, ...]:
    """Return the names of all solvers, in the order of the table, in which ``auto`` asks them."""
    return tuple(one.name for one in SOLVERS)


def find_solver(name: str) -> SolverEntry:
    """Return the entry of a solver. Raises ValueError with the known names for any other."""
    for one in SOLVERS:
        if one.name == name:
            return one
    raise ValueError(f"no solver {name!r}; expected one of {', '.join(solver_names())}")
