"""Valid inequalities: what follows from the families anyway, said so that the solver need not find it.

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

from pipecut.formulation.schedules.table import Kind
from pipecut_literature.orders.bounds import Bounds, in_flight_limits
from pipecut_literature.orders.families import FAMILIES, OrderFamily, Posted, post_in_flight
from pipecut_literature.orders.problem import OrderProblem
from pipecut_literature.orders.variables import OrderVariables


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


IN_TURN = (OrderFamily(5, "in turn", post_in_turn),)
VALID = (
    OrderFamily(7, "limits", post_limits),
    OrderFamily(8, "areas", post_areas),
    OrderFamily(9, "weight areas", post_weight_areas),
)
"""Redundant; they hold only with ``IN_TURN``."""


def build(problem: OrderProblem, horizon_ns: int, *, in_turn: bool = True, valid: bool = True) -> OrderVariables:
    """Return the model whose solutions are the executions that end within the horizon.

    ``in_turn`` false leaves out the symmetry breaking and, as they rest on it, the valid inequalities.
    Cost: linear in actions; with shared links quadratic in messages.
    """
    v = OrderVariables.of(problem, horizon_ns, in_turn=in_turn)
    chosen = FAMILIES + (IN_TURN if in_turn else ()) + (VALID if in_turn and valid else ())
    for family in chosen:
        for _ in family.post(v):
            pass
    return v
