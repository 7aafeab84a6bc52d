"""(12) ``no_cut``: no cut point before some layers."""

from __future__ import annotations

from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_no_cut(v: Variables) -> Posted:
    """(12) ``not cut[l]``."""
    for layer in v.tables.instance.demands.no_cut:
        yield (layer,), v.model.add_bool_or([~v.cut[layer]])


FAMILY = Family(12, "no_cut", post_no_cut)
