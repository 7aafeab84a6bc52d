"""Placements decided node by node: held against published values, every assignment there is, and the ideals."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from literature.tests.dnn_partitioning.test_peers_dnn_partitioning import DATA, PUBLISHED, check, made_up, problem
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.choices.any_order import any_order
from pipecut_literature.common.downsets import NothingFitsError
from pipecut_literature.dnn_partitioning import study
from pipecut_literature.dnn_partitioning.dp import load, place
from pipecut_literature.dnn_partitioning.file import PlacementProblem
from pipecut_literature.dnn_partitioning.instance import as_instance, in_whole_ns, largest_load_s
from pipecut_literature.dnn_partitioning.sets import decide
from pipecut_literature.studies.study import StudyInputError, StudyInputs


def ask(instance: Instance, limits: Limits) -> Outcome:
    return plan(instance, limits, cross_check=False)


def least_of_all(graph: PlacementProblem) -> float:
    """The least largest load over every assignment of colour classes to devices."""
    own = [f"node {at}" if node.colour is None else node.colour for at, node in enumerate(graph.nodes)]
    classes = sorted(set(own), key=str)
    devices, best = graph.accelerators + graph.cpus, float("inf")
    for assigned in itertools.product(range(devices), repeat=len(classes)):
        at = dict(zip(classes, assigned, strict=True))
        inside = [[node for node, colour in enumerate(own) if at[colour] == device] for device in range(devices)]
        cards = inside[: graph.accelerators]
        fits = all(
            sum(graph.nodes[node].size_bytes for node in row) <= graph.capacity_bytes
            and all(graph.nodes[node].on_accelerator for node in row)
            for row in cards
        )
        if fits:
            loads = [load(graph, row, device < graph.accelerators) for device, row in enumerate(inside)]
            best = min(best, max(loads))
    return best


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row[0])
@pytest.mark.slow
def test_published_values_are_proved_node_by_node(row: tuple[str, int, int, float]) -> None:
    name, _, _, best, *_ = row
    graph = problem("resnet50_training").forward() if name == "resnet50_inference" else problem(name)
    found = decide(graph, contiguous=True, time_limit_s=None)
    assert found is not None and found.proved
    assert found.max_load_s * 1000 == pytest.approx(best, abs=1e-9)
    check(graph, found)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("backward", [False, True])
def test_small_graphs_against_ideals_and_every_assignment(seed: int, backward: bool) -> None:
    graph = made_up(seed, size=5, backward=backward)
    try:
        ideals = place(graph).max_load_s
    except NothingFitsError:
        assert decide(graph, contiguous=True, time_limit_s=None) is None
        return
    in_a_row = decide(graph, contiguous=True, time_limit_s=None)
    anywhere = decide(graph, contiguous=False, time_limit_s=None)
    assert in_a_row is not None and in_a_row.proved and anywhere is not None and anywhere.proved
    check(graph, in_a_row)
    check(graph, anywhere)
    assert in_a_row.max_load_s == pytest.approx(ideals, abs=1e-12)
    assert anywhere.max_load_s == pytest.approx(least_of_all(graph), abs=1e-12)


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("backward", [False, True])
def test_without_transfers_the_best_order_is_the_best_chain_of_ideals(seed: int, backward: bool) -> None:
    graph = in_whole_ns(made_up(seed, size=6, backward=backward))
    nodes = (replace(node, on_accelerator=True, size_bytes=0.0) for node in graph.nodes)
    graph = replace(graph, nodes=tuple(nodes))
    instance, members = as_instance(graph, transfers=False)
    found = any_order(instance, ask, Limits())
    assert found.proved and found.outcome.plan is not None and found.outcome.objective is not None
    free = graph.without_transfers()
    assert found.outcome.objective == round(place(free).max_load_s * 10**9)
    assert largest_load_s(free, found.outcome.plan, found.instance, members) == pytest.approx(
        found.outcome.objective / 10**9, abs=1e-15
    )


def test_what_no_accelerator_supports_is_no_instance() -> None:
    graph = made_up(0)
    nodes = (replace(graph.nodes[0], on_accelerator=False), *graph.nodes[1:])
    with pytest.raises(ValueError, match="not supported on accelerators"):
        as_instance(replace(graph, nodes=nodes), transfers=True)


@pytest.mark.slow
def test_the_study_finds_rows_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the two smallest graphs; all five take minutes."""
    if not (DATA / "dnn-partitioning").exists():
        pytest.skip("no public graphs in the data folder")
    some = {name: value for name, value in study.PUBLISHED_MS.items() if name.startswith("bert24")}
    monkeypatch.setattr(study, "PUBLISHED_MS", some)
    found = study.run(StudyInputs(data=DATA, time_limit_s=5))
    assert found.figures == {"rows": 2, "rows_equal": 2, "rows_equal_without_transfers": 2}


def test_the_study_says_where_its_graphs_should_be() -> None:
    with pytest.raises(StudyInputError, match=r"dnn-partitioning/GRAPH\.json"):
        study.run(StudyInputs())
    with pytest.raises(StudyInputError, match=r"nowhere/dnn-partitioning/bert24_inference\.json"):
        study.run(StudyInputs(data=DATA / "nowhere"))
