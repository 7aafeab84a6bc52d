"""(4) ``forms``: in which form each layer takes part, on the kind of its slot."""

from __future__ import annotations

from ortools.sat.python import cp_model

from pipecut.solvers.cpsat.variables import Family, Literal, Posted, Variables


def post_forms(v: Variables) -> Posted:
    """(4) Every layer runs on the kind of its slot, in exactly one of its forms.

    ``starts[k][l] and not starts[k-1][l] and kind[k][c] => layer_kind[l][c]``. Where stages choose blocks, a layer
    with ``again[l]`` runs on the kind that prices what is computed again; and never in a stage that does so whole.
    """
    model = v.model
    for layer in range(v.layers):
        yield (layer,), model.add_exactly_one(v.layer_kind[layer])
        for k in range(v.slots):
            here: list[cp_model.LiteralT] = [~v.starts[k][layer]]
            if k > 0:
                here.append(v.starts[k - 1][layer])
            again = v.again[layer : layer + 1]
            for c, literal in enumerate(v.layer_kind[layer]):
                yield (layer, k, c), model.add_bool_or([*here, ~v.kind[k][c], literal, *again])
                for one in again:
                    does = v.layer_kind[layer][v.recomputing[c]] if c in v.recomputing else ~one
                    yield (layer, k, c, 1), model.add_bool_or([*here, ~v.kind[k][c], ~one, does])
        if v.state[layer]:
            for c, literal in enumerate(v.layer_kind[layer]):
                own: list[Literal] = [state for (kind, _), state in v.state[layer].items() if kind == c]
                yield (layer, c), model.add(literal == sum(own))


FAMILY = Family(4, "forms", post_forms)
