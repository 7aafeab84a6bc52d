"""What an instance has a use for beyond the plans of a paper: what could make any plan of it better at all.

Sound where it says no: memory that no plan fills needs nothing computed again, a model without attention has no
sequence to divide. Where it says yes, a search may still find no use.
"""

from __future__ import annotations

from dataclasses import replace

from pipecut.formulation.costs.bulk.lent import Reading
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.problem.constraints import Goal, Recompute, Sharded
from pipecut.formulation.problem.cuts import AtomGraph, CutSpace
from pipecut.formulation.problem.instance import Instance, most_bytes
from pipecut.formulation.problem.layers import Axis, axes_of
from pipecut.formulation.problem.modes import ONE_COPY
from pipecut.formulation.problem.options import Compute, Synchronisation
from pipecut.formulation.schedules.keeps import Keeps

DEALT = (2, 3, 4, 6, 8)
"""How many stages groups of plain grids may hold."""
GRIDS_FROM = 300
"""Layers times devices from which plain grids are looked for: a search of less is over before they are found."""
SPARE = 4
"""Memory does not bind where devices have so many times what any plan fills: questions of what if go further."""
TIGHT = 4
"""Memory is tight where all devices have less than so many times what the model takes on one."""


def memory_binds(instance: Instance) -> bool:
    """Tell whether some plan may be kept out, or judged, by its memory, in any of the choices of the training."""
    asked, training = instance.constraints, instance.training
    judged = Goal.MEMORY in (*instance.goals, *(limit.goal for limit in asked.at_most))
    if judged or not asked.memory:
        return judged
    never = replace(asked, recompute=Recompute.NEVER, recompute_layers=(), sharded=(Sharded.NONE,))
    plain = replace(instance, constraints=never)
    fewest = min(training.micro_batch_choices or (training.micro_batches,))
    orders = (one.closed() for one in training.choices if one.micro_batches == fewest)
    most = max(most_bytes(replace(plain, training=one)) for one in orders)
    return SPARE * most > min(one.memory_bytes for one in instance.device_classes)


def memory_is_tight(instance: Instance) -> bool:
    """Tell whether all devices have little more memory than the model takes on one, in the least micro-batches."""
    training = instance.training
    most = max(training.micro_batch_choices or (training.micro_batches,))
    least = replace(instance, training=replace(training.closed(), micro_batches=most))
    needed = MemoryParts.undivided(least).times(Keeps.of(least.training, 0, 1), ONE_COPY).total
    return sum(one.devices * one.device_class.memory_bytes for one in instance.servers) < TIGHT * needed


def reads_neighbours(instance: Instance) -> bool:
    """Tell whether each tensor of a block, that others read, is read by the next block alone."""
    rows = [row for row in Reading.all(instance, CutSpace.of(instance)) if row.own != row.block]
    return all(row.block == row.own + 1 for row in rows) and len({row.producer for row in rows}) == len(rows)


def has_grids(instance: Instance) -> bool:
    """Tell whether a model is so large that plain grids are looked for."""
    return len(instance.layers) * instance.devices >= GRIDS_FROM


def dealt_for_use(instance: Instance) -> tuple[int, ...]:
    """Return how many stages groups of plain grids hold that are compared with all plans of one.

    Executed steps alone, of models that run in one order, tell one from the other. Small models have none.
    """
    judged = (*instance.goals, *(limit.goal for limit in instance.constraints.at_most))
    told_apart = instance.goals == (Goal.STEP_TIME,) and all(one.executed or not one.timed for one in judged)
    return DEALT if has_grids(instance) and told_apart and AtomGraph.of(instance).in_one_order_only else ()


def axes_of_use(instance: Instance) -> frozenset[Axis]:
    """Return along what some layer may be divided: parts of a sequence only where attention mixes them."""
    found = frozenset(axis for layer in instance.model.layers for axis in axes_of(layer))
    return found if Axis.CONTEXT in found else found - {Axis.SEQUENCE}


def divided_for_use(instance: Instance) -> tuple[Sharded, ...]:
    """Return what devices may divide: without a flush nothing; for speed alone the state of the optimiser.

    Each then updates its part, and gathers weights where it else had sums of gradients, which may have more bytes.
    """
    elements, cost = instance.training.elements, instance.cost
    if not instance.training.schedule.flushes or instance.devices == 1:
        return (Sharded.NONE,)
    if memory_binds(instance) or cost.synchronisation is Synchronisation.OVERLAPPED:
        return tuple(Sharded)
    faster = cost.compute is Compute.ROOFLINE or elements.weights < elements.gradients
    return (Sharded.NONE, Sharded.OPTIMIZER)[: 1 + faster]
