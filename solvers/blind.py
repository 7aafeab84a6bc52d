"""Which rules a solver does not see: dynamic programmes and heuristics that no constraint can be told to."""

from __future__ import annotations

from collections.abc import Collection

from formulation.problem.instance import Instance


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
