"""Orders of actions beyond those that the planner prices: named schedules, schedule files, and the best order."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from pipecut.commands.parser.arguments import GIVEN_ORDERS
from pipecut.commands.searched_order import unsearched
from pipecut.commands.terminal.failures import InputError, reading
from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.table import PipelineSchedule, ScheduleError
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1

INTERLEAVED, ZERO_BUBBLE, BEST = NAMES = GIVEN_ORDERS


@dataclass(frozen=True, slots=True)
class Order:
    """A schedule that waits for its plan: a name, with the chunks of each rank, or the whole of a file.

    That of the name ``best`` is searched for (``commands.searched_order``).
    """

    name: str
    chunks: int = 1
    table: PipelineSchedule | None = None

    def schedule(self, instance: Instance, plan: Plan) -> PipelineSchedule:
        """Return the schedule of a plan. Raises ScheduleError where stages do not divide into chunks.

        Raises ValueError for an order that has to be searched for.
        """
        many = instance.training.micro_batches
        if self.table is not None:
            return self.table
        if self.searched:
            raise ValueError(f"schedule {BEST} has to be searched for")
        if self.name == ZERO_BUBBLE:
            return zero_bubble_h1(len(plan), many)
        if len(plan) % self.chunks:
            raise ScheduleError(
                f"schedule interleaved: the plan has {counted(len(plan), 'stage')}, no multiple of its"
                f" {self.chunks} chunks"
            )
        return interleaved(len(plan) // self.chunks, self.chunks, many)

    @property
    def searched(self) -> bool:
        """Tell whether the order has to be searched for."""
        return self.name == BEST and self.table is None

    @property
    def shares_ranks(self) -> bool:
        """Tell whether any rank holds more than one stage, which no plan of the planner allows."""
        if self.table is not None:
            return self.table.stages > self.table.ranks
        return self.chunks > 1


def order(name: str, chunks: int | None) -> Order:
    """Return the order of that name. Raises ValueError for an unknown one, and for wrong chunks."""
    if name not in NAMES:
        raise ValueError(f"no schedule {name!r}; expected one of {', '.join(NAMES)}")
    if name == INTERLEAVED and chunks is None:
        raise ValueError("schedule interleaved needs the number of chunks that each rank holds")
    if name != INTERLEAVED and chunks is not None:
        raise ValueError(f"schedule {name} has no chunks; only interleaved has")
    if chunks is not None and chunks < 1:
        raise ValueError(f"chunks is {chunks}, expected 1 or more")
    return Order(name, chunks or 1)


def order_of_file(path: str | Path) -> Order:
    """Read a schedule file; the order is called as the file is. Raises ScheduleFileError for mistakes in it."""
    from pipecut.ingest.plans.schedule_file import read_schedule

    name = Path(path).name
    return Order(name, table=replace(read_schedule(path), name=name))


def order_of(arguments: argparse.Namespace) -> Order | None:
    """Return the order that a command line asks for, None for that of the training. Raises InputError."""
    name, chunks, path = arguments.order, arguments.chunks, arguments.schedule_file
    if path is not None:
        if name is not None or chunks is not None:
            raise InputError("--schedule-file: cannot be together with --schedule interleaved or --chunks")
        with reading(path):
            return _with_plan(order_of_file(path), arguments, f"--schedule-file {path}")
    if name is None and chunks is None:
        return None
    if name is None:
        raise InputError("--chunks: only with --schedule interleaved")
    if name == INTERLEAVED and chunks is None:
        raise InputError("--schedule interleaved: needs --chunks V, the stages of the plan that each rank holds")
    try:
        found = order(name, chunks)
    except ValueError as error:
        raise InputError(f"--schedule {name} --chunks {chunks}: {error}") from error
    if found.searched and (lacks := unsearched()):
        raise InputError(f"--{lacks}")
    return _with_plan(found, arguments, f"--schedule {name} --chunks {found.chunks}")


def _with_plan(found: Order, arguments: argparse.Namespace, option: str) -> Order:
    if found.shares_ranks and arguments.plan is None:
        raise InputError(
            f"{option}: needs --plan FILE with stages that share devices; the planner gives each stage its own"
        )
    return found
