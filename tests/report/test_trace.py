"""The trace keeps the format that importers ask for, and says what happened, whatever was run."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.problem.cluster import Cluster
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Synchronisation
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.timeline.durations import Contention, Transfers
from pipecut.formulation.timeline.program import JOIN
from pipecut.formulation.timeline.timeline import run as run_program
from pipecut.ingest.plans.plan_file import read_plan
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.scenario.shipped import scenario_files
from pipecut.report.simulation import Simulation, simulate
from pipecut.report.trace import lanes_of, trace_of
from tests.formulation.timeline.test_timeline_of_plan import line_plans
from tests.generators import OF_SINGLE_STAGES, instances
from tests.laws import so_many
from tests.report.runs import EVIL, ran
from tests.report.test_orders import dealt
from tests.report.trace_format import Slice, Trace, check_nesting

ROOT = Path(__file__).parents[2] / "scenarios"
SHIPPED = [
    pytest.param(path.relative_to(ROOT).as_posix(), marks=[pytest.mark.slow] * (path.stem == "resnet152"))
    for path in scenario_files(ROOT)
]
TABLE2 = "pipepar/table2.plan.json"


@cache
def shipped(path: str) -> tuple[Instance, Plan]:
    """A scenario, and a plan that gives each of its first devices a stage."""
    instance = load_scenario(ROOT / path, ["objective=bottleneck"]).load()
    stages = min(6, instance.devices, len(instance.layers))
    return instance, equal_runs(instance, stages, stages)


def trained(instance: Instance, schedule: Schedule, micro_batches: int) -> Instance:
    samples = instance.training.micro_batch
    batch = micro_batches * samples
    training = replace(instance.training, schedule=schedule, micro_batches=micro_batches, global_batch=batch)
    return replace(instance, training=training)


def equal_runs(instance: Instance, stages: int, ranks: int) -> Plan:
    """Runs of about as many layers, stage s on one device of the server of rank s mod ranks."""
    ends = [len(instance.layers) * at // stages for at in range(stages + 1)]
    places = [server for server, one in enumerate(instance.servers) for _ in range(one.devices)]
    return Plan(
        tuple(
            Stage(Span(first, stop), Group(((places[at % ranks], 1),)), (0,) * (stop - first))
            for at, (first, stop) in enumerate(itertools.pairwise(ends))
        )
    )


def held(run: Simulation) -> Trace:
    """Read the trace of a run, and hold it to the run itself."""
    trace = Trace(trace_of(run))
    program = run.timeline.program
    sent = [one for one in trace.slices if one.category == "transfer"]
    assert len(sent) == len(list(run.timeline.transfers())) == len(trace.flows)
    assert len(trace.slices) - len(sent) == int((program.kind != JOIN).sum())
    spans = [(one.label, one.start_ns, one.stop_ns) for one in run.timeline.updates()]
    spans += [
        (str(action), start, stop)
        for rank in range(len(run.ranks))
        for action, start, stop in run.timeline.actions(rank)
    ]
    assert sorted(spans) == sorted((one.name, one.start, one.stop) for one in trace.slices if one not in sent)
    chain = sorted((one.start, one.stop) for one in trace.slices if one.args["critical"])
    assert chain[0][0] == 0 and chain[-1][1] == run.timeline.makespan_ns
    assert all(one[1] == other[0] for one, other in itertools.pairwise(chain))
    for one in trace.slices:
        assert set(one.args) - {"to_stage"} == {"stage", "layers", "micro_batch", "bytes", "critical"}
    return trace


def peaks(trace: Trace) -> dict[str, int]:
    return {name: max(size for _, size in points) for (_, name), points in trace.counters.items()}


@pytest.mark.few(6)
@pytest.mark.parametrize("schedule", OF_SINGLE_STAGES)
@pytest.mark.parametrize("path", SHIPPED)
def test_shipped_scenarios_in_every_schedule_of_a_training(path: str, schedule: Schedule) -> None:
    instance, plan = shipped(path)
    trace = held(simulate(trained(instance, schedule, 4), plan))
    assert len(trace.counters) == len(plan)


@pytest.mark.few(3)
@pytest.mark.parametrize("path", SHIPPED)
def test_shipped_scenarios_as_they_are_and_in_other_orders(path: str) -> None:
    instance, plan = shipped(path)
    held(simulate(instance, plan))
    unlimited = replace(instance, constraints=replace(instance.constraints, memory=False))
    flushing = trained(unlimited, Schedule.ONE_F_ONE_B, 6)
    held(simulate(flushing, plan, zero_bubble_h1(len(plan), 6)))
    ranks = min(2, instance.devices, len(instance.layers) // 2)
    chunks = min(3, len(instance.layers) // ranks)
    many = equal_runs(instance, ranks * chunks, ranks)
    run = simulate(flushing, many, interleaved(ranks, chunks, 6))
    trace = held(run)
    assert len(trace.counters) == ranks * chunks + ranks * (chunks > 1)


def test_table_ii_of_the_paper() -> None:
    """Its slow links hold several tensors at a time: 75 of 960 slices overlapped in part when each had one row."""
    instance, _ = shipped("pipepar/vgg16.yaml")
    trace = held(simulate(instance, read_plan(ROOT / TABLE2, instance)))
    names = trace.names["thread_name"].values()
    assert any(name.endswith(" (2)") for name in names)
    base = {name.partition(" (")[0] for name in names}
    merged = [replace_place(one, trace) for one in trace.slices if one.category == "transfer"]
    with pytest.raises(ValueError, match="overlap in part"):
        for name in base:
            check_nesting([one for one, row in merged if row == name])


def replace_place(one: Slice, trace: Trace) -> tuple[Slice, str]:
    return one, trace.names["thread_name"][one.place].partition(" (")[0]


def test_what_slices_say() -> None:
    run = ran(3, 4, devices=2)
    trace = held(run)
    by_name = {(one.category, one.name, one.args["stage"]): one.args for one in trace.slices}
    footprint = run.made.footprint
    assert by_name["forward", "1F2", 1] == {
        "stage": 1,
        "layers": "block.2 … block.3 (2)",
        "micro_batch": 2,
        "bytes": footprint.stash_bytes[1],
        "critical": by_name["forward", "1F2", 1]["critical"],
    }
    sent, back = by_name["transfer", "activation 2", 0], by_name["transfer", "gradient 2", 1]
    assert (sent["to_stage"], back["to_stage"]) == (1, 0)
    assert sent["bytes"] == back["bytes"] == 301, "the tensor behind layer 1"
    assert by_name["synchronisation", "0S3", 0]["bytes"] == 2 * 4000
    assert {place[0]: name for place, name in trace.names["process_name"].items()} == {1: "devices", 2: "network"}


@pytest.mark.parametrize("schedule", OF_SINGLE_STAGES)
def test_memory_counts_what_the_timeline_holds(schedule: Schedule) -> None:
    run = ran(4, 8, schedule)
    trace = Trace(trace_of(run))
    footprint = run.made.footprint
    for stage in range(4):
        points = trace.counters[1, f"memory of stage {stage}"]
        assert points[0][0] == 0 and points[-1][1] == footprint.static_bytes[stage]
        assert max(size for _, size in points) == run.evaluation.stages[stage].memory_bytes
        assert all(one[1] != other[1] for one, other in itertools.pairwise(points))


def test_memory_of_a_rank_is_that_of_its_stages_together() -> None:
    instance, plan = dealt(2, 2, 4)
    run = simulate(instance, plan, interleaved(2, 2, 4))
    counters = Trace(trace_of(run)).counters
    rank = dict(counters[1, "memory of rank 1"])
    parts = [dict(counters[1, f"memory of stage {stage}"]) for stage in (1, 3)]
    for moment in rank:
        now = [max((time, size) for time, size in part.items() if time <= moment)[1] for part in parts]
        assert rank[moment] == sum(now)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(OF_SINGLE_STAGES), st.sampled_from(Synchronisation), st.integers(1, 5))
def test_any_plan(data: st.DataObject, schedule: Schedule, sync: Synchronisation, micro_batches: int) -> None:
    instance = trained(data.draw(instances()), schedule, micro_batches)
    instance = replace(instance, cost=replace(instance.cost, synchronisation=sync))
    plan = data.draw(line_plans(instance))
    orders: list[PipelineSchedule | None] = [None, zero_bubble_h1(len(plan), micro_batches)]
    orders.append(one_f_one_b(len(plan), micro_batches))
    run = simulate(instance, plan, data.draw(st.sampled_from(orders)))
    execution = replace(
        run.made.execution,
        contention=data.draw(st.sampled_from(Contention)),
        transfers=data.draw(st.sampled_from(Transfers)),
    )
    made = replace(run.made, execution=execution)
    held(replace(run, made=made, timeline=run_program(made.schedule, made.durations, execution)))


def test_names_of_users_stay_names() -> None:
    run = ran(2, 3, name=EVIL)
    graph, old = run.instance.cluster_graph, run.instance.servers[0]
    graph = nx.relabel_nodes(graph, {old.name: EVIL})
    graph.nodes[EVIL]["server"] = replace(old, name=EVIL)
    instance = replace(run.instance, cluster=Cluster.of(graph))
    text = trace_of(replace(run, instance=instance))
    assert text.isascii()
    assert "stage 0: 1 x </script><img src=x onerror=alert(1)>\"'&??" in Trace(text).names["thread_name"].values()


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)).map(lambda one: (one[0], one[0] + one[1]))))
def test_lanes_are_as_few_as_can_be(intervals: list[tuple[int, int]]) -> None:
    lanes = lanes_of(intervals)
    slices = [Slice((0, lane), "", "", *one, {}) for lane, one in zip(lanes, intervals, strict=True)]
    for one, other in itertools.combinations(slices, 2):
        if one.place == other.place:
            assert one.stop <= other.start or other.stop <= one.start
    busiest = max((sum(start <= at < stop for start, stop in intervals) for at in range(20)), default=0)
    assert max(lanes, default=-1) + 1 == busiest


HEAD = [
    {"ph": "M", "name": name, "pid": 1, "tid": 0, "args": args}
    for name, args in (
        ("process_name", {"name": "p"}),
        ("process_sort_index", {"sort_index": 1}),
        ("thread_name", {"name": "t"}),
        ("thread_sort_index", {"sort_index": 0}),
    )
]


WORK = {"ph": "X", "ts": 0, "dur": 5}


def made(*events: dict[str, Any], head: list[dict[str, Any]] = HEAD) -> str:
    whole = [*head, *({"pid": 1, "tid": 0, "name": "a", "cat": "c"} | event for event in events)]
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": whole})


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([WORK, {"ph": "X", "ts": 3, "dur": 5}], "overlap in part"),
        ([{"ph": "X", "ts": 0.0005, "dur": 5}], "ts is 0.0005 microseconds"),
        ([{"ph": "X", "ts": "0", "dur": 5}], "ts is no number"),
        ([{"ph": "X", "ts": 0, "dur": -1}], "dur is -1"),
        ([{"ph": "X", "ts": 0, "dur": 1, "tid": 7}], "has no thread_name"),
        ([{"ph": "C", "ts": 0, "pid": 3, "args": {"bytes": 1}}], "process_name"),
        ([{"ph": "C", "ts": 5, "args": {"b": 1}}, {"ph": "C", "ts": 4, "args": {"b": 1}}], "not in order"),
        ([{"ph": "C", "ts": 5, "args": {"b": "1"}}], "a counter counts"),
        ([WORK, {"ph": "s", "ts": 1, "id": 1}], "arrow"),
        ([WORK, {"ph": "s", "ts": 6, "id": 1}, {"ph": "f", "ts": 6, "id": 1, "bp": "e"}], "touches no slice"),
        ([{"ph": "f", "ts": 1, "id": 1}], "without bp"),
        ([{"ph": "Q", "ts": 1}], "phase"),
    ],
)
def test_the_reader_refuses_what_importers_drop(events: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Trace(made(*events))


def test_the_reader_takes_what_is_nested() -> None:
    slices = (WORK, {"ph": "X", "ts": 1, "dur": 4}, {"ph": "X", "ts": 5, "dur": 0})
    assert len(Trace(made(*slices)).slices) == 3
    with pytest.raises(ValueError, match="two rows have one thread_name"):
        Trace(made(WORK, head=[*HEAD, HEAD[2] | {"tid": 1}]))
