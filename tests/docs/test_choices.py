"""docs/choices.md: the file of choices makes scenarios, and the document says what was found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.proof.choices import EVERYTHING, FILE, Cell, Instances, Knowledge, cells, with_pairs
from benchmarks.proof.choices_text import best_of, document, shape
from benchmarks.proof.found import of_plan, read_plan, searched
from benchmarks.size.llama import Shape, llama, two_servers
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.layers import Axis, Split
from pipecut.ingest.text.yaml_source import Document
from pipecut.solvers.auto.solve import plan
from tests.one_stage import one_stage

WRITTEN: Any = Document.read(FILE).data


def test_every_choice_is_forbidden_for_every_model_on_every_cluster() -> None:
    found = list(cells(WRITTEN))
    rows = [row["name"] for row in (*WRITTEN["forbidden"], *WRITTEN["added"])]
    assert {cell.row for cell in found} == {EVERYTHING, *rows}
    assert len({cell.name for cell in found}) == len(found)
    for cell in found:
        assert cell.settings.keys() >= WRITTEN["everything"].keys()
    assert all(cell.model == "Mixtral 8x7B" for cell in found if cell.row == "expert parallelism")


@pytest.mark.slow
def test_every_cell_of_a_model_is_an_instance() -> None:
    made = Instances()
    for cell in cells(WRITTEN):
        if cell.model == "Llama-7B" and cell.cluster == "2 x dgx-a100":
            instance, _ = made.of(cell, None)
            assert instance.training.global_batch == 64 and instance.constraints.forms


def test_pairs_leave_one_form_with_rows_and_one_without() -> None:
    instance = two_servers(llama(Shape(blocks=2)), 80 * 10**9, degrees=(1, 2, 4))
    instance = replace(instance, constraints=replace(instance.constraints, splits=(Axis.SEQUENCE,)))
    found = with_pairs(instance, "pairs").layers
    allowed = {row.name.rsplit(".", 1)[-1]: row.allowed_forms for row in found if row.split is not Split.FOLLOW}
    assert allowed["q_proj"] == (2, 4) and allowed["o_proj"] == (1, 3) and allowed["add"] == (0, 1)
    only = {
        row.name: row.allowed_forms for row in with_pairs(instance, "rows").layers if row.split is not Split.FOLLOW
    }
    assert all(len(forms) == 1 for forms in only.values())


def plan_of(objective: int | None, bound: int | None, proof: str, **more: Any) -> dict[str, Any]:
    stage = {
        "devices": 8,
        "degree": 2,
        "classes": ["A100"],
        "memory_bytes": 1,
        "sharded": "optimizer",
        "recompute": False,
    }
    found = {"objective": objective, "bound": bound, "proof": proof, "executed_ns": objective, "micro_batches": 4}
    return found | {"stages": [stage, stage]} | more


def test_the_document_takes_the_best_plan_of_all_rows_and_the_bound_of_the_widest() -> None:
    cluster, model = next(iter(WRITTEN["clusters"])), "Llama-7B"
    rows = [
        (Cell(cluster, model, EVERYTHING, False, {}), plan_of(12 * 10**9, 9 * 10**9, "feasible")),
        (Cell(cluster, model, "pipeline", False, {}), plan_of(10 * 10**9, 10 * 10**9, "optimal")),
        (Cell(cluster, model, "recomputation", False, {}), plan_of(None, None, "infeasible", stages=[])),
        (Cell(cluster, model, "replicas", False, {}), plan_of(11 * 10**9, 11 * 10**9, "optimal")),
        (Cell(cluster, model, "two stages a group", True, {}), plan_of(9 * 10**9, 8 * 10**9, "feasible")),
    ]
    best = best_of(rows, model)
    assert best is not None and (best["objective"], best["bound"]) == (10 * 10**9, 9 * 10**9)
    text = document(WRITTEN, rows, "command", 60)
    assert "| everything allowed | 10.000 s (10.000 s), gap 10.0% |" in text
    assert (
        "| recomputation | no plan, proved |" in text
        and "| replicas | 11.000 s +10.0% (11.000 s), **proved** |" in text
    )
    assert "| *also* two stages a group | 9.000 s -10.0%, gap 11.1% |" in text
    assert "Without recomputation no plan keeps within memory" in text and "Nothing is lost" in text
    assert "Without replicas the step is 10% longer: 2 stages of 8 devices in 4 replicas of 2 (ZeRO 1)" in text
    assert "Not measured yet" in text
    assert (
        shape(plan_of(1, 1, "optimal"))
        == "2 stages of 8 devices in 4 replicas of 2 (ZeRO 1), with 4 micro-batches"
    )


def test_a_search_begins_with_the_better_of_the_known_plans() -> None:
    instance = two_servers(llama(Shape(blocks=2)), 80 * 10**9, degrees=(1, 2, 4))
    best = plan(instance, Limits(workers=1))
    poor = one_stage(instance)
    assert best.plan is not None and poor.plan is not None
    many = instance.training.micro_batches
    found = searched(instance, "auto", 1e-6, [(many, poor.plan), (many, best.plan)])
    assert found["objective"] == best.objective
    assert found["words"] and set(found["shares"]) == {"computing", "communicating", "idle"}


def test_what_forbids_only_what_the_best_plan_does_not_use_needs_no_search() -> None:
    instance = two_servers(llama(Shape(blocks=2)), 80 * 10**9, degrees=(1, 2, 4))
    best = plan(instance, Limits(workers=1))
    assert best.plan is not None and best.proof is Proof.OPTIMAL
    one = of_plan(instance, best.plan) | {"proof": "optimal", "objective": best.objective, "micro_batches": 32}
    one = json.loads(json.dumps(one))
    assert read_plan(one["plan"]) == best.plan
    known = Knowledge()
    known.add(Cell("c", "m", EVERYTHING, False, {}), one)
    row = Cell("c", "m", "recomputation", False, {}, ("constraints.recompute",))
    assert known.implied(row, instance) == one and [many for many, _ in known.starts(instance)] == [32]
    used = {stage.group.devices for stage in best.plan.stages}
    others = tuple(size for size in range(1, 9) if size not in used)
    narrow = replace(instance, constraints=replace(instance.constraints, devices_per_stage=others))
    assert known.implied(row, narrow) is None and not list(known.starts(narrow))
    assert known.implied(replace(row, forbids=("training.schedule",)), instance) is None
    assert known.implied(row, replace(instance, training=replace(instance.training, micro_batches=16))) is None
