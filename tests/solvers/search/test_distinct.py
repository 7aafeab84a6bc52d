"""Distinct values in parts are those of numpy at once."""

from __future__ import annotations

import numpy as np
import pytest

from pipecut.formulation.limits import Deadline, StoppedError
from pipecut.solvers.search import stoppable as module
from pipecut.solvers.search.stoppable import distinct


@pytest.mark.parametrize("spread", [1, 3, 50, 10**6, 10**15])
@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 1000, 5000])
def test_in_parts_as_at_once(size: int, spread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 10)
    values = np.random.default_rng(size + spread).integers(0, spread, size)
    assert distinct(values).tolist() == np.unique(values).tolist()


def test_it_stops_between_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 10)
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(1)
        return len(asked) > 3

    with pytest.raises(StoppedError):
        distinct(np.arange(1000), Deadline(stopped=stopped))
