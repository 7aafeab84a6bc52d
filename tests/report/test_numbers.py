"""The numbers before they are drawn: parts that add up, formulas that hold, windows, and exact traces."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.commands.terminal import terminal as human
from pipecut.formulation.problem.training import LEAST_MICRO_BATCHES, Schedule, Training
from pipecut.report import wording
from pipecut.report.content import Window, content_of, events_of, shown_by_default, window_of
from pipecut.report.measures import Measure, Relation, spent_of
from pipecut.report.simulation import simulate
from pipecut.report.trace import microseconds, trace_of
from tests.formulation.timeline.test_timeline_of_plan import line_plans
from tests.generators import OF_SINGLE_STAGES, instances
from tests.report.runs import case, content, ran


@given(st.data(), st.sampled_from(OF_SINGLE_STAGES), st.integers(1, 6))
def test_parts_add_up_and_formulas_hold(data: st.DataObject, schedule: Schedule, micro_batches: int) -> None:
    instance = data.draw(instances())
    training = replace(
        instance.training,
        schedule=schedule,
        micro_batches=micro_batches,
        global_batch=micro_batches * instance.training.micro_batch,
    )
    instance = replace(instance, training=training)
    run = simulate(instance, data.draw(line_plans(instance)))
    for spent in spent_of(run):
        parts = asdict(spent)
        assert sum(parts.values()) == run.timeline.makespan_ns
        assert all(part >= 0 for part in parts.values()), parts
    for row in Measure.all_of(run):
        if row.formula is not None and row.timeline is not None:
            assert row.relation != Relation.EXACT or row.timeline == row.formula, row
            assert row.relation != Relation.LEAST or row.timeline >= row.formula, row
            assert row.relation != Relation.MOST or row.timeline <= row.formula, row
    json.dumps(content_of(run, scenario="x"), allow_nan=False)


@pytest.mark.parametrize("schedule", OF_SINGLE_STAGES)
def test_every_schedule_says_its_makespan_and_period(schedule: Schedule) -> None:
    found = {row.key: row for row in Measure.all_of(ran(schedule=schedule))}
    assert set(found) == {"makespan", "period", "bubble"}
    assert all(row.formula is not None for row in found.values())


def test_without_a_flush_enough_micro_batches_are_run() -> None:
    instance, plan = case(2, 6, Schedule.ASYNC_ONE_F_ONE_B)
    assert instance.training.steps_run(len(plan)) == 3
    assert ran(2, 6, Schedule.ASYNC_ONE_F_ONE_B).micro_batches == 18
    many = Training(LEAST_MICRO_BATCHES, LEAST_MICRO_BATCHES, schedule=Schedule.ASYNC_ONE_F_ONE_B)
    assert many.steps_run(2) == 1
    assert ran(16, 1, Schedule.ASYNC_ONE_F_ONE_B).micro_batches == 64
    assert ran(2, 6, Schedule.GPIPE).micro_batches == 6


def test_a_plan_without_a_price_cannot_be_run() -> None:
    instance, plan = case()
    with pytest.raises(ValueError, match="the last stage ends before layer"):
        simulate(instance, replace(plan, stages=plan.stages[:2]))


def test_a_short_run_is_drawn_whole() -> None:
    timeline = ran(3, 8).timeline
    window = window_of(timeline, 8)
    assert window.whole
    events = events_of(timeline, window)
    assert len(events) == 2 * 3 * 8 + 2 * 2 * 8
    assert max(row[4] for row in events) == timeline.makespan_ns


def test_a_long_run_is_drawn_at_both_ends() -> None:
    timeline = ran(3, 100).timeline
    window = window_of(timeline, 10)
    assert 0 < window.head_stop_ns < window.tail_start_ns < timeline.makespan_ns
    drawn = {row[2] for row in events_of(timeline, window)}
    assert {0, 1, 4, 95, 98, 99} <= drawn and 50 not in drawn
    assert window_of(timeline, 99).whole, "hardly anything would be left out"


def test_pictures_of_many_stages_show_fewer_micro_batches() -> None:
    assert shown_by_default(2) == 32 and shown_by_default(64) == 9 and shown_by_default(1000) == 8


def test_the_critical_chain_is_marked_without_a_gap() -> None:
    timeline = ran(4, 6).timeline
    chain = sorted(row[3:5] for row in events_of(timeline, Window(1, 1)) if row[5])
    assert chain[0][0] == 0 and chain[-1][1] == timeline.makespan_ns
    assert all(one[1] == other[0] for one, other in itertools.pairwise(chain))


def test_memory_is_that_of_the_formula_and_long_curves_are_thinned() -> None:
    found = content(3, 900)
    for stage in found["ranks"]:
        assert stage["peak_bytes"] == stage["peak_bytes_formula"]
        assert max(held for _, held in stage["memory"]) == stage["peak_bytes"]
        assert len(stage["memory"]) <= 2 * 241
        assert [time for time, _ in stage["memory"]] == sorted(time for time, _ in stage["memory"])


def test_the_gap_of_a_given_plan_is_to_the_bound_of_the_comparison() -> None:
    run = ran()
    found = content_of(run, scenario="x", comparison={"bound": 9000, "solvers": []})["claim"]
    assert found["bound"] == 9000 and found["gap"] == 1 - 9000 / found["objective"]
    assert content_of(run, scenario="x")["claim"]["gap"] is None


def test_the_trace_is_exact_and_whole() -> None:
    run = ran(3, 4, devices=2)
    rows = json.loads(trace_of(run), parse_float=Decimal)["traceEvents"]
    slices = [row for row in rows if row["ph"] == "X"]
    passes = [row for row in slices if row["pid"] == 1 and row["cat"] in ("forward", "backward")]
    assert len(passes) == 2 * 3 * 4
    expected = {
        (str(action), start, stop) for rank in range(3) for action, start, stop in run.timeline.actions(rank)
    }
    assert {(row["name"], row["ts"] * 1000, (row["ts"] + row["dur"]) * 1000) for row in passes} == expected
    assert max(row["ts"] + row["dur"] for row in slices) * 1000 == run.timeline.makespan_ns
    assert {row["cat"] for row in slices} == {"forward", "backward", "synchronisation", "transfer"}
    arrows = {phase: sorted(row["id"] for row in rows if row["ph"] == phase) for phase in "sf"}
    assert arrows["s"] == arrows["f"] and len(arrows["s"]) == 2 * 2 * 4
    names = [row["args"]["name"] for row in rows if row["name"] == "thread_name"]
    assert "stage 0: 2 x s0" in names and "gradients 2 to 1" in names


@pytest.mark.parametrize(
    ("time_ns", "shown"), [(0, "0.000"), (1234, "1.234"), (10**17 + 1, "100000000000000.001")]
)
def test_microseconds_are_exact(time_ns: int, shown: str) -> None:
    assert microseconds(time_ns) == shown


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (wording.duration(0), "0 ns"),
        (wording.duration(999), "999 ns"),
        (wording.duration(266_979_046), "267.0 ms"),
        (wording.duration(999_999), "1.000 ms"),
        (wording.duration(5 * 10**12), "5,000 s"),
        (wording.round_duration(1_500_000_000), "1.5 s"),
        (wording.round_duration(500_000_000), "500 ms"),
        (wording.round_duration(0), "0 ns"),
        (wording.amount(11 * 2**30), "11 GiB"),
        (wording.amount(1_525_000_000), "1.420 GiB"),
        (wording.exact(12_340_567), "12,340,567 ns"),
        (wording.exact(2.5), "2.5 ns"),
        (wording.percent(0), "0 %"),
        (wording.percent(0.0001), "< 0.1 %"),
        (wording.percent(-0.25), "−25.0 %"),
        (wording.count(1, "stage"), "1 stage"),
        (wording.printable("a<b>\x1b\u202e\ud800"), "a<b>???"),
    ],
)
def test_wording(shown: str, expected: str) -> None:
    assert shown == expected


@given(st.integers(0, 10**18))
def test_page_and_terminal_say_the_same(number: int) -> None:
    def plain(shown: str) -> str:
        return shown.replace(",", "").replace("µ", "u")

    assert plain(wording.duration(number)) == human.duration(number)
    assert plain(wording.amount(number)) == human.amount(number)
