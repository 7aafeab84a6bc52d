"""How much the fixed schedules lose against the proved best order of actions, for stages that are not equal.

Small cases of unequal stages: witnesses against 1F1B, and families of cases for measurements.

*Too few in flight*: two stages, three micro-batches, transfers. 1F1B lets two micro-batches be in flight at
stage 0, so the third waits until the gradient of the first has come all the way back (16 ns); with all three
forwarded at once, which takes memory for three, a step takes 12 ns.

*Same memory*: four stages, four micro-batches, no transfers, and no rank may hold more than 1F1B lets it. In the
order of 1F1B stage 1 waits until 12 ns for its third forward pass, before its first backward pass, which could
begin at 10 ns and is slow. 1F1B takes 31 ns, the best order 30 ns. Both were found by search over small numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median

import numpy as np

from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.formulation.timeline.durations import Durations, Execution
from pipecut.formulation.timeline.measures import Footprint
from pipecut.formulation.timeline.timeline import run as run_timeline
from pipecut_literature.orders.problem import OrderProblem
from pipecut_literature.orders.solve import Comparison, compare
from pipecut_literature.studies.study import Study, StudyInputs, StudyTable, words

MILLISECOND_NS = 10**6
STASH_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class OrderCase:
    """A problem with what tells it from its siblings in the family."""

    shape: str
    transfers: str
    memory: str
    problem: OrderProblem


@dataclass(frozen=True, slots=True)
class Shape:
    """Unequal stages: forward and backward times of up to four of them, in ms.

    Fewer stages are the first of them, or the last with ``from_end``.
    """

    name: str
    forward_ms: tuple[int, ...]
    backward_ms: tuple[int, ...]
    from_end: bool = False

    def stages(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return forward and backward times of so many stages, in ns."""
        kept = slice(len(self.forward_ms) - count, None) if self.from_end else slice(count)
        forward, backward = (
            tuple(time * MILLISECOND_NS for time in times[kept]) for times in (self.forward_ms, self.backward_ms)
        )
        return forward, backward


SHAPES = (
    Shape("first slow", (4, 2, 2, 2), (8, 4, 4, 4)),
    Shape("last slow", (2, 2, 2, 4), (4, 4, 4, 8), from_end=True),
    Shape("uneven", (3, 5, 2, 4), (6, 7, 5, 9)),
)
"""A large embedding, a large head, and layers that do not divide evenly."""
STAGES = (2, 3, 4)
MICRO_BATCHES = (2, 4, 8)
TRANSFERS_MS = {"none": (0, 0, 0), "short": (1, 2, 1), "long": (4, 3, 4)}
"""Time of an activation, and of a gradient, over each boundary: free, shorter than passes, as long as passes."""
NO_LIMIT, STAGE_LIMIT, DEVICE_LIMIT = "no limit", "1F1B, each stage", "1F1B, stage 0"
"""Memory: as much as one likes; on each rank what 1F1B needs there; on every rank what 1F1B needs on the first."""


def in_flight_memory(
    stages: int, micro_batches: int, memory: str
) -> tuple[Footprint | None, tuple[int, ...] | None]:
    """Return footprint and capacities for one of the three kinds of memory: min(S - s, M) stashes under 1F1B."""
    if memory == NO_LIMIT:
        return None, None
    counts = [min(stages - (stage if memory == STAGE_LIMIT else 0), micro_batches) for stage in range(stages)]
    footprint = Footprint((0,) * stages, (STASH_BYTES,) * stages)
    return footprint, tuple(count * STASH_BYTES for count in counts)


def family(*, split: bool) -> Iterator[OrderCase]:
    """Yield every combination of shape, stages, micro-batches, transfers and memory.

    Memory is limited stage by stage for whole backward passes, and to the same on all devices for split ones, as
    in ZB-H1, whose later stages hold more than those of 1F1B.
    """
    for shape in SHAPES:
        for stages in STAGES:
            forward, backward = shape.stages(stages)
            for micro_batches in MICRO_BATCHES:
                for transfers, times in TRANSFERS_MS.items():
                    each = tuple(time * MILLISECOND_NS for time in times[: stages - 1])
                    durations = Durations(forward, backward, activation_ns=each, gradient_ns=each)
                    for memory in (NO_LIMIT, DEVICE_LIMIT if split else STAGE_LIMIT):
                        problem = _problem(durations, micro_batches, split, memory)
                        yield OrderCase(shape.name, transfers, memory, problem)


def drawn(
    count: int, seed: int, stages: int, micro_batches: int, *, transfers: bool, split: bool, memory: str
) -> Iterator[OrderProblem]:
    """Yield problems with random passes of 1 to 4 ms forward, 1 to 8 ms backward, and transfers of up to 2 ms.

    Backward passes are drawn too: with recomputation, or frozen layers, they are not twice the forward passes.
    """
    chance = np.random.default_rng(seed)

    def times(number: int, least_ms: int, most_ms: int) -> tuple[int, ...]:
        return tuple(
            int(chance.integers(least_ms * MILLISECOND_NS, most_ms * MILLISECOND_NS, endpoint=True))
            for _ in range(number)
        )

    for _ in range(count):
        forward, backward = times(stages, 1, 4), times(stages, 1, 8)
        activation, gradient = (times(stages - 1, 0, 2) if transfers else () for _ in range(2))
        durations = Durations(forward, backward, activation_ns=activation, gradient_ns=gradient)
        yield _problem(durations, micro_batches, split, memory)


