"""The run in a few numbers, each beside what a formula says of it, and in which sense the two should agree.

Where the time of every rank goes: five parts that add up to the makespan, to the nanosecond.

=========  ==========================================================================================
compute    the layers' own work
inside     communication inside layers: during passes, and synchronisation of weight gradients, with the optimiser
between    communication between layers of the stage, where layouts change
boundary   standing still while a tensor that it needs is on its way from a neighbour, or being fetched
idle       all else: waiting for a neighbour to compute
=========  ==========================================================================================

Communication that hides behind the computation of its own pass (``StageTime.OVERLAP``) takes no time of its own
and counts as compute; what sticks out counts as between as far as there is any, then as inside. A synchronisation
counts where the device does nothing else meanwhile; it goes before waiting for a tensor.

What a run is worth in numbers that people know: samples, FLOPs and their share of the peak, and money.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.executed import IN_ROUNDS
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.problem.units import NS_PER_SECOND
from pipecut.formulation.schedules.table import NONE, Integers
from pipecut.formulation.timeline import measures as bounds
from pipecut.formulation.timeline.durations import Transfers
from pipecut.formulation.timeline.measures import TimelineMeasures
from pipecut.formulation.timeline.program import SYNC
from pipecut.formulation.timeline.timeline import Timeline
from pipecut.report import simulation as theory
from pipecut.report.simulation import INTERLEAVED, ZERO_BUBBLE, Simulation
from pipecut.report.wording import count


@dataclass(frozen=True, slots=True)
class Spent:
    """The time of one rank over the whole run, in ns."""

    compute_ns: int
    inside_ns: int
    between_ns: int
    boundary_ns: int
    idle_ns: int


def spent_of(simulation: Simulation) -> list[Spent]:
    """Return the parts of every rank; each adds up to the makespan. Cost: linear in actions."""
    return [_spent(simulation, rank) for rank in range(len(simulation.ranks))]


def _spent(simulation: Simulation, rank: int) -> Spent:
    timeline, durations = simulation.timeline, simulation.made.durations
    compute = inside = between = 0
    for stage in simulation.ranks[rank]:
        cost = simulation.evaluation.stages[stage]
        passes = durations.forward_ns[stage] + durations.backward_ns[stage] + durations.recompute_ns[stage]
        computed = min(passes, cost.compute_ns)
        changed = min(passes - computed, cost.between_ns)
        compute += simulation.micro_batches * computed
        between += simulation.micro_batches * changed
        inside += simulation.micro_batches * (passes - computed - changed)
    alone, boundary = _gaps(timeline, rank, _synced_before(timeline, simulation.ranks[rank]))
    idle = timeline.makespan_ns - compute - between - inside - alone - boundary
    return Spent(compute, inside + alone, between, boundary, idle)


def _synced_before(timeline: Timeline, stages: tuple[int, ...]) -> Callable[[Integers], Integers]:
    """Return the function from moments to how long these stages, all of one rank, have synchronised until then.

    They take turns in one queue, so their synchronisations stand in order and never overlap.
    """
    program, times = timeline.program, timeline.times
    of_stage = program.stage == stages[0]
    for stage in stages[1:]:
        of_stage |= program.stage == stage
    mine = (program.kind == SYNC) & of_stage
    start, stop = times.start_ns[mine], times.stop_ns[mine]
    whole = (stop - start).cumsum()

    def before(moments: Integers) -> Integers:
        if len(start) == 0:
            return moments - moments
        begun = start.searchsorted(moments, side="right")
        return (begun > 0).astype(moments.dtype) * (whole[begun - 1] - (stop[begun - 1] - moments).clip(min=0))

    return before


def _gaps(timeline: Timeline, rank: int, synced: Callable[[Integers], Integers]) -> tuple[int, int]:
    """Return how long a rank, between its passes, only synchronises, and only waits for messages that travel."""
    program, times = timeline.program, timeline.times
    row = timeline.schedule.row(rank)
    start, stop, source = times.start_ns[row], times.stop_ns[row], program.needs[row]
    last = times.stop_ns.max(keepdims=True)
    alone = int(synced(start).sum() - synced(stop).sum() + synced(last).sum())
    free = stop - stop
    free[1:] = stop[:-1]
    takes = (source != NONE) & (program.link[source] != NONE)
    sent = source[takes]
    since = free[takes].clip(min=times.depart_ns[sent])
    until = start[takes].clip(max=times.arrive_ns[sent]).clip(min=since)
    return alone, int((until - since - synced(until) + synced(since)).sum())


BUBBLE = "bubble (idle share of device time)"

Number = int | float


class Relation(enum.StrEnum):
    """What the timeline should be, compared with the formula."""

    EXACT = "="
    LEAST = "≥"
    MOST = "≤"
    RELATED = "~"
    """Near it."""
    NONE = ""
    """There is no formula."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of the timeline beside that of a formula (None: there is none). ``unit``: ns or share."""

    key: str
    name: str
    unit: str
    timeline: Number | None
    relation: Relation
    formula: Number | None
    source: str

    @staticmethod
    def all_of(simulation: Simulation) -> list[Measure]:
        """Return makespan, period and bubble, each with every formula that speaks of it."""
        return [*_makespan(simulation), *_period(simulation), _bubble(simulation)]


