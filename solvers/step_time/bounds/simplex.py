"""Small linear programmes, thousands: what is worth most within some limits, and what each limit is worth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
SMALL = 1e-10


def most_worth(worth: Numbers, needs: Numbers, limits: Numbers) -> tuple[Numbers, Numbers]:
    """Return amounts x >= 0 with needs x <= limits that are worth most, and the prices of the limits.

    By the simplex method on a table (Dantzig 1951), from nothing on; ``limits`` are 0 or more. It may stop a
    little early, so whoever relies on the answer checks it. Cost: some tens of steps through the table.
    """
    rows, columns = needs.shape
    table = np.zeros((rows + 1, columns + rows + 1))
    table[:rows, :columns], table[:rows, columns:-1] = needs, np.eye(rows)
    table[:rows, -1], table[rows, :columns] = limits, -worth
    basis = np.arange(columns, columns + rows)
    enough = SMALL * max(1.0, float(np.abs(worth).max()))
    for _ in range(10 * (rows + columns)):
        column = int(table[rows, :-1].argmin())
        entering = table[:rows, column]
        if table[rows, column] >= -enough or not (entering > SMALL).any():
            break
        row = int(np.where(entering > SMALL, table[:rows, -1] / np.maximum(entering, SMALL), np.inf).argmin())
        table[row] /= table[row, column]
        others = table[:, column].copy()
        others[row] = 0
        table -= np.outer(others, table[row])
        basis[row] = column
    found = np.zeros(columns + rows)
    found[basis] = np.maximum(table[:rows, -1], 0)
    return found[:columns], np.maximum(table[rows, columns:-1], 0)