def _problem(durations: Durations, micro_batches: int, split: bool, memory: str) -> OrderProblem:
    stages = durations.stages
    footprint, capacity = in_flight_memory(stages, micro_batches, memory)
    return OrderProblem(durations, Execution(), micro_batches, tuple(range(stages)), split, footprint, capacity)


def too_few_in_flight() -> OrderProblem:
    """Return the witness in which 1F1B loses a third, for want of micro-batches in flight."""
    durations = Durations((2, 1), (2, 1), activation_ns=(1,), gradient_ns=(1,))
    return _problem(durations, 3, split=False, memory=NO_LIMIT)


def same_memory() -> OrderProblem:
    """Return the witness in which 1F1B loses within its own memory."""
    return _problem(Durations((4, 1, 1, 1), (1, 4, 2, 1)), 4, split=False, memory=STAGE_LIMIT)


TIME_LIMIT_S = 10.0
"""For each search, unless another is given."""
DRAWS = 20
DRAWN_SIZES = ((4, 8), (4, 16), (8, 16))
"""Stages and micro-batches of random cases."""
NAMES = {
    "naive": "naive",
    "gpipe": "GPipe",
    "one_f_one_b": "1F1B",
    "zero_bubble_h1": "ZB-H1",
    "interleaved": "interleaved 1F1B",
}
SPREAD = tuple(NAMES.values())[:4]
"""The schedules whose losses are summed up."""


def run(inputs: StudyInputs) -> Study:
    """Run all searches, one after another; two or three minutes."""
    limits = Limits(time_limit_s=TIME_LIMIT_S if inputs.time_limit_s is None else inputs.time_limit_s)
    cases = [case for split in (False, True) for case in family(split=split)]
    compared = [(case, compare(case.problem, limits)) for case in cases]
    whole = [one for one in compared if not one[0].problem.split]
    apart = [one for one in compared if one[0].problem.split]
    tables = (
        summary(compared),
        drawn_table(limits),
        shared_table(whole, limits),
        _witness_table("1F1B has too few micro-batches in flight", compare(too_few_in_flight(), limits)),
        _witness_table("1F1B loses within its own memory", compare(same_memory(), limits)),
        case_table("Every case, whole backward passes", whole),
        case_table("Every case, split backward passes", apart),
    )
    return Study(
        "What fixed schedules lose against the best order",
        words(__file__, "reading"),
        tables,
        figures(whole, apart),
    )


Compared = tuple[OrderCase, Comparison]


def figures(whole: Sequence[Compared], apart: Sequence[Compared]) -> dict[str, float | int | str | None]:
    """Return median and worst loss of each fixed schedule in percent, and how many cases were proved."""
    found: dict[str, float | int | str | None] = {
        "cases": len(whole) + len(apart),
        "proved": sum(one.outcome.proof is Proof.OPTIMAL for _, one in (*whole, *apart)),
    }
    for label, part, names in (("whole", whole, list(NAMES)[:3]), ("split", apart, list(NAMES)[:4])):
        for name in names:
            losses = _losses([one for _, one in part], name)
            found[f"{label}_{name}_median_loss_percent"] = float(100 * median(losses)) if losses else None
            found[f"{label}_{name}_worst_loss_percent"] = float(100 * max(losses)) if losses else None
    return found


def _losses(compared: Iterable[Comparison], name: str) -> list[Fraction]:
    """Return the losses of a schedule where it is among those compared and fits."""
    found = (one.loss(name) for one in compared if name in one.fixed)
    return [loss for loss in found if loss is not None]


