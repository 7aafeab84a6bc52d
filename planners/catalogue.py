"""Every published planner by name, joined to the solvers of the house: what the command line and studies ask.

Importing this module imports no planner and no solver (``solvers.catalogue``).
"""

from __future__ import annotations

from pipecut.solvers import catalogue
from pipecut.solvers.catalogue import SolverEntry

ONE_STAGE = "pipecut.planners.common.one_stage"

PLANNERS: tuple[SolverEntry, ...] = (
    SolverEntry.of(
        "pipepar",
        "PipePar's planner as a true dynamic programme; proves nothing",
        "pipecut.solvers.reference.algorithm_2",
    ),
    SolverEntry.of(
        "pipepar_listed",
        "PipePar's planner as its Algorithm 2 is printed; proves nothing",
        "pipecut.solvers.reference.algorithm_2_as_printed",
    ),
    SolverEntry.of(
        "pipedream",
        "PipeDream's optimiser as the SOSP paper states it; proves nothing",
        "pipecut.planners.pipedream.planner",
    ),
    SolverEntry.of(
        "pipedream_code",
        "PipeDream's optimiser as its program computes it; proves nothing",
        "pipecut.planners.pipedream.planner",
        solve="solve_code",
        support="pipecut.planners.pipedream.planner:accepts_code",
    ),
    SolverEntry.of(
        "alpa", "Alpa's dynamic programme for the time of a step; proves nothing", "pipecut.planners.alpa.planner"
    ),
    SolverEntry.of(
        "gpipe", "GPipe's partitioner, cells of least variance; proves nothing", "pipecut.planners.gpipe.planner"
    ),
    SolverEntry.of(
        "naive_model_parallel",
        "equally many layers on every device; a baseline",
        "pipecut.planners.baselines.naive_model_parallel",
    ),
    SolverEntry.of(
        "megatron",
        "Megatron-LM's uniform (t, p, d), all of them tried; proves nothing",
        "pipecut.planners.megatron.planner",
        support="pipecut.solvers.search.support:takes_all",
    ),
    SolverEntry.of(
        "data_parallel",
        "the whole model on every device; the usual baseline",
        "pipecut.planners.baselines.data_parallel",
    ),
    SolverEntry.of(
        "one_weird_trick",
        "convolutions in form 0, fully connected layers split; one stage",
        "pipecut.planners.one_weird_trick.planner",
        support=ONE_STAGE,
    ),
    SolverEntry.of(
        "hypar",
        "HyPar: data or model parallelism a layer, least communication; one stage",
        "pipecut.planners.hypar.planner",
        support=ONE_STAGE,
    ),
    SolverEntry.of(
        "accpar",
        "AccPar: a form for each layer by its own cost model; one stage",
        "pipecut.planners.accpar.planner",
        support=ONE_STAGE,
    ),
    SolverEntry.of(
        "hetpipe",
        "HetPipe: one device a stage, in the best order of unlike devices",
        "pipecut.planners.hetpipe.planner",
    ),
)


def all_solvers() -> tuple[SolverEntry, ...]:
    """Return the entries of all solvers and planners, solvers first."""
    return (*catalogue.SOLVERS, *PLANNERS)


def all_names() -> tuple[str, ...]:
    """Return the names of all solvers and planners, in that order."""
    return tuple(one.name for one in all_solvers())


def find_any(name: str) -> SolverEntry:
    """Return the entry of a solver or planner. Raises ValueError with the known names for any other."""
    for one in (catalogue.AUTO, *all_solvers()):
        if one.name == name:
            return one
    raise ValueError(f"no solver {name!r}; expected one of {catalogue.AUTO.name}, {', '.join(all_names())}")
