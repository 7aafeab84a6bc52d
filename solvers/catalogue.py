"""Every solver by name: the explicit table that the command line, comparisons and tests go through.

Importing this module imports no solver; ``load`` does, so that ``pipecut --help`` never waits for OR-Tools.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from formulation.outcome import Limits, Outcome
    from formulation.problem.instance import Instance

    Solve = Callable[[Instance, Limits], Outcome]


class SolverEntry(NamedTuple):
    """A way to find a plan: its name, one line about it, and a function that imports and returns ``solve``."""

    name: str
    summary: str
    load: Callable[[], Solve]


def _from(module: str, function: str = "solve") -> Callable[[], Solve]:
    """Return a function that imports a solver when it is called."""
    return lambda: getattr(importlib.import_module(module), function)


SOLVERS: tuple[SolverEntry, ...] = (
    SolverEntry(
        "cpsat", "the declarative model, searched and proved by OR-Tools CP-SAT", _from("solvers.cpsat.solver")
    ),
    SolverEntry(
        "cpsat_stages",
        "CP-SAT over whole stages, with tables of the dynamic programme",
        _from("solvers.cpsat.whole_stages.solver"),
    ),
    SolverEntry("line_dp", "exact dynamic programme for devices in a line", _from("solvers.dynamic.line.solver")),
    SolverEntry(
        "state_dp",
        "exact dynamic programme over device states: memory, free placement",
        _from("solvers.dynamic.states.solver"),
    ),
    SolverEntry(
        "paced_dp",
        "exact branch and bound for the time of a step: latency, bottleneck",
        _from("solvers.dynamic.step_time.solver"),
    ),
    SolverEntry(
        "pipepar",
        "PipePar's planner as a true dynamic programme; proves nothing",
        _from("planners.pipepar.planner"),
    ),
    SolverEntry(
        "pipepar_listed",
        "PipePar's planner as its Algorithm 2 is printed; proves nothing",
        _from("planners.pipepar.listed"),
    ),
    SolverEntry(
        "pipedream",
        "PipeDream's optimiser as the SOSP paper states it; proves nothing",
        _from("planners.pipedream.planner"),
    ),
    SolverEntry(
        "pipedream_code",
        "PipeDream's optimiser as its program computes it; proves nothing",
        _from("planners.pipedream.planner", "solve_code"),
    ),
    SolverEntry(
        "alpa", "Alpa's dynamic programme for the time of a step; proves nothing", _from("planners.alpa.planner")
    ),
    SolverEntry(
        "gpipe", "GPipe's partitioner, cells of least variance; proves nothing", _from("planners.gpipe.planner")
    ),
    SolverEntry(
        "naive_model_parallel",
        "equally many layers on every device; a baseline",
        _from("planners.baselines.naive_model_parallel"),
    ),
    SolverEntry(
        "megatron",
        "Megatron-LM's uniform (t, p, d), all of them tried; proves nothing",
        _from("planners.megatron.planner"),
    ),
    SolverEntry(
        "data_parallel",
        "the whole model on every device; the usual baseline",
        _from("planners.baselines.data_parallel"),
    ),
    SolverEntry(
        "one_weird_trick",
        "convolutions in form 0, fully connected layers split; one stage",
        _from("planners.one_weird_trick.planner"),
    ),
    SolverEntry(
        "hypar",
        "HyPar: data or model parallelism a layer, least communication; one stage",
        _from("planners.hypar.planner"),
    ),
    SolverEntry(
        "accpar",
        "AccPar: a form for each layer by its own cost model; one stage",
        _from("planners.accpar.planner"),
    ),
    SolverEntry(
        "hetpipe",
        "HetPipe: one device a stage, in the best order of unlike devices",
        _from("planners.hetpipe.planner"),
    ),
    SolverEntry("brute_force", "every plan there is, for small instances", _from("solvers.exhaustive")),
)


def solver_names() -> tuple[str, ...]:
    """Return the names of all solvers, in the order of the table."""
    return tuple(entry.name for entry in SOLVERS)


def find_solver(name: str) -> SolverEntry:
    """Return the entry of a solver. Raises ValueError with the known names for any other."""
    for entry in SOLVERS:
        if entry.name == name:
            return entry
    raise ValueError(f"no solver {name!r}; expected one of {', '.join(solver_names())}")
