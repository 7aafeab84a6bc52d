"""AccPar and HyPar: the types that the authors' program prints, and the speed-ups of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pipecut.formulation.outcome import Outcome
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.units import Link
from pipecut.ingest.errors import ModelError
from pipecut.ingest.torch.source import load_model_graph
from pipecut_literature.accpar import planner as accpar
from pipecut_literature.accpar.code import ACCPAR, HYPAR, optimise
from pipecut_literature.accpar.levels import Planner, array, chain_graph, step
from pipecut_literature.accpar.published import ALEXNET, ARRAY, BATCH, LEVELS, PROGRAM_TYPES, SPEED_UPS
from pipecut_literature.baselines import data_parallel
from pipecut_literature.common.one_stage import sum_of_costs, tables_of
from pipecut_literature.hypar import planner as hypar
from pipecut_literature.one_weird_trick import planner as one_weird_trick
from pipecut_literature.studies.study import Study, StudyInputError, StudyInputs, StudyTable, words

if TYPE_CHECKING:
    import networkx as nx

TITLE = "AccPar and HyPar: types of parallelism, layer by layer"
MODELS = {
    "VGG-13": "ingest.models.vgg:vgg13",
    "VGG-16": "ingest.models.vgg:vgg16",
    "VGG-19": "ingest.models.vgg:vgg19",
    "ResNet-34": "ingest.models.resnet:resnet34",
    "ResNet-50": "ingest.models.resnet:resnet50",
}
GBITS = (8, 512, 4096)
"""Bandwidths of the array's network in Gbit/s."""
COMPARED = (Planner.OWT, Planner.HYPAR, Planner.ACCPAR_EQUAL, Planner.ACCPAR)
Solve = Callable[[Instance], Outcome]
SOLVERS: tuple[tuple[str, Solve], ...] = (
    ("OWT", one_weird_trick.solve),
    ("HyPar", hypar.solve),
    ("AccPar", accpar.solve),
)


def run(inputs: StudyInputs) -> Study:
    """Run the program on AlexNet and the papers' models on all networks. StudyInputError without PyTorch."""
    del inputs  # nothing of the user's is read
    graphs = networks()
    types, equal = types_table()
    speeds = {gbits: speed_ups(graphs, gbits) for gbits in GBITS}
    means = {gbits: geometric_means(rows) for gbits, rows in speeds.items()}
    figures: dict[str, float | int | str | None] = {"type_rows": 2 * LEVELS, "type_rows_equal": equal}
    for gbits, row in means.items():
        figures |= {f"{planner}, {gbits} Gbit/s": round(value, 2) for planner, value in row.items()}
    tables = (
        types,
        networks_table(speeds[GBITS[0]], GBITS[0]),
        means_table(means),
        one_type_table(graphs),
        priced_table(graphs),
    )
    return Study(TITLE, words(__file__, "reading"), tables, figures)


def networks() -> dict[str, nx.DiGraph]:
    """Return the layer graphs by name. Raises StudyInputError if a model cannot be traced."""
    try:
        traced = {name: load_model_graph(model) for name, model in MODELS.items()}
    except ModelError as error:
        raise StudyInputError(str(error)) from error
    return {"AlexNet": chain_graph("alexnet", ALEXNET), **traced}


def types_table() -> tuple[StudyTable, int]:
    """Return the types of AlexNet's layers, published and ours, and how many of the 14 rows are equal."""
    ours = {
        name: ["".join(map(str, types)) for types in optimise(ALEXNET, BATCH, LEVELS, kinds).types]
        for name, kinds in (("AccPar", ACCPAR), ("HyPar", HYPAR))
    }
    rows = tuple(
        (name, str(level), published, found, "yes" if published == found else "no")
        for name, printed in PROGRAM_TYPES.items()
        for level, (published, found) in enumerate(zip(printed, ours[name], strict=True))
    )
    remark = (
        f"Batch {BATCH}, {2**LEVELS} devices; level 0 cuts the whole array. Layers conv1 to conv5, fc1 to fc3."
    )
    columns = ("planner", "level", "program prints", "ours", "equal")
    equal = sum(row[-1] == "yes" for row in rows)
    return StudyTable("Types of AlexNet's layers, level by level", columns, rows, (remark,)), equal


