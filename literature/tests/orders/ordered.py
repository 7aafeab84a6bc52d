"""Problems of order for tests, and every order there is for the smallest of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from hypothesis import strategies as st

from pipecut.formulation.outcome import Limits
from pipecut.formulation.schedules.table import Action, PipelineSchedule, ScheduleError
from pipecut.formulation.timeline.durations import Contention, Durations, Execution, Transfers
from pipecut.formulation.timeline.measures import Footprint
from pipecut_literature.orders.fixed import Executed, OrderOutcome, execute
from pipecut_literature.orders.problem import OrderProblem
from pipecut_literature.orders.solve import solve

TIMES = st.integers(1, 9)
PLACEMENTS = ((0,), (0, 1), (0, 1, 2), (0, 0), (0, 1, 0), (0, 1, 1), (1, 0, 0))


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    most_micro_batches: int = 2,
    placements: Sequence[tuple[int, ...]] = PLACEMENTS,
    contentions: Sequence[Contention] = (Contention.NONE,),
    shared_links: bool = False,
    splits: Sequence[bool] = (False, True),
) -> OrderProblem:
    """Problems with every mode of transfers, recomputation, synchronisation, updates, and memory that binds."""
    ranks = draw(st.sampled_from(placements))
    stages = len(ranks)

    def times(count: int, least: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, 9)) for _ in range(count))

    def rare(count: int) -> tuple[int, ...]:
        return times(count, 0) if draw(st.booleans()) else ()

    least = 1 if shared_links else draw(st.integers(0, 1))
    inputs, weights = times(stages, least), times(stages, least)
    links = [draw(st.integers(0, 1)) for _ in range(2 * stages - 2)] if shared_links else []
    durations = Durations(
        forward_ns=times(stages, least),
        backward_ns=tuple(one + other for one, other in zip(inputs, weights, strict=True)),
        weight_gradient_ns=weights,
        recompute_ns=rare(stages),
        sync_ns=rare(stages),
        optimizer_ns=rare(stages),
        activation_ns=rare(stages - 1),
        gradient_ns=rare(stages - 1),
        activation_link=tuple(links[: stages - 1]),
        gradient_link=tuple(links[stages - 1 :]),
    )
    execution = Execution(
        contention=draw(st.sampled_from(contentions)),
        transfers=draw(st.sampled_from(Transfers)),
        overlap_sync=draw(st.booleans()),
    )
    micro_batches = draw(st.integers(1, most_micro_batches))
    split = draw(st.sampled_from(splits))
    if draw(st.booleans()):
        return OrderProblem(durations, execution, micro_batches, ranks, split)
    footprint = Footprint(times(stages, 0), times(stages, 1), times(stages, 0) if draw(st.booleans()) else ())
    memory = tuple(
        sum(draw(st.integers(1, 2)) * 9 for one in ranks if one == rank) for rank in range(max(ranks) + 1)
    )
    return OrderProblem(durations, execution, micro_batches, ranks, split, footprint, memory)


def every_order(problem: OrderProblem) -> Iterator[PipelineSchedule]:
    """Yield every order in which each rank does a micro-batch's own actions one after another, in any turn."""
    rows = [list(_merged(_chains(problem, rank))) for rank in range(problem.ranks)]
    for chosen in product(*rows):
        yield PipelineSchedule.of_actions("some", chosen)


def _chains(problem: OrderProblem, rank: int) -> list[list[Action]]:
    """Return for every micro-batch sequences of which an order of the rank is a merger.

    With split passes ``W`` is free after ``I``, so it is put in later (``_merged``).
    """
    stages = problem.stages_of(rank)
    chains = []
    for m in range(problem.micro_batches):
        there = [Action(stage, problem.kinds[0], m) for stage in stages]
        chains.append(there + [Action(stage, problem.backward, m) for stage in reversed(stages)])
        if problem.split:
            chains += [[Action(stage, problem.kinds[2], m)] for stage in stages]
    return chains


def _merged(chains: list[list[Action]]) -> Iterator[list[Action]]:
    if not any(chains):
        yield []
    for at, chain in enumerate(chains):
        if chain:
            rest = [*chains[:at], chain[1:], *chains[at + 1 :]]
            for row in _merged(rest):
                yield [chain[0], *row]


def orders_within_memory(problem: OrderProblem) -> Iterator[Executed]:
    """Yield every order that can be executed within memory."""
    for schedule in every_order(problem):
        try:
            executed = execute(problem, schedule)
        except ScheduleError:
            continue
        if executed.fits(problem):
            yield executed


def best_of_all(problem: OrderProblem) -> int | None:
    """Return the least makespan of all orders; None if no order keeps within memory."""
    return min((executed.makespan_ns for executed in orders_within_memory(problem)), default=None)


def best_order(
    durations: Durations,
    execution: Execution,
    micro_batches: int,
    *,
    stage_ranks: Sequence[int] | None = None,
    split: bool = False,
    footprint: Footprint | None = None,
    memory_bytes: Sequence[int] | None = None,
    limits: Limits | None = None,
) -> OrderOutcome:
    """The best order of stages on ranks of their own, if none are named."""
    ranks = tuple(range(durations.stages) if stage_ranks is None else stage_ranks)
    memory = None if memory_bytes is None else tuple(memory_bytes)
    problem = OrderProblem(durations, execution, micro_batches, ranks, split, footprint, memory)
    return solve(problem, limits or Limits())
