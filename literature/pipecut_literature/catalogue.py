"""Every published planner by name: what is registered in the group ``pipecut.planners``.

Importing this module imports no planner and no solver (``solvers.catalogue``).
"""

from __future__ import annotations

from pipecut.solvers.catalogue import SolverEntry

ONE_STAGE = "pipecut_literature.common.one_stage"

PLANNERS: tuple[SolverEntry, ...] = (
    SolverEntry.of(
        "pipedream",
        "PipeDream's optimiser as the SOSP paper states it; proves nothing",
        "pipecut_literature.pipedream.planner",
    ),
    SolverEntry.of(
        "pipedream_code",
        "PipeDream's optimiser as its program computes it; proves nothing",
        "pipecut_literature.pipedream.planner",
        solve="solve_code",
        support="pipecut_literature.pipedream.planner:accepts_code",
    ),
    SolverEntry.of(
        "alpa",
        "Alpa's dynamic programme for the time of a step; proves nothing",
        "pipecut_literature.alpa.planner",
    ),
    SolverEntry.of(
        "gpipe", "GPipe's partitioner, cells of least variance; proves nothing", "pipecut_literature.gpipe.planner"
    ),
    SolverEntry.of(
        "naive_model_parallel",
        "equally many layers on every device; a baseline",
        "pipecut_literature.baselines.naive_model_parallel",
    ),
    SolverEntry.of(
        "megatron",
        "Megatron-LM's uniform (t, p, d), all of them tried; proves nothing",
        "pipecut_literature.megatron.planner",
        support="pipecut.solvers.search.support:takes_all",
    ),
    SolverEntry.of(
        "data_parallel",
        "the whole model on every device; the usual baseline",
        "pipecut_literature.baselines.data_parallel",
    ),
    SolverEntry.of(
        "one_weird_trick",
        "convolutions in form 0, fully connected layers split; one stage",
        "pipecut_literature.one_weird_trick.planner",
        support=ONE_STAGE,
    ),
    SolverEntry.of(
        "hypar",
        "HyPar: data or model parallelism a layer, least communication; one stage",
        "pipecut_literature.hypar.planner",
        support=ONE_STAGE,
    ),
    SolverEntry.of(
        "accpar",
        "AccPar: a form for each layer by its own cost model; one stage",
        "pipecut_literature.accpar.planner",
        support=ONE_STAGE,
    ),
    SolverEntry.of(
        "hetpipe",
        "HetPipe: one device a stage, in the best order of unlike devices",
        "pipecut_literature.hetpipe.planner",
    ),
)
"""In the order in which ``pipecut compare`` shows them, behind the solvers and the reference of the house."""
