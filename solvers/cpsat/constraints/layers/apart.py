"""(11) ``apart``: a cut point between layers of different sets."""

from __future__ import annotations

import itertools

from pipecut.solvers.cpsat.variables import Family, Posted, Variables


def post_apart(v: Variables) -> Posted:
    """(11) A cut between every two layers of different sets that have no third one between them."""
    for at, sets in enumerate(v.tables.instance.demands.apart):
        owners = sorted((layer, owner) for owner, layers in enumerate(sets) for layer in layers)
        for (one, owner), (other, next_owner) in itertools.pairwise(owners):
            if owner != next_owner:
                yield (at, one), v.model.add_bool_or(v.cut[one + 1 : other + 1])


FAMILY = Family(11, "apart", post_apart)