def number(value: Fraction | int | None) -> Number | None:
    """Return a fraction as a whole number if it is one, else as the nearest floating-point number."""
    if value is None or isinstance(value, int):
        return value
    return int(value) if value.denominator == 1 else float(value)


Row = Callable[[Relation, int, str], Measure]


def _makespan(simulation: Simulation) -> list[Measure]:
    total = simulation.micro_batches
    name = f"makespan of {'one step' if simulation.made.schedule.flush else count(total, 'micro-batch')}"

    def row(relation: Relation, formula: int, source: str) -> Measure:
        return Measure("makespan", name, "ns", simulation.timeline.makespan_ns, relation, formula, source)

    whole = _in_whole_passes(simulation)
    rows = _planned_makespan(simulation, row) if whole else _given_makespan(simulation, row)
    if whole and simulation.made.schedule.flush and simulation.instance.cost.combine is Combine.MAX:
        costs = simulation.evaluation.stages
        estimate = goal_value(Goal.ITERATION_TIME, simulation.instance, simulation.plan, costs)
        alone = simulation.instance.training.schedule is Schedule.NAIVE
        source = "M times the latency" if alone else "latency, and M − 1 times the bottleneck"
        rows.append(row(Relation.RELATED, estimate, f"iteration time of the evaluator: {source}"))
    return rows


def _planned_makespan(simulation: Simulation, row: Row) -> list[Measure]:
    """Return the closed forms of the schedules that the planner knows."""
    durations, total = simulation.made.durations, simulation.micro_batches
    schedule = simulation.instance.training.schedule
    exact = Relation.LEAST if any(durations.sync_ns) else Relation.EXACT
    if schedule is Schedule.NAIVE:
        formula = theory.naive_iteration_ns(durations, total)
        return [row(exact, formula, "every pass and transfer, one after another")]
    if schedule is Schedule.GPIPE and _overlapped(simulation):
        formula = theory.gpipe_iteration_ns(durations, total)
        return [row(exact, formula, "latency, and M − 1 times the slowest forward and backward pass")]
    lower = bounds.iteration_lower_bound_ns(durations, total)
    rows = [row(Relation.LEAST, lower, "lower bound: fill, M passes of one stage, drain")]
    if simulation.made.schedule.flush and _overlapped(simulation) and _classic(simulation):
        upper = theory.iteration_upper_bound_ns(durations, total) + max(durations.sync_ns)
        rows.append(row(Relation.MOST, upper, "upper bound: M + S − 1 of the slowest of all passes and transfers"))
    return rows


