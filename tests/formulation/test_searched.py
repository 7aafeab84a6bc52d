"""What is said in a few words of what was searched, and of what was not though it might pay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from pipecut.commands.parts.tables import KEYS, search_rows
from pipecut.commands.terminal.terminal import WIDTH
from pipecut.formulation.outcome import Outcome, Proof
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.constraints import Constraints, OnHost, Placement, Recompute, Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Across, Axis
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.formulation.searched import not_searched, searched
from tests.examples import chain, instance_of, join, matrix, mesh
from tests.laws import so_many
from tests.problems import problems

KIND = DeviceClass("unit", 10_000, 10**9, host_link=Link(10**9))


def asked(training: Training | None = None, cuts: tuple[str, ...] | None = None, **limits: Any) -> Instance:
    """Attention between products, on two servers of two devices in whose memory little has room."""
    rows = [matrix("a", 10, 1_000), replace(join("b"), across=Across(Axis.CONTEXT)), matrix("c", 10, 1_000)]
    layers = chain([*rows, matrix("d", 10, 1_000)], [8, 8, 8])
    layers.graph["cuts"] = cuts
    made = instance_of(layers, mesh(2, 2, kind=KIND), CostModel(), training or Training(4, 2))
    return replace(made, constraints=Constraints(memory=True, **limits))


@pytest.mark.parametrize(
    ("said", "unsaid", "opened"),
    [
        ("tp 1-2", "replicas", asked(tensor_parallel_degrees=(1, 2))),
        ("replicas", "replicas", asked(tensor_parallel_degrees=(1,))),
        ("ZeRO 0-3", "ZeRO 1-3", asked(sharded=tuple(Sharded))),
        ("recompute", "recompute", asked(recompute=Recompute.ALLOWED)),
        ("recompute by blocks", "recompute", asked(recompute=Recompute.BLOCKS, cuts=("c",))),
        ("sequence", "sequence", asked(splits=(Axis.SEQUENCE,))),
        ("context parallelism", "context parallelism", asked(splits=(Axis.CONTEXT,))),
        ("two splits at once", "two splits at once", asked(splits=(Axis.PAIRS,))),
        ("2 numbers of micro-batches", "other micro-batches", asked(Training(4, 2, micro_batch_choices=(2, 4)))),
        ("2 numbers of stages a group", "interleaved stages", asked(Training(4, 2, chunk_choices=(1, 2)))),
        (
            "2 schedules",
            "zero bubble",
            asked(Training(4, 2, schedule_choices=(Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE_H1))),
        ),
        ("warm-ups", "longer warm-ups", asked(Training(4, 2, warm_up="choose"))),
        ("optimiser on the host", "optimiser on the host", asked(optimizer_on_host=OnHost.ALLOWED)),
    ],
)
def test_what_is_open_is_said_to_be_searched_and_else_not(said: str, unsaid: str, opened: Instance) -> None:
    closed = asked()
    assert said not in searched(closed) and unsaid in not_searched(closed)
    assert said in searched(opened) and unsaid not in not_searched(opened)


def test_some_of_the_kinds_of_zero_are_told_apart() -> None:
    found = asked(sharded=(Sharded.NONE, Sharded.WEIGHTS))
    assert "ZeRO 0, 3" in searched(found) and "ZeRO 1-2" in not_searched(found)


def test_blocks_are_missed_where_whole_stages_are_computed_again() -> None:
    assert "recompute by blocks" in not_searched(asked(recompute=Recompute.ALLOWED, cuts=("c",)))
    assert "recompute by blocks" not in not_searched(asked(recompute=Recompute.ALLOWED))


def test_sizes_and_placement_are_missed_where_they_are_narrowed_and_servers_unlike() -> None:
    assert "other sizes of stages" in not_searched(asked(devices_per_stage=(2,)))
    unlike = instance_of(chain([matrix("a"), matrix("b")], [8]), mesh(2, 1))
    free = replace(unlike, constraints=Constraints(placement=Placement.FREE))
    assert not_searched(unlike)[0] == "free placement" and "free placement" not in not_searched(asked())
    assert "free placement" in searched(free) and "free placement" not in not_searched(free)


def test_nothing_is_missed_on_a_device_with_room_for_a_sample() -> None:
    alone = instance_of(chain([matrix("a", 10, 1_000), matrix("b")], [8]), mesh(1))
    assert searched(alone) == ["cuts and devices of stages"] and not_searched(alone) == []


@given(problems())
@settings(max_examples=so_many(100))
def test_nothing_is_said_to_be_both_and_the_terminal_has_a_line_for_what_is_not(instance: Instance) -> None:
    assert not {*searched(instance)} & {*not_searched(instance)}
    rows = dict(search_rows(instance, Outcome("nobody", Proof.UNKNOWN, seconds=0), None))
    line = str(rows["unsearched"])
    assert 0 < len(line) <= WIDTH - KEYS
    assert line.startswith(not_searched(instance)[0] if not_searched(instance) else "nothing")
