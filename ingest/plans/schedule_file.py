"""Schedules as CSV files in PyTorch's tokens: one row for each rank, one action in each cell.

This is the ``compute_only`` format of ``torch.distributed.pipelining``, so a schedule goes from here to PyTorch
and back. Empty cells, with which PyTorch pads a rank that waits, say nothing here: the timeline finds the waiting
out. A row without any action is a rank without any. In older files of PyTorch ``B`` beside ``W`` means the input
gradient: in a file without ``I``, a ``B`` whose ``W`` is there is read as ``I``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pipecut.formulation.schedules.table import Action, Kind, PipelineSchedule, ScheduleError, validate
from pipecut.ingest.files import atomic_write, read_limited
from pipecut.ingest.mistakes import MistakesError, shown

LARGEST_FILE = 16 * 2**20
"""Bytes of the largest schedule file that is read: 64 stages with 10,000 micro-batches take 10 MiB."""

_COMMUNICATION = re.compile(r"-?\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*")


class ScheduleFileError(MistakesError[str]):
    """A schedule file is wrong; ``str()`` gives one line for each mistake."""


def read_schedule(path: str | Path, *, flush: bool = True) -> PipelineSchedule:
    """Read a schedule and check that it can be executed; its name is that of the file without its ending.

    ``flush`` says whether the file is one optimiser step (see :class:`PipelineSchedule`). Raises
    ScheduleFileError with every wrong cell (file:row:cell, from 1), or with what makes the schedule impossible.
    Cost: linear in cells.
    """
    source = Path(path)
    try:
        rows = list(csv.reader(io.StringIO(read_limited(source, LARGEST_FILE), newline=""), strict=True))
    except OSError as error:
        raise ScheduleFileError([f"{source}: {error.strerror or error}"]) from error
    except (ValueError, csv.Error) as error:
        raise ScheduleFileError([f"{source}: {error}"]) from error
    mistakes: list[str] = []
    table = [list(_row(f"{source}:{number}", row, mistakes)) for number, row in enumerate(rows, start=1)]
    if mistakes:
        raise ScheduleFileError(mistakes)
    while table and not table[-1]:
        table.pop()
    try:
        schedule = PipelineSchedule.of_actions(source.stem, _today(table), flush=flush)
        validate(schedule)
    except ScheduleError as error:
        raise ScheduleFileError([f"{source}: {error}"]) from error
    return schedule


def _row(where: str, cells: list[str], mistakes: list[str]) -> Iterable[Action]:
    for number, cell in enumerate(cells, start=1):
        token = cell.strip()
        if not token:
            continue
        try:
            yield Action.parse(token)
        except ValueError:
            mistakes.append(f"{where}:{number}: {_reason(token)}")


def _reason(token: str) -> str:
    """Return why a token is none of ours, with what to do about it."""
    if _COMMUNICATION.fullmatch(token):
        return f"{shown(token)} is communication; write the compute_only schedule, transfers follow from it"
    if "OVERLAP_F_B" in token:
        return f"{shown(token)} runs two actions at once; a rank here does one at a time"
    return f"{shown(token)} is no action; expected stage, one of F B I W, micro-batch, as in 2F0"


def _today(table: list[list[Action]]) -> list[list[Action]]:
    """Read a ``B`` of older files that has a ``W`` beside it as ``I``."""
    halves = {(one.stage, one.micro_batch) for row in table for one in row if one.kind is Kind.WEIGHT_GRADIENT}
    if not halves or any(one.kind is Kind.INPUT_GRADIENT for row in table for one in row):
        return table
    return [[_half(one) if (one.stage, one.micro_batch) in halves else one for one in row] for row in table]


def _half(action: Action) -> Action:
    return replace(action, kind=Kind.INPUT_GRADIENT) if action.kind is Kind.BACKWARD else action


def write_schedule(path: str | Path, schedule: PipelineSchedule) -> None:
    """Write a schedule without empty cells; an existing file is replaced whole or not at all. Raises OSError."""
    rows = (",".join(map(str, schedule.actions(rank))) + "\n" for rank in range(schedule.ranks))
    atomic_write(Path(path), "".join(rows))