def _given_makespan(simulation: Simulation, row: Row) -> list[Measure]:
    """Return what holds in any order, and for uniform stages what the order is famous for."""
    durations, total = simulation.made.durations, simulation.micro_batches
    busiest = total * max(sum(_passes(simulation, stage) for stage in stages) for stages in simulation.ranks)
    rows = [row(Relation.LEAST, busiest, "lower bound: all passes of the busiest rank")]
    forward = max(durations.forward_ns)
    whole = max(_passes(simulation, stage) for stage in range(_stages(simulation)))
    if simulation.schedule == ZERO_BUBBLE:
        found = busiest + _zero_bubble_idle_ns(simulation)
        rows.append(
            row(Relation.RELATED, found, "uniform stages: M (F + I + W) + (S − 1) (F + I − W), of the slowest")
        )
    elif simulation.schedule == Schedule.ZERO_BUBBLE_V:
        each = max(*durations.forward_ns, *durations.input_gradient_ns, *durations.weight_gradient_ns)
        found = theory.zero_bubble_v_iteration_ns(len(simulation.ranks), total, each)
        rows.append(
            row(Relation.RELATED, found, "passes that are all as long as the longest: 6 M + P − 1 of them")
        )
    elif simulation.schedule == INTERLEAVED:
        ranks, chunks = len(simulation.ranks), len(simulation.ranks[0])
        found = bounds.uniform_iteration_ns(ranks, total, forward, whole - forward, chunks)
        rows.append(row(Relation.RELATED, found, "uniform stages: (V M + P − 1) times the slowest stage"))
    return rows


def _zero_bubble_idle_ns(simulation: Simulation) -> int:
    """Return for how long each of uniform stages waits under ZB-H1, with the passes of the slowest."""
    weights = max(simulation.made.durations.weight_gradient_ns)
    whole = max(_passes(simulation, stage) for stage in range(_stages(simulation)))
    return theory.zero_bubble_h1_iteration_ns(_stages(simulation), 1, 0, whole - weights, weights) - whole


def _period(simulation: Simulation) -> list[Measure]:
    found = number(TimelineMeasures(simulation.timeline).period_ns)
    rows: list[Measure] = []
    bottleneck = simulation.bottleneck_ns
    if bottleneck is not None:
        slowest = "stage" if simulation.by_stage else "rank"
        source = f"the bottleneck: slowest {slowest} or boundary for one micro-batch"
        rows.append(Measure("period", "period", "ns", found, Relation.RELATED, bottleneck, source))
    closed = _period_formula(simulation) if _in_whole_passes(simulation) else None
    if closed is not None:
        rows.append(Measure("period", "period", "ns", found, Relation.RELATED, number(closed[0]), closed[1]))
    return rows or [Measure("period", "period", "ns", found, Relation.NONE, None, "")]


def _period_formula(simulation: Simulation) -> tuple[Fraction | int, str] | None:
    """Return the period in the middle of a long run of the schedule; None where no closed form holds."""
    durations, schedule = simulation.made.durations, simulation.instance.training.schedule
    if schedule is Schedule.NAIVE:
        return durations.latency_ns, "one micro-batch alone"
    if not _overlapped(simulation) or (not simulation.made.schedule.flush and any(durations.sync_ns)):
        return None
    if schedule is Schedule.GPIPE:
        backward = (_passes(simulation, at) - durations.forward_ns[at] for at in range(_stages(simulation)))
        return max(durations.forward_ns) + max(backward), "slowest forward and slowest backward pass"
    source = "1F1B, far from both ends: largest mean over runs of stages and the transfers between them"
    warm_ups = () if _classic(simulation) else simulation.plan.warm_ups(simulation.instance.training)
    return theory.one_f_one_b_period_ns(durations, warm_ups), source


def _bubble(simulation: Simulation) -> Measure:
    stages, total = _stages(simulation), simulation.micro_batches
    found = number(TimelineMeasures(simulation.timeline).bubble_of_total)
    formula, source = theory.gpipe_bubble(stages, total), "uniform stages: (S − 1) / (M + S − 1)"
    if simulation.priced and simulation.instance.training.schedule is Schedule.NAIVE:
        formula, source = Fraction(stages - 1, stages), "uniform stages: (S − 1) / S"
    elif simulation.schedule == INTERLEAVED:
        formula = theory.gpipe_bubble(len(simulation.ranks), total * len(simulation.ranks[0]))
        source = "uniform stages: (P − 1) / (V M + P − 1)"
    elif simulation.schedule == Schedule.ZERO_BUBBLE_V:
        ranks = len(simulation.ranks)
        whole = theory.zero_bubble_v_iteration_ns(ranks, total, 1)
        formula, source = Fraction(whole - 6 * total, whole), "passes of equal length: (P − 1) / (6 M + P − 1)"
    elif simulation.schedule == ZERO_BUBBLE:
        idle = _zero_bubble_idle_ns(simulation)
        whole = total * max(_passes(simulation, stage) for stage in range(stages))
        formula, source = Fraction(idle, max(1, whole + idle)), "uniform stages: (S − 1) (F + I − W) of the step"
    elif not simulation.priced:
        return Measure("bubble", BUBBLE, "share", found, Relation.NONE, None, "")
    return Measure("bubble", BUBBLE, "share", found, Relation.RELATED, number(formula), source)


