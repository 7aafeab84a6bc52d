"""What layers hold in pairs of forms on grids of devices: the part in one form, of the part in the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bulk.alike import SINGLES
from pipecut.formulation.problem.layers import PAIRS, Split

if TYPE_CHECKING:
    from pipecut.formulation.costs.tables import Tables
    from pipecut.formulation.problem.groups import GroupKind

Times = NDArray[np.int64]
Pair = tuple[int, int]


def fill_pairs(
    tables: Tables,
    found: Times,
    part: Callable[[GroupKind, Split, Pair, Pair], Fraction],
    make: Callable[[list[Fraction]], Times],
) -> None:
    """Write what layers have in pairs of forms into ``found[kind, layer, form]``, on the kinds that have a grid.

    ``part`` is that of a device in both forms of a pair, on so many devices each; ``make`` makes the cells of a
    form from the parts of all kinds. Cost: one ``make`` for each pair and each of the three kinds of layers.
    """
    kinds = [at for at, kind in enumerate(tables.kinds) if kind.axes]
    for split, form in itertools.product(Split, range(SINGLES, found.shape[2] if kinds else 0)):
        layers = [at for at, layer in enumerate(tables.instance.layers) if layer.split is split]
        shares = [part(kind, split, PAIRS[form], kind.grid) for kind in tables.kinds]
        found[*np.ix_(kinds, layers), form] = make(shares)[np.ix_(kinds, layers)]
