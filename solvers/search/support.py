"""What a method makes of an instance before it starts: the same question to every solver, cheap to ask.

``accepts(instance)`` of every solver and planner answers with a :class:`Support`. It looks at what the instance
asks for and counts device groups; it builds no table and no model, and imports no OR-Tools.

Which rules a solver does not see: dynamic programmes and heuristics that no constraint can be told to.

What a published planner makes of an instance: it takes everything, proves nothing and sees few rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import wraps

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.demands import with_memory
from pipecut.formulation.problem.groups import line
from pipecut.formulation.problem.instance import Instance, with_servers


def unseen(instance: Instance, *rules: str, seen: Collection[str] = ()) -> tuple[str, ...]:
    """Return those of the named rules that limit this instance, and every constraint that no programme sees.

    For ``Outcome.blind_to``. ``memory``: memory is limited; ``devices``: a stage may stretch over a limited number
    of servers only, or share its work in certain ways only; ``line``: devices stand in line. Rules that do not
    limit the instance are left out, so that breaking them all the same is a false claim; so are those that the
    solver has ``seen`` in another way, such as by starting stages at places to cut alone.
    """
    limiting = [one for one in instance.demands.values if one.limits]
    asked = {one.rule for one in limiting if one.asked}
    never = (rule for one in limiting if not one.asked for rule in one.rules)
    return (*(rule for rule in rules if rule in asked), *(rule for rule in never if rule not in seen))


def capped(instance: Instance) -> Instance:
    """Return an instance of the same plans that offers what is left by limits on peak memory and on stages.

    Devices have no more memory than they may use, and ``stages`` says how many there may be, so whoever sees these
    sees the limits. Cost: linear in the layers.
    """
    asked, most = instance.constraints, {one.goal: one.at_most for one in instance.constraints.at_most}
    size, number = most.get(Goal.MEMORY, 0), most.get(Goal.STAGES, 0)
    if size:
        rooms = [min(size, row.device_class.memory_bytes) if asked.memory else size for row in instance.servers]
        instance = with_servers(instance, with_memory(instance.servers, rooms))
        asked = replace(asked, memory=True)
    fits = number >= (asked.stages_at_least or 1)
    if fits:
        asked = replace(asked, stages_at_most=min(number, asked.stages_at_most or number))
    left = tuple(one for one in asked.at_most if not {Goal.MEMORY: size, Goal.STAGES: fits}.get(one.goal))
    return instance if left == asked.at_most else replace(instance, constraints=replace(asked, at_most=left))


def on_the_line(instance: Instance) -> tuple[GoalLimit, ...]:
    """Return the limits that say where the line of devices ends (:func:`devices_of`)."""
    return tuple(one for one in instance.constraints.at_most if one.goal in (Goal.DEVICES, Goal.COST))


def devices_of(instance: Instance) -> int:
    """Return how many devices of the line, from its head on, stages may take by their number and their price."""
    limits = {one.goal: one.at_most for one in on_the_line(instance)}
    number = min(limits.get(Goal.DEVICES, instance.devices), instance.devices)
    held = line(instance)[:number] if Goal.COST in limits else ()
    paid = itertools.accumulate(instance.servers[at].device_class.price_per_hour for at in held)
    return number - sum(one > limits[Goal.COST] for one in paid)


@dataclass(frozen=True, slots=True)
class Support:
    """What a method can say about an instance.

    ``proves``: a search that ends proves the optimum of the first goal, or that there is no plan, for everything
    that the instance asks. ``unseen`` names the rules that limit the instance and that the method does not see:
    its plan may break them, and its bound is that of a relaxation. ``reason`` says in words why the method cannot
    take the instance at all (empty: it can), ``too_large`` that the reason is size alone. ``bytes_needed``
    estimates its tables or its model (None: nobody counted).
    """

    proves: bool = False
    unseen: tuple[str, ...] = ()
    reason: str = ""
    too_large: bool = False
    bytes_needed: int | None = None

    @property
    def takes(self) -> bool:
        """Tell whether the method can be asked."""
        return not self.reason

    def refuse(self) -> None:
        """Raise the reason why the method cannot take the instance, if there is one.

        That is TooLargeError where the reason is size alone, else ValueError.
        """
        if self.reason:
            raise (TooLargeError if self.too_large else ValueError)(self.reason)


def of_single_stages(name: str, instance: Instance) -> Support:
    """Answer for a method whose groups hold one stage each: it takes no instance in which they hold more."""
    schedule, chunks = instance.training.schedule, instance.training.chunks
    if chunks == 1:
        return Support()
    under = f" under {schedule}" if schedule.in_a_v else ""
    return Support(reason=f"{name} gives each stage devices of its own, training.chunks is {chunks}{under}")


def of_memory_by_slot(name: str, instance: Instance) -> Support:
    """Answer for a method that knows of a stage's memory how many stages are behind it.

    With backward passes in halves what a stage keeps of several micro-batches follows from the number of all
    stages: it must be said. And what one block computes again is there until the second half, so blocks do not
    make way for each other.
    """
    training, demands = instance.training, instance.demands
    kept = Goal.MEMORY in (*instance.goals, *(limit.goal for limit in instance.constraints.at_most))
    if not training.schedule.in_halves or not (instance.constraints.memory or kept):
        return Support()
    said = demands.stages_at_least is not None and demands.stages_at_least == demands.stages_at_most
    if training.micro_batches > 1 and not said:
        return Support(
            reason=f"{name} needs the number of stages to be said under {training.schedule}:"
            " constraints.stages, at_least and at_most alike"
        )
    if instance.constraints.recompute.by_blocks:
        return Support(
            reason=f"{name} lets one block that is computed again make way for the next, and under"
            f" {training.schedule} all wait for the gradients of weights: write constraints.recompute: allowed"
        )
    return Support()


def of_whole_stages(name: str, instance: Instance) -> Support:
    """Answer for a method whose stages compute everything again or nothing: it takes no choice of blocks."""
    if not instance.constraints.recompute.by_blocks:
        return Support()
    return Support(
        reason=f"{name} computes whole stages again, or nothing, and constraints.recompute is 'blocks': write"
        " 'allowed', or ask a method that knows single blocks"
    )


Accepts = Callable[[Instance], Support]


def takes_all(_: Instance) -> Support:
    """Answer for a method that takes everything, sees every rule and proves nothing."""
    return Support()


def sized(accepts: Accepts) -> Accepts:
    """Turn what ``accepts`` raises because an instance is too large into an answer."""

    @wraps(accepts)
    def answer(instance: Instance) -> Support:
        try:
            return accepts(instance)
        except TooLargeError as error:
            return Support(reason=str(error), too_large=True)

    return answer


def blind_to(*rules: str) -> Accepts:
    """Return the answer of a method that takes everything, proves nothing and does not see these rules.

    Rules are named as in :func:`solvers.search.support.unseen`.
    """
    return lambda instance: Support(unseen=unseen(instance, *rules))
