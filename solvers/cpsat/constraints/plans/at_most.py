"""What a plan is judged by, limited: the first goal by the threshold, others by the user's ``at_most``.

(15) ``at_most``: price, devices and stages are sums over the groups of the slots. Families 5 to 7 keep stage times
     and memory within their limits; the iteration time is theirs and has its place beside the clocks
     (``solvers.cpsat.constraints.clocks``).
"""

from __future__ import annotations

from pipecut.formulation.problem.constraints import Goal
from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_at_most(v: Variables) -> Posted:
    """(15) ``sum_kG price_G r_kG``, ``sum_kG n_G r_kG`` and ``sum_kG r_kG`` stay within their limits."""
    servers, groups = v.tables.instance.servers, v.tables.groups
    prices = [
        sum(count * servers[server].device_class.price_per_hour for server, count in group.counts)
        for group in groups
    ]
    weights = {
        Goal.COST: prices,
        Goal.DEVICES: [group.devices for group in groups],
        Goal.STAGES: [1] * len(groups),
    }
    for at, (goal, weight) in enumerate(weights.items()):
        if goal in v.thresholds:
            total = sum(weight[g] * literal for row in v.runs for g, literal in enumerate(row))
            yield (at,), v.model.add(total <= v.thresholds[goal])


FAMILY = Family(15, "at_most", post_at_most)
