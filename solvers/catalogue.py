"""Every solver by name: the explicit table that the command line, comparisons and tests go through.

Importing this module imports no solver; ``load`` does, so that ``pipecut --help`` never waits for OR-Tools.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from formulation.instance import Instance
    from formulation.outcome import Limits, Outcome

    Solve = Callable[[Instance, Limits], Outcome]


class SolverEntry(NamedTuple):
    """A way to find a plan: its name, one line about it, and a function that imports and returns ``solve``."""

    name: str
    summary: str
    load: Callable[[], Solve]


def _cpsat() -> Solve:
    from solvers.cpsat.layered import solve

    return solve


def _cpsat_stages() -> Solve:
    from solvers.cpsat.staged import solve

    return solve


def _line_dp() -> Solve:
    from solvers.line_dp import solve

    return solve


def _state_dp() -> Solve:
    from solvers.states.solver import solve

    return solve


def _paced_dp() -> Solve:
    from solvers.paced.solver import solve

    return solve


def _pipepar() -> Solve:
    from solvers.pipepar import solve

    return solve


def _pipepar_listed() -> Solve:
    from solvers.pipepar_listed import solve

    return solve


def _megatron() -> Solve:
    from solvers.megatron import solve

    return solve


def _data_parallel() -> Solve:
    from solvers.data_parallel import solve

    return solve


def _pipedream() -> Solve:
    from solvers.pipedream import solve

    return solve


def _pipedream_code() -> Solve:
    from solvers.pipedream import solve_code

    return solve_code


def _alpa() -> Solve:
    from solvers.alpa import solve

    return solve


def _gpipe() -> Solve:
    from solvers.gpipe import solve

    return solve


def _naive_model_parallel() -> Solve:
    from solvers.naive_model_parallel import solve

    return solve


def _one_weird_trick() -> Solve:
    from solvers.one_weird_trick import solve

    return solve


def _hypar() -> Solve:
    from solvers.hypar import solve

    return solve


def _accpar() -> Solve:
    from solvers.accpar import solve

    return solve


def _hetpipe() -> Solve:
    from solvers.hetpipe import solve

    return solve


def _brute_force() -> Solve:
    from solvers.brute_force import solve

    return solve


SOLVERS: tuple[SolverEntry, ...] = (
    SolverEntry("cpsat", "the declarative model, searched and proved by OR-Tools CP-SAT", _cpsat),
    SolverEntry("cpsat_stages", "CP-SAT over whole stages, with tables of the dynamic programme", _cpsat_stages),
    SolverEntry("line_dp", "exact dynamic programme for devices in a line", _line_dp),
    SolverEntry("state_dp", "exact dynamic programme over device states: memory, free placement", _state_dp),
    SolverEntry("paced_dp", "exact branch and bound for the time of a step: latency, bottleneck", _paced_dp),
    SolverEntry("pipepar", "PipePar's planner as a true dynamic programme; proves nothing", _pipepar),
    SolverEntry(
        "pipepar_listed", "PipePar's planner as its Algorithm 2 is printed; proves nothing", _pipepar_listed
    ),
    SolverEntry("pipedream", "PipeDream's optimiser as the SOSP paper states it; proves nothing", _pipedream),
    SolverEntry(
        "pipedream_code", "PipeDream's optimiser as its program computes it; proves nothing", _pipedream_code
    ),
    SolverEntry("alpa", "Alpa's dynamic programme for the time of a step; proves nothing", _alpa),
    SolverEntry("gpipe", "GPipe's partitioner, cells of least variance; proves nothing", _gpipe),
    SolverEntry("naive_model_parallel", "equally many layers on every device; a baseline", _naive_model_parallel),
    SolverEntry("megatron", "Megatron-LM's uniform (t, p, d), all of them tried; proves nothing", _megatron),
    SolverEntry("data_parallel", "the whole model on every device; the usual baseline", _data_parallel),
    SolverEntry(
        "one_weird_trick", "convolutions in form 0, fully connected layers split; one stage", _one_weird_trick
    ),
    SolverEntry("hypar", "HyPar: data or model parallelism a layer, least communication; one stage", _hypar),
    SolverEntry("accpar", "AccPar: a form for each layer by its own cost model; one stage", _accpar),
    SolverEntry("hetpipe", "HetPipe: one device a stage, in the best order of unlike devices", _hetpipe),
    SolverEntry("brute_force", "every plan there is, for small instances", _brute_force),
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
