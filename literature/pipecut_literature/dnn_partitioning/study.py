"""Study ``dnn-partitioning``: published exact values proved node by node, and pipecut's plans beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.graphs.foreign import FormatError
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.choices import trainings as choices
from pipecut_literature.dnn_partitioning.dp import place
from pipecut_literature.dnn_partitioning.file import EdgeCosts, PlacementProblem, read_dnn_partitioning
from pipecut_literature.dnn_partitioning.instance import as_instance, in_whole_ns, largest_load_s
from pipecut_literature.dnn_partitioning.sets import DecidedPlacement, decide
from pipecut_literature.studies.study import Study, StudyInputError, StudyInputs, StudyTable, published, words

TIME_LIMIT_S = 60.0
"""Of each search."""
MS = 1000
PUBLISHED_MS = {name: float(load) for name, load in published(__file__)["least_ms"].items()}
"""What the authors' programs say of a graph: the least largest load of contiguous sets."""
SAME_MS = 1e-9
"""Published values have ten decimals."""


def run(inputs: StudyInputs) -> Study:
    """Place every published graph. Raises StudyInputError without the folder of graphs."""
    graphs = {name: _graph(inputs.data, name) for name in PUBLISHED_MS}
    limit_s = TIME_LIMIT_S if inputs.time_limit_s is None else inputs.time_limit_s
    theirs, equal = _sets_table(graphs, limit_s)
    ours, same = _instance_table(graphs, limit_s)
    return Study(
        "dnn-partitioning: published placements, decided node by node",
        words(__file__, "reading"),
        (theirs, ours),
        {"rows": len(graphs), "rows_equal": equal, "rows_equal_without_transfers": same},
    )


def _graph(data: Path | None, name: str) -> PlacementProblem:
    if data is None:
        raise StudyInputError("--data: expected the folder that holds dnn-partitioning/GRAPH.json")
    # Of ResNet-50 the folder has the training graph alone; the published inference graph is its forward half.
    file = "resnet50_training" if name == "resnet50_inference" else name
    path = data / "dnn-partitioning" / f"{file}.json"
    try:
        problem = read_dnn_partitioning(path, transfers=EdgeCosts.AS_PROGRAM)
    except OSError as error:
        raise StudyInputError(f"{path}: {error.strerror}") from error
    except FormatError as error:
        raise StudyInputError(str(error)) from error
    return problem if file == name else problem.forward()


def _sets_table(graphs: dict[str, PlacementProblem], limit_s: float) -> tuple[StudyTable, int]:
    """Return published values beside ours, and in how many rows all three are proved and equal."""
    rows: list[tuple[str, ...]] = []
    for name, problem in graphs.items():
        printed, ideals = PUBLISHED_MS[name], place(problem)
        found = decide(problem, contiguous=True, time_limit_s=limit_s)
        any_sets = decide(problem, contiguous=False, time_limit_s=limit_s)
        if found and any_sets and found.max_load_s < any_sets.max_load_s:
            # What is contiguous is a way of any sets too.
            any_sets = replace(any_sets, max_load_s=found.max_load_s, shares=found.shares)
        values = [ideals.max_load_s, *([found.max_load_s] if found and found.proved else [])]
        same = len(values) > 1 and all(abs(value * MS - printed) <= SAME_MS for value in values)
        devices = f"{problem.accelerators} + {problem.cpus}"
        ours = (_ms(ideals.max_load_s), *_found(found), "yes" if same else "no", *_found(any_sets))
        rows.append((name, str(len(problem.nodes)), devices, str(printed), *ours))
    return StudyTable(
        "In the paper's own cost model",
        (
            *("graph", "nodes", "accelerators + hosts", "published", "ideals", "node by node", "not below"),
            *("proved and equal", "any sets", "not below"),
        ),
        tuple(rows),
        ("Of ResNet-50 the inference graph is the forward half of the training graph.",),
    ), sum(row[7] == "yes" for row in rows)


def _instance_table(graphs: dict[str, PlacementProblem], limit_s: float) -> tuple[StudyTable, int]:
    """Return what pipecut's own searches make of the graphs, and in how many rows they agree with the ideals."""
    rows: list[tuple[str, ...]] = []
    for name, problem in graphs.items():
        whole = in_whole_ns(problem)
        instance, _ = as_instance(whole, transfers=False)
        ideals = round(place(whole.without_transfers()).max_load_s * 10**9)
        traced = _ask(instance, Limits(time_limit_s=limit_s))
        _, free = _in_any_order(instance, limit_s)
        proved = free.objective == free.any_order_bound == ideals
        with_transfers, members = as_instance(whole, transfers=True)
        about, found = _in_any_order(with_transfers, limit_s)
        priced = ("-", "-")
        if found.plan is not None:
            paid = MS * largest_load_s(problem, found.plan, about, members)
            priced = f"{paid:.6f}", f"{paid / PUBLISHED_MS[name] - 1:.2%}"
        rows.append(
            (
                *(name, str(len(instance.layers)), str(ideals), str(traced.objective), str(free.objective)),
                *(str(free.any_order_bound), "yes" if proved else "no", str(found.objective)),
                *priced,
            )
        )
    return StudyTable(
        "As instances of pipecut",
        (
            *("graph", "layers", "no transfers: ideals, ns", "given order, ns", "any order, ns"),
            *("no order below, ns", "proved and equal", "with transfers, ns", "as the paper prices it, ms"),
            "above published",
        ),
        tuple(rows),
    ), sum(row[6] == "yes" for row in rows)


def _in_any_order(instance: Instance, limit_s: float) -> tuple[Instance, Outcome]:
    free = replace(instance, model=replace(instance.model, free_order=True))
    about, found = choices.decide(free, _ask, Limits(time_limit_s=limit_s))
    # Where there is one order, a proof is about all of them.
    return about, found if found.any_order_bound is not None else replace(found, any_order_bound=found.bound)


def _ask(instance: Instance, limits: Limits) -> Outcome:
    return plan(instance, limits, cross_check=False)


def _ms(seconds: float) -> str:
    return f"{seconds * MS:.10f}".rstrip("0")


def _found(placed: DecidedPlacement | None) -> tuple[str, str]:
    if placed is None:
        return "-", "-"
    return _ms(placed.max_load_s), "proved" if placed.proved else f"{placed.bound_s * MS:.6f}"
