"""What PipePar published (CSCWD 2021): Table I, and Fig. 4 as measured from its bars (``published.yaml``)."""

from __future__ import annotations

from typing import NamedTuple

from pipecut_literature.studies.study import published

_TABLES = published(__file__)


class ModelRow(NamedTuple):
    """A row of Table I: parameters, and "Total Flops (G)" in hundredths of 10**9."""

    parameters: int
    flops_e7: int


class Bars(NamedTuple):
    """Bars of Fig. 4: how many times as fast as data parallelism, measured to about 0.03."""

    accpar: float
    pipepar: float


TABLE_I = {model: ModelRow(*row) for model, row in _TABLES["table_i"].items()}
BATCHES = tuple(map(int, _TABLES["figure_4"]))
FIGURE_4 = {
    (int(batch), model): Bars(*map(float, bars))
    for batch, models in _TABLES["figure_4"].items()
    for model, bars in models.items()
}
"""By minibatch and model."""
