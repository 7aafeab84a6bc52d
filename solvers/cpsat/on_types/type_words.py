"""What the model over types is, in words and numbers: for whoever wants to see what is handed to CP-SAT.

Built as the search builds it (``solvers.cpsat.on_types.cpsat_types``): for the number of stages of the best first
plan that is known, with that plan as its limit. Nothing is solved.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.outcome import Limits, begin
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.cpsat.on_types.accepts_types import NAME, accepts
from pipecut.solvers.cpsat.on_types.counts import CountModel
from pipecut.solvers.cpsat.on_types.cpsat_types import most_of, proposed, space_of
from pipecut.solvers.cpsat.on_types.type_model import FAMILIES, TypeModel, TypeQuestion
from pipecut.solvers.cpsat.words import ModelPart, bounds_in_words, constraint_section, variable_section
from pipecut.solvers.search.incumbent import Incumbent

VARIABLES = {
    "pick": "[s,k] stage s, counted from the last, is of type k",
    "first": "[s] the first atom of stage s",
    "x": "[s] where on the line the devices of stage s begin",
    "rest": "[s,r] that place leaves r when divided by the period of the line",
    "times": "[s] how often the period fits into it",
    "crossed": "[s] what the boundary in front of stage s takes, in ns",
    "slowest": "[t] some stage or boundary takes t ns or more: the rungs of T",
    "time": "[s] a pair of passes of stage s, at least",
    "whole": "[s] the same with its part of what the stage does once a step",
    "step": "the step as executed: no path through it takes longer",
}
"""Of each family of variables what it says."""
EXACT = "devices, atoms and micro-batches; what tensors take over each link and place to cut; times of {} types"
LOWER = (
    "times of {} types, as memory is short or a stage may stand across servers: the answer's are settled, that is"
    " made exact, and the model is asked again until none of them changes"
)
COUNTED = (
    "how many stages are of which type, wherever they stand: {:,} numbers in {:,} rows. Where even these take no"
    " less than the best plan, plans of so many stages are done with"
)
NO_TYPES = "no stage of so many takes less than the best plan: there is nothing to ask"


def model_words(instance: Instance, limits: Limits | None = None) -> list[ModelPart]:
    """Say what the model over types is that is asked about the first goal of an instance.

    Raises ValueError where ``accepts`` has a reason, TooLargeError and StoppedError as the search does. Cost: the
    tables of ``reduced_dp``, and a first plan.
    """
    limits = begin(limits)
    accepts(instance).refuse()
    space = space_of(instance, limits)
    known = Incumbent(NAME, instance, limits, most_of(instance) + 1, lower_bound(instance))
    known.offer(proposed(space.stages))
    (fewest, most), limited = space.stages.numbers, instance.constraints.at_most
    stages = len(known.plan) if known.plan is not None else fewest
    ask = TypeQuestion.of(space, stages, known.upper - 1)
    many = instance.training.micro_batches
    extent = f"{space.stages.atoms} atoms, {instance.devices} devices, {many} micro-batches"
    begun = ModelPart(
        "question",
        (
            ("goal", f"{instance.goals[0]}, the least of {extent}"),
            ("stages", f"from {fewest} to {most}, each a model; here {stages}"),
            ("bounds", bounds_in_words(known)),
            *(("limit", f"{one.goal} at most {goal_amount(one.goal, one.at_most)}") for one in limited),
        ),
    )
    counts, model = CountModel.of(ask), TypeModel.of(ask)
    if model is None:
        return [begun, ModelPart("model", (("none", NO_TYPES),))]
    return [begun, *model_sections(model), *_relaxed(counts), _settling(model)]


def model_sections(model: TypeModel) -> list[ModelPart]:
    """Say of what types, variables and constraints a model is made."""
    types = [f"{slot}: {len(row)}" for slot, row in enumerate(model.types)]
    said = {name: " ".join((FAMILIES[name].__doc__ or "").split()) for name in model.rows}
    return [
        ModelPart(f"{sum(map(len, model.types)):,} types of stages", (("by stage", ", ".join(types)),)),
        variable_section(model.model, VARIABLES),
        constraint_section(model.rows, said),
    ]


def _relaxed(counts: CountModel | None) -> Iterable[ModelPart]:
    if counts is not None:
        rows = len(counts.model.proto.constraints)
        yield ModelPart("asked before it", (("counts", COUNTED.format(len(counts.pairs), rows)),))


def _settling(model: TypeModel) -> ModelPart:
    """Say which terms are exact, and which are lower bounds at first."""
    space = model.ask.space
    exact = sum(space.is_exact(slot, one) for slot, row in enumerate(model.types) for one in row)
    lower = sum(map(len, model.types)) - exact
    rows = [("exact", EXACT.format(f"{exact:,}"))]
    return ModelPart("terms", (*rows, *([("lower", LOWER.format(f"{lower:,}"))] if lower else [])))
