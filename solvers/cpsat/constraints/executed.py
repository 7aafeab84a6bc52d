"""Executed times as constraints: when every pass of every slot ends, after all that it waits for.

Slots are counted from the back, so that the order of the passes of a slot is known; passes of slots that are not
used take no time, and whatever waits for them waits for a used slot as long. So nothing here has a condition: all
is linear in the passes of slots (``solvers.cpsat.constraints.passes``), as ``formulation.executed`` says.

(18) ``executed_time``: the step ends by T. F-then-B and one micro-batch at a time have closed formulas. Under 1F1B
     every pass ends after the one before it on its devices, and after what arrives, by as much as it takes; the
     last backward pass of a slot and its synchronisation end by T. The period is at most T if passes can be
     repeated every T: a round of M pairs is posted, whose first passes wait for the last of the round before it.

The order of the passes of a slot that chooses its warm-up: which pass stands behind which.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ortools.sat.python import cp_model

from pipecut.formulation.problem.instance import longest_run_ns
from pipecut.formulation.problem.options import Synchronisation
from pipecut.formulation.problem.training import Schedule
from pipecut.solvers.cpsat.constraints.passes import SlotPasses, slot_passes
from pipecut.solvers.cpsat.variables import Expression, Family, Posted, Variables


def chosen_order(
    v: Variables, passes: SlotPasses, ends: tuple[list[cp_model.IntVar], list[cp_model.IntVar]], slot: int
) -> Iterator[cp_model.Constraint]:
    """Post the order of the passes of one slot, which end at ``ends``: forward and backward.

    With the warm-up w backward pass m stands behind forward pass m + w - 1, and forward pass m behind backward
    pass m - w. A slot with w or more has what w asks of backward passes, one with w or fewer what it asks of
    forward passes. No slot warms up longer than the one before it (``formulation.problem.plan.Plan.warm_ups``).
    """
    model, (forward, backward) = v.model, ends
    for (_, fewer), (many, longer) in itertools.pairwise(v.warm_ups(slot)):
        for literal in longer:
            yield from (model.add_implication(literal, one) for one in fewer)
            if slot + 1 < v.slots and many in v.longer[slot + 1]:
                yield model.add_implication(literal, v.longer[slot + 1][many])
    for row, own in ((forward, passes.forward[slot]), (backward, passes.backward[slot])):
        yield model.add(row[0] >= own)
        yield from (model.add(end >= before + own) for before, end in itertools.pairwise(row))
    for many, longer in v.warm_ups(slot):
        for before, end in zip(forward[many - 1 :], backward, strict=False):
            behind = model.add(end >= before + passes.backward[slot])
            behind.only_enforce_if(longer)
            yield behind
        more = [~v.longer[slot][many + 1]] if many + 1 in v.longer[slot] else []
        for before, end in zip(backward, forward[many:], strict=False):
            behind = model.add(end >= before + passes.forward[slot])
            behind.only_enforce_if(more)
            yield behind


Ends = list[list[cp_model.IntVar]]
Limits = Iterator[cp_model.Constraint]


def post_executed_time(v: Variables) -> Posted:
    """(18) The executed time of the first goal stays within the threshold."""
    goal, training = v.tables.instance.goals[0], v.tables.instance.training
    most = v.thresholds.get(goal)
    if most is None or not goal.executed:
        return
    # Two stages that take no time have two periods for a transfer between them.
    longest = most if training.schedule.flushes else 2 * most * training.micro_batches
    passes, constraints = slot_passes(v, longest)
    yield from (((0,), one) for one in constraints)
    if not training.schedule.flushes:
        posted = itertools.chain(_runs(v, passes, most), _round(v, passes, most))
    elif training.schedule is Schedule.NAIVE:
        posted = _naive(v, passes, most)
    elif training.schedule is Schedule.GPIPE:
        posted = _gpipe(v, passes, most)
    else:
        posted = itertools.chain(_paths(v, passes, most), _one_f_one_b(v, passes, most))
    yield from (((1, at), one) for at, one in enumerate(posted))


def _way_down(passes: SlotPasses, slot: int = 0) -> Expression:
    """Return the forward passes and transfers of one micro-batch from the front into a slot, its own included."""
    return sum(passes.forward[slot:]) + sum(passes.activation[slot:])


def _way_back(passes: SlotPasses, slot: int) -> Expression:
    """Return the backward passes and transfers of one micro-batch from the last slot up to this one."""
    return sum(passes.backward[: slot + 1]) + sum(passes.gradient[:slot])


def _naive(v: Variables, passes: SlotPasses, most: int) -> Limits:
    """Post one micro-batch after another, and the synchronisation of each slot behind its last backward pass."""
    down, many = _way_down(passes), v.tables.instance.training.micro_batches
    whole = down + _way_back(passes, v.slots - 1)
    for k in range(v.slots):
        yield v.model.add((many - 1) * whole + down + _way_back(passes, k) + passes.sync[k] <= most)


def _gpipe(v: Variables, passes: SlotPasses, most: int) -> Limits:
    """Post both halves of F-then-B, each paced by its slowest slot; backward by the slowest up to each slot."""
    more = v.tables.instance.training.micro_batches - 1
    slowest = v.model.new_int_var(0, most, "slowest forward")
    turn, before = _way_down(passes) + more * slowest, None
    for k in range(v.slots):
        yield v.model.add(slowest >= passes.forward[k])
        pace = v.model.new_int_var(0, most, f"slowest backward[{k}]")
        yield v.model.add(pace >= passes.backward[k])
        if before is not None:
            yield v.model.add(pace >= before)
        before = pace
        yield v.model.add(turn + _way_back(passes, k) + more * pace + passes.sync[k] <= most)


def _paths(v: Variables, passes: SlotPasses, most: int) -> Limits:
    """Post what follows from the order of passes: sums along paths of passes that wait for one another.

    One goes down to a slot, through all of its passes, and back. The others take one micro-batch through all slots
    and back to a slot, and from there as often as there are passes through a run of slots behind it.
    """
    training = v.tables.instance.training
    many, warm_ups = training.micro_batches, [training.warm_up_in(k) for k in range(v.slots)]
    whole = _way_down(passes) + _way_back(passes, v.slots - 1)
    for k in range(v.slots):
        arrives = sum(passes.forward[k + 1 :]) + sum(passes.activation[k:])
        returns = sum(passes.backward[k + 1 :]) + sum(passes.gradient[k:])
        own = many * (passes.forward[k] + passes.backward[k])
        yield v.model.add(arrives + own + returns <= most)
        yield v.model.add(arrives + own + passes.sync[k] <= most)
        yield v.model.add(whole + (many - 1) * passes.forward[k] <= most)
        yield v.model.add(whole + (many - 1) * passes.backward[k] <= most)
        run: Expression = 0
        for last in range(k, -1, -1) if not v.longer else ():
            run += passes.forward[last] + passes.backward[last]
            pairs = warm_ups[k] - warm_ups[last] + 1
            rounds = max(0, (many - 1 - warm_ups[k]) // pairs + 1)
            left = many - 1 - rounds * pairs
            yield v.model.add(whole + rounds * run + left * passes.backward[k] <= most)
            if last:
                run += passes.activation[last - 1] + passes.gradient[last - 1]


def _one_f_one_b(v: Variables, passes: SlotPasses, most: int) -> Limits:
    """Post the order of the passes of each slot, what they wait for, and the end of the step."""
    training = v.tables.instance.training
    forward, backward = _ends(v, training.micro_batches, most)
    for k in range(v.slots):
        yield from _arrivals(v, passes, forward, backward, k)
        yield v.model.add(backward[k][-1] + passes.sync[k] <= most)
        if v.longer:
            yield from chosen_order(v, passes, (forward[k], backward[k]), k)
            continue
        order = [(forward[k][m], passes.forward[k]) for m in range(training.warm_up_in(k))]
        for m, end in enumerate(backward[k]):
            order.append((end, passes.backward[k]))
            order += [(one, passes.forward[k]) for one in forward[k][m + training.warm_up_in(k) :][:1]]
        yield v.model.add(order[0][0] >= order[0][1])
        for (before, _), (end, own) in itertools.pairwise(order):
            yield v.model.add(end >= before + own)


def _ends(v: Variables, many: int, most: int) -> tuple[Ends, Ends]:
    """Return when forward and backward passes end, by slot and micro-batch."""
    forward, backward = (
        [[v.model.new_int_var(0, most, f"{name}[{k},{m}]") for m in range(many)] for k in range(v.slots)]
        for name in ("end of forward", "end of backward")
    )
    return forward, backward


def _arrivals(v: Variables, passes: SlotPasses, forward: Ends, backward: Ends, k: int) -> Limits:
    """Post that passes of a slot wait for activations of the slot before it, and gradients of the one behind."""
    if k + 1 < v.slots:
        for end, before in zip(forward[k], forward[k + 1], strict=True):
            yield v.model.add(end >= before + passes.activation[k] + passes.forward[k])
    if k:
        for end, behind in zip(backward[k], backward[k - 1], strict=True):
            yield v.model.add(end >= behind + passes.gradient[k - 1] + passes.backward[k])


def _runs(v: Variables, passes: SlotPasses, most: int) -> Limits:
    """Post that no run of neighbouring slots takes more than the period for each; beside it synchronisation.

    Where that is overlapped, or charged with every micro-batch, this says all: then it counts once for the first
    stage of a run.
    """
    instance = v.tables.instance
    many = instance.training.micro_batches
    charged = instance.cost.synchronisation is Synchronisation.CHARGED
    for k in range(v.slots):
        alone = many * (passes.forward[k] + passes.backward[k]) if charged else 0
        yield v.model.add(alone + passes.sync[k] <= many * most)
        run = passes.sync[k] if charged and many == 1 else 0
        for last in range(k, -1, -1):
            run += passes.forward[last] + passes.backward[last]
            yield v.model.add(run <= (k - last + 1) * most)
            if last:
                run += passes.activation[last - 1] + passes.gradient[last - 1]


def _round(v: Variables, passes: SlotPasses, most: int) -> Limits:
    """Post a round of M pairs that can be repeated, where synchronisation is charged once in several of them."""
    instance = v.tables.instance
    many = instance.training.micro_batches
    if instance.cost.synchronisation is not Synchronisation.CHARGED or many == 1:
        return
    forward, backward = _ends(v, many, longest_run_ns(instance, many))
    for k in range(v.slots):
        for m in range(many):
            again = 0 if m else most * many
            free = backward[k][m - 1] + (0 if m else passes.sync[k]) - again
            yield v.model.add(forward[k][m] >= free + passes.forward[k])
            yield v.model.add(backward[k][m] >= forward[k][m] + passes.backward[k])
            if k + 1 < v.slots:
                arrived = forward[k + 1][m - 1] + passes.activation[k] - again
                yield v.model.add(forward[k][m] >= arrived + passes.forward[k])
        yield from (
            v.model.add(end >= behind + passes.gradient[k - 1] + passes.backward[k])
            for end, behind in zip(backward[k], backward[k - 1] if k else (), strict=False)
        )


EXECUTED = Family(18, "executed_time", post_executed_time)
