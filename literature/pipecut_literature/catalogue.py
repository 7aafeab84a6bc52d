"""Every published planner by name: what is registered in the group ``pipecut.planners``.

Importing this module imports no planner and no solver (``solvers.catalogue``).
"""

from __future__ import annotations

from pipecut.solvers.catalogue import SolverEntry

ONE_STAGE = "pipecut_literature.common.one_stage"
"""Where planners without a pipeline say what they make of an instance."""


def _planner(name: str, summary: str, *, place: str = "", solve: str = "solve", support: str = "") -> SolverEntry:
    """Return the entry of a planner: in the folder of its name, or at another ``place`` in the package."""
    module = f"pipecut_literature.{place or f'{name}.planner'}"
    return SolverEntry.of(name, summary, module, solve=solve, support=support)


PLANNERS: tuple[SolverEntry, ...] = (
    _planner("pipedream", "PipeDream's optimiser as the SOSP paper states it; proves nothing"),
    _planner(
        "pipedream_code",
        "PipeDream's optimiser as its program computes it; proves nothing",
        place="pipedream.planner",
        solve="solve_code",
        support="pipecut_literature.pipedream.planner:accepts_code",
    ),
    _planner("alpa", "Alpa's dynamic programme for the time of a step; proves nothing"),
    _planner("gpipe", "GPipe's partitioner, cells of least variance; proves nothing"),
    _planner(
        "naive_model_parallel",
        "equally many layers on every device; a baseline",
        place="baselines.naive_model_parallel",
    ),
    _planner(
        "megatron",
        "Megatron-LM's uniform (t, p, d), all of them tried; proves nothing",
        support="pipecut.solvers.search.support:takes_all",
    ),
    _planner(
        "data_parallel",
        "the whole model on every device; the usual baseline",
        place="baselines.data_parallel",
        support=ONE_STAGE,
    ),
    _planner(
        "one_weird_trick",
        "convolutions in form 0, fully connected layers split; one stage",
        support=ONE_STAGE,
    ),
    _planner(
        "hypar", "HyPar: data or model parallelism a layer, least communication; one stage", support=ONE_STAGE
    ),
    _planner("accpar", "AccPar: a form for each layer by its own cost model; one stage", support=ONE_STAGE),
    _planner("hetpipe", "HetPipe: one device a stage, in the best order of unlike devices"),
)
"""In the order in which ``pipecut compare`` shows them, behind the solvers and the reference of the house."""
