"""What a training leaves open, as far as it can be counted with: choices whose sums leave 64 bits are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from pipecut.formulation.problem.instance import Instance, MagnitudeError
from pipecut.formulation.problem.training import Training


def with_counted_choices(make: Callable[[Training], Instance], training: Training) -> Instance:
    """Return the instance of a training, which chooses among the numbers of micro-batches that can be counted.

    ``make`` returns that of any training. A note of the model names the numbers that are left out: those of which
    some schedule or chunks cannot be counted. Sizes rise with a micro-batch or with the number of them, so nothing
    is looked at beyond the smallest and the largest number where these can be counted. Raises MagnitudeError where
    none can be, and what ``make`` raises. Cost: an instance for each choice that is looked at.
    """
    numbers = training.micro_batch_choices
    if len(numbers) < 2:
        return make(training)
    refused = _refused(make, training, {min(numbers), max(numbers)})
    if not refused:
        return make(training)
    refused = _refused(make, training, set(numbers))
    kept = tuple(one for one in numbers if one not in refused)
    least, said = min(refused.items())
    if not kept:
        raise MagnitudeError(said)
    first = training.micro_batches if training.micro_batches in kept else kept[0]
    made = make(replace(training, micro_batches=first, micro_batch_choices=kept if len(kept) > 1 else ()))
    left_out = ", ".join(map(str, sorted(refused)))
    note = f"training.micro_batches: {left_out} left out, whose sums cannot be counted; of {least}: {said}"
    return replace(made, model=replace(made.model, notes=(*made.model.notes, note)))


def _refused(make: Callable[[Training], Instance], training: Training, some: Iterable[int]) -> dict[int, str]:
    """Return why numbers of micro-batches cannot be counted with."""
    found: dict[int, str] = {}
    for one in training.choices:
        if one.micro_batches in some and one.micro_batches not in found:
            try:
                make(one.closed())
            except MagnitudeError as error:
                found[one.micro_batches] = str(error)
            except ValueError:  # what is wrong with a choice in itself is for the instance of all to say
                continue
    return found
