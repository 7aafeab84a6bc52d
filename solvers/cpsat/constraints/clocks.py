"""What a plan costs: *clocks* that run along the layers and must never pass the threshold T.

A clock reads, after layer l, the time that the stage of l has used so far. It goes on where no stage starts and
is set back where one does; when times are summed (``Combine.SUM``) it is never set back, but takes over the
latest of all clocks. With ``StageTime.ADD`` one clock counts everything; with OVERLAP computation and
communication have a clock each.

(5) ``stage_time``:    ``clock[l] >= clock[l-1] + own[l]`` if not ``cut[l]``;  ``clock[l] >= head[l] + own[l]``;
                       ``clock[l-1] + tail[l] <= T``
(6) ``boundary_time``: a boundary over link x before layer l takes ``activation[x, l] + gradient[x, l] <= T``,
                       or is paid by the receiving stages (head: activations in; tail: gradients in).

What every layer adds to the communication of its stage, as linear expressions over states and edges.

The iteration time beside the clocks: ``latency + (M - 1) * period`` stays within its limit.

The *period* is at least every reading of a clock and every boundary; the *latency* the sum of all stages and
boundaries. Where computation and communication add up, every layer adds to the latency by itself; where they
overlap, a second row of clocks runs on from stage to stage, as for ``Combine.SUM``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime
from pipecut.formulation.problem.shares import lanes
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.problem.units import Link
from pipecut.solvers.cpsat import variables
from pipecut.solvers.cpsat.variables import Conditional, Expression, Family, Posted, Variables, price_by_form


def own_communication(v: Variables) -> tuple[list[Expression], list[cp_model.Constraint]]:
    """Return for each layer its communication in ns, and the constraints that hold these expressions up.

    A layer with a form of its own pays the time inside it; each form edge into it pays a variable that is at
    least the time of the layout change between the two forms chosen, unless a stage starts in between; a
    FOLLOW layer pays for the form of the layer whose layout it has, by its weights or by what it computes so.
    Copied weights cost where a stage starts behind the layer that has the same ones.
    """
    tables, instance = v.tables, v.tables.instance
    constraints: list[cp_model.Constraint] = []
    own: list[Expression] = [
        sum(int(tables.inside[c, layer, t]) * literal for (c, t), literal in v.state[layer].items())
        for layer in range(v.layers)
    ]
    for index, edge in enumerate(instance.form_edges):
        price = variables.price_of_change(v, f"edge[{index}]", index, tables.between[:, index], v.threshold_ns)
        own[edge.consumer] += price.variable()
        constraints += price.constraints
    for layer, row in enumerate(instance.layers):
        if row.split is Split.FOLLOW and tables.moves(layer):
            price = price_by_form(v, "weights", layer, tables.inside[:, layer], v.threshold_ns)
            own[layer] += price.variable()
            constraints += price.constraints
    for (user, layer), copy in tables.copies.items():
        price = price_by_form(v, "copy", layer, copy, v.threshold_ns, ~v.together(user, layer))
        own[layer] += price.variable()
        constraints += price.constraints
    return own, constraints


Row = Sequence[Expression]


def post_iteration(
    v: Variables,
    ends: Sequence[Expression],
    boundaries: Row,
    latency: Callable[[int], tuple[Expression, list[cp_model.Constraint]]],
) -> Iterator[cp_model.Constraint]:
    """Limit the iteration time, where it is limited.

    ``ends`` are readings of clocks that stages reach; ``boundaries`` the times that links pay before each layer;
    ``latency`` returns the latency, at most its argument, and the constraints that hold it up.
    """
    most = v.thresholds.get(Goal.ITERATION_TIME)
    if most is None:
        return
    training = v.tables.instance.training
    period = v.model.new_int_var(0, v.threshold_ns, "period")
    for reading in (*ends, *boundaries):
        yield v.model.add(period >= reading)
    total: Expression = 0
    if training.schedule.flushes:
        total, constraints = latency(most)
        yield from constraints
    if training.schedule is Schedule.NAIVE:
        yield v.model.add(total <= most // training.micro_batches)
    else:
        rounds = training.micro_batches - training.schedule.flushes
        yield v.model.add(total + rounds * period <= most)


@dataclass(frozen=True, slots=True)
class Clock:
    """One clock: what each layer adds, what is added when a stage starts (head) and before it ends (tail)."""

    own: list[Expression]
    head: list[Expression]
    tail: list[Expression]


def post_stage_time(v: Variables) -> Posted:
    """(5) No clock passes the threshold; executed times need none (``solvers.cpsat.constraints.executed``)."""
    if v.tables.instance.goals[0].executed and not {Goal.BOTTLENECK, Goal.ITERATION_TIME} & {*v.thresholds}:
        return
    clocks, constraints = _clocks(v)
    yield from (((), constraint) for constraint in constraints)
    add_up = v.tables.instance.cost.combine is Combine.SUM
    reading, constraints = _readings(v, clocks, v.threshold_ns, _summed if add_up else _set_back)
    yield from (((0, at), constraint) for at, constraint in enumerate(constraints))
    total = v.layers
    ends = [
        reading[c][i] + (clock.tail[i + 1] if i + 1 < total else 0)
        for c, clock in enumerate(clocks)
        for i in range(total)
    ]
    paid = _boundaries(v)
    for constraint in post_iteration(v, ends, paid, lambda most: _latency(v, clocks, paid, most)):
        yield (1,), constraint


Readings = list[list[cp_model.IntVar]]


def _readings(
    v: Variables, clocks: list[Clock], most: int, post: Callable[..., Iterator[cp_model.Constraint]]
) -> tuple[Readings, list[cp_model.Constraint]]:
    """Let the clocks run along the layers, none above ``most``."""
    reading = [
        [v.model.new_int_var(0, most, f"clock[{c},{i}]") for i in range(v.layers)] for c in range(len(clocks))
    ]
    constraints: list[cp_model.Constraint] = []
    for c, clock in enumerate(clocks):
        constraints.append(v.model.add(reading[c][0] >= clock.own[0]))
        for i in range(1, v.layers):
            constraints += post(v, clocks, reading, c, i)
    return reading, constraints


def _latency(
    v: Variables, clocks: list[Clock], boundaries: list[Expression], most: int
) -> tuple[Expression, list[cp_model.Constraint]]:
    """Return the time of one micro-batch through all stages and boundaries, and what holds it up."""
    if len(clocks) == 1:
        own = (sum(part) for part in (clocks[0].own, clocks[0].head[1:], clocks[0].tail[1:], boundaries))
        return sum(own), []
    reading, constraints = _readings(v, clocks, most, _summed)
    total = v.model.new_int_var(0, most, "latency")
    return total, [*constraints, *(v.model.add(total >= row[-1]) for row in reading)]


def _boundaries(v: Variables) -> list[Expression]:
    """Return what links pay before each layer but the first, if they do."""
    if not _links_pay(v) or Goal.ITERATION_TIME not in v.thresholds:
        return []
    return [_crossing_time(v, i, activation=True, gradient=True) for i in range(1, v.layers)]


def _set_back(
    v: Variables, clocks: list[Clock], reading: Readings, c: int, i: int
) -> Iterator[cp_model.Constraint]:
    clock = clocks[c]
    goes_on = v.model.add(reading[c][i] >= reading[c][i - 1] + clock.own[i])
    goes_on.only_enforce_if(~v.cut[i])
    yield goes_on
    yield v.model.add(reading[c][i] >= clock.head[i] + clock.own[i])
    yield v.model.add(reading[c][i - 1] + clock.tail[i] <= v.threshold_ns)


def _summed(v: Variables, clocks: list[Clock], reading: Readings, c: int, i: int) -> Iterator[cp_model.Constraint]:
    clock, link = clocks[c], _crossing_time(v, i, activation=True, gradient=True) if _links_pay(v) else 0
    for other, before in enumerate(clocks):
        arrival = reading[other][i - 1] + before.tail[i] + link + clock.head[i] + clock.own[i]
        constraint = v.model.add(reading[c][i] >= arrival)
        if other != c:
            constraint.only_enforce_if(v.cut[i])
        yield constraint


def _clocks(v: Variables) -> tuple[list[Clock], list[cp_model.Constraint]]:
    compute: list[Expression] = [
        sum(int(v.tables.compute[c, i]) * literal for c, literal in enumerate(v.layer_kind[i]))
        for i in range(v.layers)
    ]
    communication, constraints = own_communication(v)
    nothing: list[Expression] = [0] * v.layers
    head, tail = nothing, nothing
    if not _links_pay(v):
        head = [_crossing_time(v, i, activation=True, gradient=False) for i in range(v.layers)]
        tail = [_crossing_time(v, i, activation=False, gradient=True) for i in range(v.layers)]
    if v.tables.instance.cost.stage_time is StageTime.OVERLAP:
        return [Clock(compute, nothing, nothing), Clock(communication, head, tail)], constraints
    both = [one + other for one, other in zip(compute, communication, strict=True)]
    return [Clock(both, head, tail)], constraints


def _links_pay(v: Variables) -> bool:
    return v.tables.instance.cost.boundary_charge is BoundaryCharge.LINK


def _crossing_time(v: Variables, i: int, *, activation: bool, gradient: bool) -> Expression:
    """Return a variable that is at least the time of what crosses into layer i, over every link crossed."""
    tables = v.tables
    paid = Conditional(v, f"crossing[{i}]", v.threshold_ns)
    for x, literal in enumerate(v.crossing[i]):
        paid.at_least(int(tables.activation[x, i]) * activation + int(tables.gradient[x, i]) * gradient, [literal])
    return paid.variable()


def post_boundary_time(v: Variables) -> Posted:
    """(6) The slowest link between two neighbouring groups carries their boundary, below the threshold.

    ``touches[k+1][s] and touches[k][t] => slow[k][b], late[k][l]`` for the bandwidth b and latency l between
    servers s and t; ``runs[k][g] or runs[k+1][g] => few[k][n]`` for the adapters n of group g;
    ``slow[k][b] and late[k][l] and few[k][n] => join[k][x]`` for the link x of n times that bandwidth.
    """
    tables, instance, model = v.tables, v.tables.instance, v.model
    known = {link for row in set(instance.links) for link in row if link is not None}
    bandwidths = sorted({link.bits_per_second for link in known})
    latencies = sorted({link.latency_ns for link in tables.links})
    numbers = [lanes(instance, group.counts) for group in tables.groups]
    index = {link: x for x, link in enumerate(tables.links)}
    for k in range(v.slots - 1):
        few = {number: model.new_bool_var(f"few[{k},{number}]") for number in sorted(set(numbers))}
        for g, number in enumerate(numbers) if len(few) > 1 else ():
            yield (k, g), model.add_implication(v.runs[k][g], few[number])
            yield (k, g), model.add_implication(v.runs[k + 1][g], few[number])
        slow = {bits: model.new_bool_var(f"slow[{k},{bits}]") for bits in bandwidths}
        late = {wait: model.new_bool_var(f"late[{k},{wait}]") for wait in latencies}
        for s, row in enumerate(instance.links):
            for t, link in enumerate(row):
                if link is not None:
                    both = [~v.touches[k + 1][s], ~v.touches[k][t]]
                    yield (k, s, t), model.add_bool_or([*both, slow[link.bits_per_second]])
                    yield (k, s, t), model.add_bool_or([*both, late[link.latency_ns]])
        for bits, wait, number in itertools.product(bandwidths, latencies, few):
            x = index[Link(bits * number, wait)]
            scarce = [~few[number]] if len(few) > 1 else []
            yield (k, x), model.add_bool_or([~slow[bits], ~late[wait], *scarce, v.join[k][x]])
    for i in range(1, v.layers):
        yield from _post_crossing(v, i)


def _post_crossing(v: Variables, i: int) -> Posted:
    """At layer i: forbid links that take too long alone, and tell the clocks which link is crossed."""
    times = [int(v.tables.activation[x, i] + v.tables.gradient[x, i]) for x in range(len(v.tables.links))]
    forbidden = [_links_pay(v) and time > v.threshold_ns for time in times]
    summed = v.tables.instance.cost.combine is Combine.SUM or Goal.ITERATION_TIME in v.thresholds
    counted = not _links_pay(v) or summed
    if all(forbidden):
        yield (i,), v.model.add(v.cut[i] == 0)
        return
    for x, literal in enumerate(v.crossing[i]):
        for k in range(v.slots - 1):
            here = [~v.starts[k][i], v.starts[k][i - 1], ~v.join[k][x]]
            if forbidden[x]:
                yield (i, x, k), v.model.add_bool_or(here)
            elif counted and times[x] > 0:
                yield (i, x, k), v.model.add_bool_or([*here, literal])


TIME_FAMILIES: tuple[Family, ...] = (
    Family(5, "stage_time", post_stage_time),
    Family(6, "boundary_time", post_boundary_time),
)