def speed_ups(graphs: Mapping[str, nx.DiGraph], gbits: int) -> dict[str, dict[Planner, float]]:
    """Return by network and planner how many times faster than data parallel a step is, by the papers' model."""
    found: dict[str, dict[Planner, float]] = {}
    for name, graph in graphs.items():
        instance = array(graph, Link(gbits * 10**9))
        base = step(instance, Planner.DATA_PARALLEL).total_ns
        found[name] = {planner: float(base / step(instance, planner).total_ns) for planner in COMPARED}
    return found


def geometric_means(rows: Mapping[str, Mapping[Planner, float]]) -> dict[Planner, float]:
    """Return the geometric mean over the networks of every planner's speed-up."""
    return {planner: math.prod(row[planner] for row in rows.values()) ** (1 / len(rows)) for planner in COMPARED}


def networks_table(rows: Mapping[str, Mapping[Planner, float]], gbits: int) -> StudyTable:
    """Return the speed-ups of every network at one bandwidth."""
    cells = tuple((name, *(f"{row[planner]:.2f}" for planner in COMPARED)) for name, row in rows.items())
    array_of = " and ".join(f"{devices} {name}" for name, devices, _ in ARRAY)
    remark = f"{array_of}, batch {BATCH}, 2 bytes an element, {gbits} Gbit/s between any two halves."
    columns = ("network", *COMPARED)
    return StudyTable("Speed-up over data parallelism, types level by level", columns, cells, (remark,))


def means_table(means: Mapping[int, Mapping[Planner, float]]) -> StudyTable:
    """Return the geometric means by bandwidth, below the published ones."""
    published = ("published", *(f"{SPEED_UPS[one]:.2f}" if one in SPEED_UPS else "-" for one in COMPARED))
    rows = tuple(
        (f"{gbits} Gbit/s", *(f"{row[planner]:.2f}" for planner in COMPARED)) for gbits, row in means.items()
    )
    columns = ("geometric mean", *COMPARED)
    return StudyTable(
        "Speed-up over data parallelism, geometric means", columns, (published, *rows), words(__file__, "means")
    )


def one_type_table(graphs: Mapping[str, nx.DiGraph]) -> StudyTable:
    """Return what it costs HyPar and AccPar, by their own models, to keep one type a layer at all levels."""
    rows = []
    for name, graph in graphs.items():
        half = array(graph, Link(GBITS[0] * 10**9), ARRAY[:1])
        narrowed = tables_of(half, hypar.narrowed(half))
        _, by_level = hypar.by_level(half, narrowed)
        kept = sum_of_costs(half, _forms(hypar.solve, half), *hypar.uniform_costs(half))
        whole = array(graph, Link(GBITS[0] * 10**9))
        chosen = float(step(whole, Planner.ACCPAR).total_ns)
        one_type = sum_of_costs(whole, _forms(accpar.solve, whole), *accpar.costs(whole))
        sizes = f"{by_level / 1e9:.2f}", f"{kept / 1e9:.2f}", f"{kept / by_level - 1:+.1%}"
        times = f"{chosen / 1e6:.1f}", f"{one_type / 1e6:.1f}", f"{one_type / chosen - 1:+.1%}"
        rows.append((name, *sizes, *times))
    columns = ("network", "HyPar GB", "one type", "more", "AccPar ms", "one type", "more")
    remarks = words(__file__, "one type", devices=ARRAY[0][1], card=ARRAY[0][0], gbits=GBITS[0])
    return StudyTable("What one type a layer loses", columns, tuple(rows), remarks)


def priced_table(graphs: Mapping[str, nx.DiGraph]) -> StudyTable:
    """Return the same planners' plans priced by pipecut: one form a layer, equal shares, ring all-reduce."""
    rows = []
    for name, graph in graphs.items():
        instance = array(graph, Link(GBITS[0] * 10**9))
        base = data_parallel.solve(instance).objective or 0
        prices = [solve(instance).objective or 0 for _, solve in SOLVERS]
        rows.append((name, f"{base / 1e6:.1f}", *(f"{base / price:.2f}" for price in prices)))
    columns = ("network", "data parallel, ms", *(name for name, _ in SOLVERS))
    remarks = words(__file__, "priced")
    return StudyTable("Speed-up over data parallelism, priced by pipecut", columns, tuple(rows), remarks)


def _forms(solve: Solve, instance: Instance) -> tuple[int, ...]:
    """Return the forms of a planner's one stage."""
    plan = solve(instance).plan
    if plan is None:
        raise LookupError("a planner without a pipeline always has a plan")
    return plan.stages[0].forms
