"""Which rules a solver does not see: dynamic programmes and heuristics that no constraint can be told to."""

from __future__ import annotations

from formulation.demand_rules import own_rule_name
from formulation.instance import Instance


def unseen(instance: Instance, *rules: str) -> tuple[str, ...]:
    """Return those of the named rules that limit this instance, and every demand of the user that does.

    For ``Outcome.blind_to``. ``memory``: memory is limited; ``devices``: a stage may stretch over a limited number
    of servers only. No dynamic programme here sees a demand (rules 8 to 13) or a user's own constraint. Rules that
    do not limit the instance are left out, so that breaking them all the same is a false claim.
    """
    limits = {"memory": instance.constraints.memory, "devices": instance.constraints.max_servers is not None}
    own = (own_rule_name(one.name) for one in instance.constraints.own)
    return (*(rule for rule in rules if limits[rule]), *instance.demands.named(), *own)
