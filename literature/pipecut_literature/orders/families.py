"""The constraint families that say what an execution is. Each is a generator of (index, constraint).

Let ``T`` be the horizon. The model asks for times, not for an order; the rows are read from the times. Where rows
decide everything (``OrderProblem.follows_from_rows``), executing them as soon as possible never ends later than
the times that were found: every action begins at the longest way to it through rows and messages, and the times
found keep all these. With links that several passes share, executing earlier can change who is first on a link, so
there the model is a relaxation: its bound holds, while the makespan of its rows is only known by execution.

**In turn** (5): the actions of every pass are taken in the order of micro-batches. This loses nothing, since
micro-batches are identical. Take any solution; in every pass, sort the times at which its actions begin (and those
at which its messages depart), and give the k-th to micro-batch k. Devices and links are occupied at the same
times as before, and as many actions of each pass are over at any moment, so memory holds the same. What needs what
is kept too: if every action of one pass begins after the action of another pass for its micro-batch has stopped
(and its message arrived), then when the k-th begins at least k of the other pass are over, so the k-th of them to
stop is over. Who asks a link first is kept, as requests and departures of a pass are in the same order. The end of
the step depends on when the last backward action of a stage stops, which is the same.

The variables of the model: when each action takes its device, and when each message departs.

Valid inequalities: what follows from the families anyway, said so that the solver need not find it.

All are about actions taken in turn (``families``), so that the m-th action of a pass has m of its own before it.
Let ``f`` and ``b`` be how long a stage's ``F`` and ``B`` (or ``I``) keep its device, M the micro-batches, and k
the micro-batches that memory lets be in flight there until ``B`` (or ``I``) stops (M without a limit).

*Before*: ``B[m]`` comes after m + 1 forward and m backward passes of its stage, which begin at its head at the
earliest: ``begin B[m] >= head + (m + 1) f + m b``; and ``F[m]`` after m forward and m - k + 1 backward passes.
*After*: from ``F[m]`` on M - m forward and as many backward passes are to be done, then the stage drains:
``begin F[m] + (M - m)(f + b) + drain <= T`` (less the last message, which travels during the drain); and from
``B[m]`` on M - m backward passes and the forward passes from m + k on, which wait for it.
*Weights*: likewise for ``W``: m + 1 of both others and m of its own before it; M - m ``W`` from ``W[m]`` or
``I[m]`` on, with M - m ``I`` from the latter, and M - m of each kind from ``F[m]`` on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from ortools.sat.python import cp_model

from pipecut.formulation.schedules.table import Kind
from pipecut.formulation.timeline.durations import Contention, Transfers
from pipecut.formulation.timeline.measures import Footprint
from pipecut_literature.orders.bounds import Bounds, in_flight_limits, limits_suffice
from pipecut_literature.orders.problem import Key, OrderProblem, Pass

Expression = cp_model.LinearExprT


@dataclass(frozen=True, slots=True)
class OrderVariables:
    """A model for one horizon: everything must have ended ``horizon_ns`` after the start.

    ``begin[key][m]`` is when action m of a pass takes its device: from then on it fetches, or waits for the link,
    computes, and sends. ``depart[key][m]`` is when its message departs; only with contention
    are messages variables. ``in_turn``: the actions of a pass are in the order of micro-batches.
    """

    model: cp_model.CpModel
    problem: OrderProblem
    passes: dict[Key, Pass]
    horizon_ns: int
    in_turn: bool
    begin: dict[Key, list[cp_model.IntVar]]
    depart: dict[Key, list[cp_model.IntVar]]

    @classmethod
    def of(cls, problem: OrderProblem, horizon_ns: int, *, in_turn: bool) -> OrderVariables:
        """Return a model with variables and no constraints. Cost: linear in actions."""
        model, passes = cp_model.CpModel(), problem.passes()
        sends = [key for key, one in passes.items() if one.link is not None]
        contended = sends if problem.execution.contention is Contention.FIFO else []

        def times(keys: list[Key], letter: str) -> dict[Key, list[cp_model.IntVar]]:
            every = range(problem.micro_batches)
            return {
                key: [model.new_int_var(0, horizon_ns, f"{letter}{key[0]}{key[1]}{m}") for m in every]
                for key in keys
            }

        return cls(model, problem, passes, horizon_ns, in_turn, times(list(passes), ""), times(contended, "m"))

    @property
    def receives(self) -> bool:
        """Tell whether devices fetch what they need."""
        return self.problem.execution.transfers is Transfers.RECEIVER

    @property
    def sends(self) -> bool:
        """Tell whether devices stand still until what they send has arrived."""
        return self.problem.execution.transfers is Transfers.SENDER

    def stop(self, key: Key, m: int) -> Expression:
        """Return when an action has computed."""
        one = self.passes[key]
        if self.receives and one.source in self.depart:
            return self.arrival(one.source, m) + one.duration_ns
        return self.begin[key][m] + one.fetch_ns + one.duration_ns

    def freed(self, key: Key, m: int) -> Expression:
        """Return when an action frees its device."""
        if self.sends and key in self.depart:
            return self.arrival(key, m)
        return self.stop(key, m) + self.passes[key].hold_ns

    def arrival(self, key: Key, m: int) -> Expression:
        """Return when the message of an action arrives, or when it has stopped if it sends none."""
        if key in self.depart:
            return self.depart[key][m] + self.passes[key].message_ns
        return self.stop(key, m) + self.passes[key].travel_ns

    def request(self, key: Key, m: int) -> Expression:
        """Return when the link is asked for the message of an action."""
        if not self.receives:
            return self.stop(key, m)
        taker = next(one for one, other in self.passes.items() if other.source == key)
        return self.begin[taker][m]


Posted = Iterator[tuple[tuple[int, ...], cp_model.Constraint]]


OrderFamilies = dict[int, Callable[[OrderVariables], Posted]]
"""Groups of constraints by number: each adds its own to the model and yields every one with its index."""


def post_devices(v: OrderVariables) -> Posted:
    """(1) A device does one action at a time: intervals from begin to freed do not overlap."""
    for rank in range(v.problem.ranks):
        own = [key for key, one in v.passes.items() if one.rank == rank]
        intervals = [
            _interval(v, v.begin[key][m], v.freed(key, m), f"{key[0]}{key[1]}{m}", v.passes[key].occupied_ns)
            for key in own
            for m in range(v.problem.micro_batches)
        ]
        yield (rank,), v.model.add_no_overlap(intervals)


def _interval(
    v: OrderVariables, begin: Expression, end: Expression, name: str, least_ns: int = 0
) -> cp_model.IntervalVar:
    """Return the interval between two times; only with contention is its length not known beforehand."""
    if not v.depart:
        return v.model.new_fixed_size_interval_var(begin, least_ns, name)
    return v.model.new_interval_var(begin, v.model.new_int_var(0, v.horizon_ns, ""), end, name)


def post_messages(v: OrderVariables) -> Posted:
    """(2) An action begins when what it needs has arrived; one that fetches, when that is made."""
    for key, one in v.passes.items():
        if one.needs is None:
            continue
        for m in range(v.problem.micro_batches):
            ready = v.arrival(one.needs, m) if one.source and not v.receives else v.stop(one.needs, m)
            yield (one.stage, m), v.model.add(v.begin[key][m] >= ready)


def post_links(v: OrderVariables) -> Posted:
    """(3) With contention a link carries one message at a time, the earlier request first.

    ``request <= depart``; for messages i, j of different passes either ``request_i <= request_j`` and
    ``arrival_i <= depart_j``, or the other way round. Of two requests at the same moment the lower rank's comes
    first, unless devices fetch: then either may.
    """
    every = range(v.problem.micro_batches)
    for key, departures in v.depart.items():
        for m in every:
            yield (key[0], m), v.model.add(departures[m] >= v.request(key, m))
    for one, other in combinations(v.depart, 2):
        if v.passes[one].link == v.passes[other].link:
            for m in every:
                for n in every:
                    yield from _one_first(v, (one, m), (other, n))
    for key in v.depart:
        for m, n in combinations(every, 2):
            yield from _one_first(v, (key, m), (key, n))


def _one_first(v: OrderVariables, one: tuple[Key, int], other: tuple[Key, int]) -> Posted:
    """Post that one of two messages comes first: the one that asks first."""
    first = v.model.new_bool_var("")
    lower = v.passes[one[0]].rank - v.passes[other[0]].rank
    for literal, a, b, sign in ((first, one, other, 1), (~first, other, one, -1)):
        at_same_moment = v.receives or sign * lower <= 0
        requested = v.request(*a) + (0 if at_same_moment else 1)
        index = (a[0][0], a[1], b[0][0], b[1])
        yield index, v.model.add(requested <= v.request(*b)).only_enforce_if(literal)
        yield index, v.model.add(v.arrival(*a) <= v.depart[b[0]][b[1]]).only_enforce_if(literal)


def post_memory(v: OrderVariables) -> Posted:
    """(4) A rank holds at most its memory: stashes until ``B`` or ``I`` stops, the rest until ``W`` does.

    As a cumulative resource. Where an order in turn and a limit k of micro-batches in flight say the same (see
    ``bounds.limits_suffice``), this is ``begin F[m + k] >= stop B[m]`` and needs no more.
    """
    problem, footprint, memory = v.problem, v.problem.footprint, v.problem.memory_bytes
    if footprint is None or memory is None:
        return
    for rank, capacity in enumerate(memory):
        if v.in_turn and limits_suffice(problem, rank):
            yield from post_in_flight(v, problem.stages_of(rank))
            continue
        stages = problem.stages_of(rank)
        stored = [one for stage in stages for one in _stored(v, footprint, stage)]
        room = capacity - sum(footprint.static_bytes[stage] for stage in stages)
        intervals, held = [one for one, _ in stored], [one for _, one in stored]
        yield (rank,), v.model.add_cumulative(intervals, held, room)


def _stored(v: OrderVariables, footprint: Footprint, stage: int) -> Iterator[tuple[cp_model.IntervalVar, int]]:
    """Yield when the micro-batches of a stage hold how many bytes."""
    backward, weights = (stage, v.problem.backward), (stage, Kind.WEIGHT_GRADIENT)
    kept = footprint.weight_stash_bytes[stage] if v.problem.split else 0
    for m, begin in enumerate(v.begin[stage, Kind.FORWARD]):
        yield _held(v, begin, v.stop(backward, m)), footprint.stash_bytes[stage]
        if kept:
            yield _held(v, v.stop(backward, m), v.stop(weights, m)), kept


def _held(v: OrderVariables, begin: Expression, end: Expression) -> cp_model.IntervalVar:
    return v.model.new_interval_var(begin, v.model.new_int_var(0, v.horizon_ns, ""), end, "")


def post_in_flight(v: OrderVariables, stages: Iterable[int]) -> Posted:
    """Post that at most so many micro-batches of a stage are in flight; in turn, with k: F[m + k] after B[m]."""
    for stage in stages:
        for kind, most in in_flight_limits(v.problem, stage).items():
            for m in range(v.problem.micro_batches - most):
                begin = v.begin[stage, Kind.FORWARD][m + most]
                yield (stage, m), v.model.add(begin >= v.stop((stage, kind), m))


def post_ends(v: OrderVariables) -> Posted:
    """(6) Everything ends by T: actions, then synchronisation of the gradients and the update of the weights.

    After all its actions a rank synchronises and updates its stages one by one. With overlap it synchronises a
    stage from its last backward action on, so on a shared rank stages take turns (``_overlapped``).
    """
    times = v.problem.durations
    for rank in range(v.problem.ranks):
        stages = v.problem.stages_of(rank)
        synced = [stage for stage in stages if times.sync_ns[stage]]
        overlaps = v.problem.execution.overlap_sync and len(stages) > 1 and bool(synced)
        updates = sum(times.optimizer_ns[stage] for stage in stages if not (overlaps and stage in synced))
        tail = updates + (0 if overlaps else sum(times.sync_ns[stage] for stage in stages))
        row_end = v.model.new_int_var(0, v.horizon_ns, f"end{rank}")
        for key in (key for key, one in v.passes.items() if one.rank == rank):
            for m in range(v.problem.micro_batches):
                end = v.freed(key, m) if tail or overlaps else v.stop(key, m)
                yield (rank, key[0], m), v.model.add(row_end >= end)
        yield (rank,), v.model.add(row_end + tail <= v.horizon_ns)
        if overlaps:
            yield from _overlapped(v, synced, row_end + updates)


def _overlapped(v: OrderVariables, stages: list[int], updating: Expression) -> Posted:
    """Post synchronisations and updates of a shared rank, both in the order of the last backward actions."""
    times, model = v.problem.durations, v.model
    last: dict[int, cp_model.IntVar] = {}
    synced: dict[int, cp_model.IntVar] = {}
    updated: dict[int, cp_model.IntVar] = {}
    for stage in stages:
        last[stage], synced[stage], updated[stage] = (model.new_int_var(0, v.horizon_ns, "") for _ in range(3))
        key = stage, v.problem.kinds[-1]
        ends = [v.freed(key, m) for m in range(v.problem.micro_batches)]
        yield (stage,), model.add_max_equality(last[stage], ends)
        yield (stage,), model.add(synced[stage] >= last[stage] + times.sync_ns[stage])
        for begin in (synced[stage], updating):
            yield (stage,), model.add(updated[stage] >= begin + times.optimizer_ns[stage])
    for one, other in combinations(stages, 2):
        first = model.new_bool_var("")
        for literal, a, b in ((first, one, other), (~first, other, one)):
            yield (a, b), model.add(last[a] < last[b]).only_enforce_if(literal)
            yield (a, b), model.add(synced[b] >= synced[a] + times.sync_ns[b]).only_enforce_if(literal)
            yield (a, b), model.add(updated[b] >= updated[a] + times.optimizer_ns[b]).only_enforce_if(literal)


FAMILIES: OrderFamilies = {1: post_devices, 2: post_messages, 3: post_links, 4: post_memory, 6: post_ends}
"""What makes every assignment an execution that ends within the horizon."""


def post_in_turn(v: OrderVariables) -> Posted:
    """(5) The actions of a pass, and its messages on their link, are in the order of micro-batches."""
    for key, begin in v.begin.items():
        for m in range(len(begin) - 1):
            yield (key[0], m), v.model.add(begin[m + 1] >= v.freed(key, m))
    for key, departures in v.depart.items():
        for m in range(len(departures) - 1):
            yield (key[0], m), v.model.add(departures[m + 1] >= v.arrival(key, m))


def post_limits(v: OrderVariables) -> Posted:
    """(7) What memory says of the micro-batches in flight of each stage alone."""
    yield from post_in_flight(v, range(v.problem.stages))


def post_areas(v: OrderVariables) -> Posted:
    """(8) Work before and after each action of a stage: *before* and *after* above."""
    bounds, total = Bounds(v.problem), v.problem.micro_batches
    for stage in range(v.problem.stages):
        ahead, back = (stage, Kind.FORWARD), (stage, v.problem.backward)
        f, b = v.passes[ahead].occupied_ns, v.passes[back].occupied_ns
        head, drain = bounds.heads_ns[stage], bounds.drains_ns[stage] - v.passes[back].hold_ns
        k = in_flight_limits(v.problem, stage).get(v.problem.backward, total)
        for m in range(total):
            left = total - m
            yield (stage, m), v.model.add(v.begin[back][m] >= head + (m + 1) * f + m * b)
            yield (stage, m), v.model.add(v.begin[ahead][m] >= head + m * f + max(0, m - k + 1) * b)
            yield (stage, m), v.model.add(v.begin[ahead][m] + left * (f + b) + drain <= v.horizon_ns)
            rest = left * b + max(0, left - k) * f + drain
            yield (stage, m), v.model.add(v.begin[back][m] + rest <= v.horizon_ns)


def post_weight_areas(v: OrderVariables) -> Posted:
    """(9) Work before and after each ``W``: *weights* above."""
    if not v.problem.split:
        return
    bounds, total = Bounds(v.problem), v.problem.micro_batches
    for stage in range(v.problem.stages):
        keys = [(stage, kind) for kind in v.problem.kinds]
        f, i, w = (v.passes[key].occupied_ns for key in keys)
        after, head = bounds.after_ns(stage), bounds.heads_ns[stage]
        for m in range(total):
            left = total - m
            yield (stage, m), v.model.add(v.begin[keys[2]][m] >= head + (m + 1) * (f + i) + m * w)
            for key, rest in zip(keys, (f + i + w, i + w, w), strict=True):
                yield (stage, m), v.model.add(v.begin[key][m] + left * rest + after <= v.horizon_ns)


IN_TURN: OrderFamilies = {5: post_in_turn}
VALID: OrderFamilies = {7: post_limits, 8: post_areas, 9: post_weight_areas}
"""Redundant; they hold only with ``IN_TURN``."""


def build(problem: OrderProblem, horizon_ns: int, *, in_turn: bool = True, valid: bool = True) -> OrderVariables:
    """Return the model whose solutions are the executions that end within the horizon.

    ``in_turn`` false leaves out the symmetry breaking and, as they rest on it, the valid inequalities.
    Cost: linear in actions; with shared links quadratic in messages.
    """
    v = OrderVariables.of(problem, horizon_ns, in_turn=in_turn)
    chosen = FAMILIES | (IN_TURN if in_turn else {}) | (VALID if in_turn and valid else {})
    for post in chosen.values():
        for _ in post(v):
            pass
    return v