def _passes(simulation: Simulation, stage: int) -> int:
    """Return the time of all passes of one micro-batch at a stage."""
    durations = simulation.made.durations
    return durations.forward_ns[stage] + durations.backward_ns[stage] + durations.recompute_ns[stage]


def _stages(simulation: Simulation) -> int:
    return len(simulation.plan)


def _overlapped(simulation: Simulation) -> bool:
    return simulation.made.execution.transfers is Transfers.OVERLAPPED


def _classic(simulation: Simulation) -> bool:
    return simulation.plan.unlike_classic(simulation.instance.training) is None


def _in_whole_passes(simulation: Simulation) -> bool:
    """Tell whether formulas know the run: groups of one stage each, an order they know, no halves of passes."""
    schedule = simulation.instance.training.schedule
    return simulation.by_stage and not schedule.in_halves and (schedule in IN_ROUNDS or not schedule.flushes)


EMBEDDING, TOKEN_BYTES = "Embedding", 8
"""The operator that looks tokens up, and the size of the number of a token in torch."""
FLOPS_PER_MAC = 2
MILLIONTHS = 10**6
SECONDS_PER_HOUR = 3600
TERA = 10**12


def throughput_of(
    instance: Instance, groups: Iterable[Group], samples: int, time_ns: int, steps: int = 1
) -> dict[str, Any]:
    """Return what so many samples in so much time are, on the devices of these groups.

    ``samples_per_second``; ``tokens_per_second``, where a sample has tokens (:func:`tokens_of`);
    ``tflops_per_device``: FLOPs of the model, two a multiply-accumulate of the forward pass and of each product
    of the backward pass, without what is computed again; ``model_flops_utilisation``: their share of what all
    these devices do at their peaks; ``price``: what the devices cost in this time, in the scenario's currency;
    ``price_of_step``: the same of one of so many steps. None where nothing takes time, or no device has a price.
    Cost: linear in layers.
    """
    held = [(instance.servers[server], count) for group in groups for server, count in group.counts]
    seconds = time_ns / NS_PER_SECOND
    hourly = sum(server.device_class.price_per_hour * count for server, count in held)
    price = hourly / MILLIONTHS * seconds / SECONDS_PER_HOUR if hourly else None
    prices = {"price": price, "price_of_step": None if price is None else price / steps}
    if not time_ns:
        return dict.fromkeys(KEYS) | prices
    tokens = tokens_of(instance)
    rate = samples * model_flops(instance) / seconds
    devices = sum(count for _, count in held)
    peak = sum(server.device_class.flops_per_second * count for server, count in held)
    return {
        "samples_per_second": samples / seconds,
        "tokens_per_second": tokens * samples / seconds if tokens else None,
        "tflops_per_device": rate / devices / TERA,
        "model_flops_utilisation": rate / peak,
        **prices,
    }


KEYS = (
    "samples_per_second",
    "tokens_per_second",
    "tflops_per_device",
    "model_flops_utilisation",
    "price",
    "price_of_step",
)


def tokens_of(instance: Instance) -> int:
    """Return how many tokens a sample has: the most numbers that one of its embeddings looks up; 0 without one."""
    found = (layer.input_bytes for layer in instance.layers if layer.operator == EMBEDDING)
    return max(found, default=0) // TOKEN_BYTES


def model_flops(instance: Instance) -> int:
    """Return the FLOPs of one sample, forward and backward: frozen weights have no gradient to compute."""
    products = instance.predictor.products
    return FLOPS_PER_MAC * sum(layer.macs * (1 + products.get(layer.name, 2)) for layer in instance.layers)
