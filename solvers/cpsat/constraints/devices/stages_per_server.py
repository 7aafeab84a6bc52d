"""(16) ``stages_per_server``: how many slots touch a server."""

from __future__ import annotations

from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_stages_per_server(v: Variables) -> Posted:
    """(16) ``sum_k touches[k][s] <= K`` for every server s; a slot touches the servers of its group (2)."""
    most = v.tables.instance.constraints.stages_per_server
    if most is not None:
        for s in range(len(v.tables.instance.servers)):
            yield (s,), v.model.add(sum(row[s] for row in v.touches) <= most)


FAMILY = Family(16, "stages_per_server", post_stages_per_server)
