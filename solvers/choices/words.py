"""Choices of a training in words: what was left open of each."""

from __future__ import annotations

from formulation.costs.amounts import plural
from formulation.problem.instance import Instance
from formulation.problem.training import Training


def named(instance: Instance) -> str:
    """Say what was left open: the order of passes, the number of micro-batches, or that of stages alone."""
    training = instance.training
    if not training.left_open:
        return f"{instance.demands.stages_at_most} stage{'s' * (instance.demands.stages_at_most != 1)}"
    number = f"{training.micro_batches} micro-{plural(training.micro_batches, 'batch')}"
    if not orders_open(training):
        return number
    return f"{order(training)}, {number}" if training.micro_batch_choices else order(training)


def choice_in_words(instance: Instance) -> str:
    """Say all that a training chooses, of one in which it is chosen: the number of micro-batches and the order."""
    number = f"{instance.training.micro_batches} micro-{plural(instance.training.micro_batches, 'batch')}"
    return f"{number} under {order(instance.training)}"


def listed(choices: list[Instance]) -> str:
    """List choices: numbers of micro-batches, or of stages, orders of passes, or each order with its numbers."""
    numbers: dict[str, set[int]] = {}
    for one in choices:
        written = order(one.training) if orders_open(one.training) else ""
        number = one.training.micro_batches if one.training.left_open else one.demands.stages_at_most or 0
        numbers.setdefault(written, set()).add(number)
    several = any(one.training.micro_batch_choices for one in choices)
    rows = [(one, ", ".join(map(str, sorted(found)))) for one, found in numbers.items()]
    return ", ".join(f"{one} ({found})" if one and several else one or found for one, found in rows)


def order(training: Training) -> str:
    """Say in which order passes run."""
    written = training.chunks > 1 and not training.schedule.in_a_v
    return training.schedule + (f" in {training.chunks} chunks" if written else "")


def orders_open(training: Training) -> bool:
    """Tell whether schedule or chunks are chosen."""
    return bool(training.schedule_choices or training.chunk_choices)
