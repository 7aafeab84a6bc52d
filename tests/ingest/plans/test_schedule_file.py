"""Schedule files: PyTorch's tokens in, a schedule that can be executed out, or every mistake with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.schedules.async_one_f_one_b import async_one_f_one_b
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import DeadlockError, PipelineSchedule
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.timeline.timeline import run
from pipecut.ingest.plans.schedule_file import LARGEST_FILE, ScheduleFileError, read_schedule, write_schedule
from tests.timelines import uniform


def tokens(schedule: PipelineSchedule) -> list[str]:
    return [" ".join(map(str, schedule.actions(rank))) for rank in range(schedule.ranks)]


def written(folder: Path, text: str) -> Path:
    path = folder / "schedule.csv"
    path.write_text(text, encoding="utf-8")
    return path


@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, one: int, two: int
):
    schedule = data.draw(
        st.sampled_from(
            [
                gpipe(one, two),
                one_f_one_b(one, two),
                zero_bubble_h1(one, two),
                interleaved(one, two, 2 * one),
                async_one_f_one_b(2, one * two + 3, (one, two)),
            ]
        )
    )
    path = tmp_path_factory.mktemp("schedules") / "my order.csv"
    write_schedule(path, schedule)
    again = read_schedule(path, flush=schedule.flush)
    assert again.name == "my order"
    assert tokens(again) == tokens(schedule)
    assert (again.stages, again.micro_batches, again.stage_ranks) == (
        schedule.stages,
        schedule.micro_batches,
        schedule.stage_ranks,
    )
    assert again.flush is schedule.flush


def test_empty_cells_say_nothing(tmp_path: Path):
    padded = read_schedule(written(tmp_path, "0F0,0F1,,, 0B0 ,,0B1\r\n,1F0,1B0,1F1,1B1,,\r\n\r\n"))
    assert tokens(padded) == ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
    assert run(padded, uniform(2, 1, 1)).makespan_ns == 6


def test_older_files_write_the_input_gradient_as_b_beside_w(tmp_path: Path):
    read = read_schedule(written(tmp_path, "0F0,0F1,0B0,0W0,0B1\n1F0,1B0,1F1,1W0,1B1,1W1\n"))
    assert tokens(read) == ["0F0 0F1 0I0 0W0 0B1", "1F0 1I0 1F1 1W0 1I1 1W1"]


def test_a_row_without_actions_is_a_rank_without_any(tmp_path: Path):
    read = read_schedule(written(tmp_path, "0F0,0B0\n\n1F0,1B0\n"))
    assert read.ranks == 3
    assert read.stage_ranks == ((0,), (2,))


def test_every_wrong_cell_is_named_with_its_place(tmp_path: Path):
    path = written(tmp_path, "0F0,0SEND_F0,0G0\n1RECV_F0,1F0,(1F0;1B0)OVERLAP_F_B,1UNSHARD\n")
    with pytest.raises(ScheduleFileError) as caught:
        read_schedule(path)
    expected = "is no action; expected stage, one of F B I W, micro-batch, as in 2F0"
    sent = "is communication; write the compute_only schedule, transfers follow from it"
    assert caught.value.mistakes == (
        f"{path}:1:2: '0SEND_F0' {sent}",
        f"{path}:1:3: '0G0' {expected}",
        f"{path}:2:1: '1RECV_F0' {sent}",
        f"{path}:2:3: '(1F0;1B0)OVERLAP_F_B' runs two actions at once; a rank here does one at a time",
        f"{path}:2:4: '1UNSHARD' {sent}",
    )


def test_many_wrong_cells_are_counted(tmp_path: Path):
    with pytest.raises(ScheduleFileError, match=r"\.\.\. and 30 more$"):
        read_schedule(written(tmp_path, ",".join(["x"] * 50)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 stages with 0 micro-batches take 0 actions or more, found 0"),
        (",,\n", "found 0"),
        ("999999999F0,0B0\n", "1000000000 stages with 1 micro-batches take 2000000000 actions or more, found 2"),
        ("0F0,0B0,0F1,0B1,0B1\n", "0B1 stands 2 times"),
        ("0F0,0B0\n0F1,0B1\n0F2,0B2\n0B3,0F3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n", "deadlock: "),
        ('0F0,"0B0\n', "unexpected end of data"),
        ("0F0,0B0\x00\n", "'0B0\\x00' is no action"),
    ],
)
def test_what_is_no_schedule_is_refused(tmp_path: Path, text: str, message: str):
    path = written(tmp_path, text)
    with pytest.raises(ScheduleFileError, match=re.escape(message)) as caught:
        read_schedule(path)
    assert str(caught.value).startswith(f"{path}:")


def test_a_deadlock_is_told_with_its_circle(tmp_path: Path):
    with pytest.raises(
        ScheduleFileError, match="0B0 on rank 0 waits for 1B0, which rank 1 does only after 1F1"
    ) as caught:
        read_schedule(written(tmp_path, "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"))
    assert isinstance(caught.value.__cause__, DeadlockError)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    missing = tmp_path / "missing.csv"
    with pytest.raises(ScheduleFileError, match=re.escape(f"{missing}: No such file")):
        read_schedule(missing)
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(ScheduleFileError, match=f"the file is larger than {LARGEST_FILE} bytes"):
        read_schedule(large)
