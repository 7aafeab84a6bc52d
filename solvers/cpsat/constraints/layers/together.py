"""(10) ``together``: no cut point between the first and the last of some layers."""

from __future__ import annotations

from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_together(v: Variables) -> Posted:
    """(10) No cut after the first of the layers up to the last."""
    for at, layers in enumerate(v.tables.instance.demands.together):
        for i in range(layers[0] + 1, layers[-1] + 1):
            yield (at, i), v.model.add_bool_or([~v.cut[i]])


FAMILY = Family(10, "together", post_together)
