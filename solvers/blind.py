"""Which rules a solver does not see: dynamic programmes and heuristics that no constraint can be told to."""

from __future__ import annotations

from formulation.instance import Instance


def unseen(instance: Instance, *rules: str) -> tuple[str, ...]:
    """Return those of the named rules that limit this instance, for ``Outcome.blind_to``.

    ``memory``: memory is limited; ``devices``: a stage may stretch over a limited number of servers only. Rules
    that do not limit the instance are left out, so that breaking them all the same is a false claim.
    """
    limits = {"memory": instance.constraints.memory, "devices": instance.constraints.max_servers is not None}
    return tuple(rule for rule in rules if limits[rule])
