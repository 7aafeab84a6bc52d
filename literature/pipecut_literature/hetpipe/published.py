"""What HetPipe published (Park et al., USENIX ATC 2020), images per second with minibatches of 32.

A virtual worker is written by its devices: V TITAN V, R TITAN RTX, G RTX 2060, Q Quadro P4000. The numbers lie in
``published.yaml``, which says of each from which table or figure it is, and what it means.
"""

from __future__ import annotations

from typing import NamedTuple

from pipecut_literature.studies.study import published

_TABLES = published(__file__)
MODELS: dict[str, str] = _TABLES["models"]
BATCH: int = _TABLES["batch"]
ONE_V: dict[str, int] = _TABLES["one_v"]
PIPEDREAM_RESNET152: int = _TABLES["pipedream_resnet152"]


class PublishedRun(NamedTuple):
    """A run: virtual workers, minibatches in flight in each (N_m), whether parameters lie locally, images/s."""

    label: str
    workers: tuple[str, ...]
    in_flight: int
    local: bool
    images_per_second: int


def _rates(table: str) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the images per second of a table, by model and devices."""
    return {model: tuple(row.items()) for model, row in _TABLES[table].items()}


def _runs(table: str) -> dict[str, tuple[PublishedRun, ...]]:
    return {
        model: tuple(PublishedRun(label, tuple(workers), *rest) for label, workers, *rest in rows)
        for model, rows in _TABLES[table].items()
    }


HOROVOD, FIGURE_4 = _rates("horovod"), _rates("figure_4")
TABLE_4, FIGURE_5 = _runs("table_4"), _runs("figure_5")