def summary(compared: Sequence[Compared]) -> StudyTable:
    """Return medians and worst losses by kind of backward pass, transfers and memory."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for case, one in compared:
        key = "split" if case.problem.split else "whole", case.transfers, case.memory
        groups.setdefault(key, []).append(one)
    rows = [(*key, *_counted(part), *_spread(part)) for key, part in groups.items()]
    columns = ("backward", "transfers", "memory", "cases", "proved", "longest proof", *SPREAD)
    remark = "Each cell: median loss / worst loss (cases in which the schedule is optimal of those it fits in)."
    return StudyTable("Loss by kind of case", columns, tuple(rows), (remark,))


def _counted(part: Sequence[Comparison]) -> tuple[str, str, str]:
    proved = [one.outcome.seconds for one in part if one.outcome.proof is Proof.OPTIMAL]
    return str(len(part)), str(len(proved)), f"{max(proved, default=0):.2f} s"


def _spread(part: Sequence[Comparison]) -> list[str]:
    """Return a cell for each fixed schedule: median and worst loss, and in how many cases it loses nothing."""
    cells = []
    for name in list(NAMES)[: len(SPREAD)]:
        losses = _losses(part, name)
        best = sum(loss == 0 for loss in losses)
        spread = (
            f"{_percent(median(losses))} / {_percent(max(losses))} ({best} of {len(losses)})" if losses else "-"
        )
        cells.append(spread)
    return cells


def _percent(loss: Fraction) -> str:
    return f"{float(100 * loss):.1f} %"


def case_table(title: str, compared: Sequence[Compared]) -> StudyTable:
    """Return one row for each case: the best order, the time to its proof, each fixed schedule with its loss."""
    names = [name for name in NAMES if any(name in one.fixed for _, one in compared)]
    columns = ("stages", "S", "M", "transfers", "memory", "best", "proof", "seconds")
    rows = [
        (
            case.shape,
            str(case.problem.stages),
            str(case.problem.micro_batches),
            case.transfers,
            case.memory,
            *_best(one),
            *(_cell(one, name) for name in names),
        )
        for case, one in compared
    ]
    return StudyTable(
        title, (*columns, *(NAMES[name] for name in names)), tuple(rows), ("Makespans in ms (loss).",)
    )


def _best(one: Comparison) -> tuple[str, str, str]:
    makespan, outcome = one.outcome.makespan_ns, one.outcome
    return "-" if makespan is None else _ms(makespan), str(outcome.proof), f"{outcome.seconds:.3f}"


def _cell(one: Comparison, name: str) -> str:
    loss = one.loss(name) if name in one.fixed else None
    return "-" if loss is None else f"{_ms(one.fixed[name].makespan_ns)} ({_percent(loss)})"


def _ms(time_ns: int) -> str:
    return f"{time_ns / MILLISECOND_NS:.1f}"


def drawn_table(limits: Limits) -> StudyTable:
    """Return random cases: what holds beyond the shapes that were thought of."""
    rows = []
    for stages, micro_batches in DRAWN_SIZES:
        for split in (False, True):
            for transfers in (False, True):
                for memory in (NO_LIMIT, DEVICE_LIMIT if split else STAGE_LIMIT):
                    problems = drawn(
                        DRAWS, 0, stages, micro_batches, transfers=transfers, split=split, memory=memory
                    )
                    part = [compare(problem, limits) for problem in problems]
                    kind = "split" if split else "whole", "up to 2 ms" if transfers else "none", memory
                    rows.append((str(stages), str(micro_batches), *kind, *_counted(part), *_spread(part)))
    columns = ("S", "M", "backward", "transfers", "memory", "cases", "proved", "longest proof", *SPREAD)
    remark = "Forward passes of 1 to 4 ms, backward passes of 1 to 8 ms, each drawn evenly (seed 0)."
    return StudyTable("Random stages", columns, tuple(rows), (remark,))


def shared_table(whole: Sequence[Compared], limits: Limits) -> StudyTable:
    """Return the four-stage cases on two ranks, stage s on rank s mod 2."""
    rows = []
    for case in (case for case, _ in whole if case.problem.stages == 4 and case.memory == NO_LIMIT):
        one = compare(replace(case.problem, stage_ranks=(0, 1, 0, 1)), limits)
        cells = (_cell(one, name) for name in ("gpipe", "one_f_one_b", "interleaved"))
        rows.append((case.shape, str(case.problem.micro_batches), case.transfers, *_best(one), *cells))
    columns = ("stages", "M", "transfers", "best", "proof", "seconds", "GPipe", "1F1B", "interleaved 1F1B")
    return StudyTable("Stages that share ranks", columns, tuple(rows), words(__file__, "shared"))


def _witness_table(title: str, one: Comparison) -> StudyTable:
    """Return what each rank does when, in ns, in 1F1B and in the best order."""
    rows = []
    for name, schedule in (("1F1B", one.fixed["one_f_one_b"].schedule), ("best", one.outcome.schedule)):
        if schedule is not None:
            rows += _rows(name, schedule, one)
    times = one.problem.durations
    remark = (
        f"Forward {times.forward_ns}, backward {times.backward_ns}, activations {times.activation_ns}, gradients "
        f"{times.gradient_ns}, in ns. 1F1B takes {one.fixed['one_f_one_b'].makespan_ns} ns, the best order "
        f"{one.outcome.makespan_ns} ns ({one.outcome.proof})."
    )
    columns = ("order", "rank", "actions, each with its start in ns")
    return StudyTable(f"Witness: {title}", columns, tuple(rows), (remark,))


def _rows(name: str, schedule: PipelineSchedule, one: Comparison) -> list[tuple[str, str, str]]:
    timeline = run_timeline(schedule, one.problem.durations, one.problem.execution)
    return [
        (name, str(rank), " ".join(f"{one.kind}{one.micro_batch}@{at}" for one, at, _ in timeline.actions(rank)))
        for rank in range(schedule.ranks)
    ]
