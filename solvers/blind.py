"""Which rules a solver does not see: dynamic programmes and heuristics that no constraint can be told to."""

from __future__ import annotations

from formulation.constraints.demand_rules import own_rule_name
from formulation.problem.instance import Instance
from formulation.problem.options import Placement, Recompute


def unseen(instance: Instance, *rules: str) -> tuple[str, ...]:
    """Return those of the named rules that limit this instance, and every demand of the user that does.

    For ``Outcome.blind_to``. ``memory``: memory is limited; ``devices``: a stage may stretch over a limited number
    of servers only, or share its work in certain ways only; ``line``: devices stand in line. No dynamic programme
    here sees a demand (rules 8 to 13), a user's own constraint or a limit on goals (15). Rules that do not limit
    the instance are left out, so that breaking them all the same is a false claim.
    """
    constraints = instance.constraints
    devices = (
        constraints.max_servers is not None
        or bool(constraints.tensor_parallel_degrees)
        or constraints.recompute is Recompute.ALWAYS
    )
    limits = {
        "memory": constraints.memory,
        "devices": devices,
        "line": constraints.placement is Placement.LINE,
    }
    own = (own_rule_name(one.name) for one in instance.constraints.own)
    judged = ("at_most",) if instance.constraints.at_most else ()
    return (*(rule for rule in rules if limits[rule]), *instance.demands.named(), *own, *judged)
