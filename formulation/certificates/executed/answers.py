"""How the last stages of a plan answer micro-batches that come to them at any times.

Every pass begins when the latest of what it waits for is there, so all ends are largest sums (Baccelli et al.,
Synchronization and Linearity, 1992). Where micro-batch m comes to a suffix at x[m],

    its first stage is done with the backward pass of micro-batch k at   max over m of x[m] + answer[m, k],
    the last of its synchronisations at                                 max over m of x[m] + answer[m, M],

and stages before it see nothing else of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.certificates.executed.paths import order_of

NEVER = -(1 << 59)
"""No pass waits for that."""
Answers = NDArray[np.int64]
"""One row of M x (M + 1) numbers for each suffix."""


def answers_of(
    passes: Answers, sent: Answers, behind: Answers | None, warm_up: int, micro_batches: int
) -> Answers:
    """Return the answers of suffixes that begin with stages of these ``passes``: rows of F, B, synchronisation.

    ``sent``: activation and gradient over the boundary behind each; ``behind``: the answers of what is there, None
    behind last stages. Cost: for each suffix and pass of its first stage, up to the square of the micro-batches.
    """
    many, count = len(passes), micro_batches
    free: Answers = np.full((many, count), NEVER, dtype=np.int64)
    gone: Answers = np.full((many, count, count), NEVER, dtype=np.int64)  # arrival m, micro-batch sent on
    found: Answers = np.full((many, count, count + 1), NEVER, dtype=np.int64)
    forward, backward, synchronisation = (passes[:, at, None] for at in range(3))
    activation, gradient = sent[:, :1], sent[:, 1:]
    for one in order_of(0, warm_up, count):
        at = one.micro_batch
        if one.way == "F":
            free[:, at] = np.maximum(free[:, at], 0)
            free = free + forward
            gone[:, :, at] = free + activation
        else:
            if behind is not None:
                free = np.maximum(free, _through(gone, behind[:, :, at]) + gradient)
            free = free + backward
            found[:, :, at] = free
    found[:, :, count] = free + synchronisation
    if behind is not None:
        found[:, :, count] = np.maximum(found[:, :, count], _through(gone, behind[:, :, count]))
    return np.where(found < NEVER // 2, NEVER, found)


def _through(gone: Answers, answer: Answers) -> Answers:
    """Return when something comes back that waits for micro-batches sent on, by arrival."""
    return np.asarray((gone + answer[:, None, :]).max(axis=2))
