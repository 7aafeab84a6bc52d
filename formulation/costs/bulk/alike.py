"""Things that are alike, priced once: deep networks repeat themselves."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterable, Sequence
from fractions import Fraction
from typing import TypeVar

from pipecut.formulation.problem.constraints import NAMED
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, SINGLE_FORMS, Layer

_Key = TypeVar("_Key", bound=Hashable)
SINGLES = len(SINGLE_FORMS)
"""How many forms are no pair; pairs come behind them."""
BY_EXPERTS = 6
"""The form in which an uneven load makes the part of the fullest device larger."""
BY_ROWS = (0, 3, 5)
"""The forms of which the output lies by rows."""
BY_ROWS_TAKEN = (0, 4, 5)
"""The forms in which the input of a product does."""


def fullest(kind: GroupKind, form: int, devices: int, rows: tuple[int, ...] = BY_ROWS, among: int = 1) -> Fraction:
    """Return the part of the fullest of so many devices that share a layer in this form; of rows whole samples.

    ``rows`` are the forms in which it lies by rows; ``among`` the devices that share samples along the other axis.
    """
    samples = -(-kind.shares.samples // among) if form in rows else 0
    return Fraction(-(-samples // devices), samples) if samples else Fraction(1, devices)


def number_of_forms(layers: Sequence[Layer]) -> int:
    """Return how many forms tables have a place for: the first three, and more where some layer may take more."""
    return max(len(FORMS), *(max(forms) + 1 for forms in {layer.allowed_forms for layer in layers}))


def runs_of(kind: GroupKind, named: bool) -> int:
    """Return how often the forward pass of a layer runs, of a change of layout that of its consumer.

    ``named``: it is one of those that a stage may compute again alone.
    """
    again = kind.mode.recompute
    return 1 + (named if again == NAMED else again)


def lies(instance: Instance, at: int) -> tuple[object, ...]:
    """Return what the forms depend on in which a layer may lie (``formulation.problem.groups.layouts_on``)."""
    source = instance.sources[at]
    return () if source is None else (source == at, *forms_of(instance.layers[source]))


def forms_of(layer: Layer) -> tuple[object, ...]:
    """Return what the forms depend on that a layer may take."""
    return layer.allowed_forms, layer.across


def places_by(keys: Iterable[_Key]) -> ItemsView[_Key, list[int]]:
    """Return each key, and where it stands."""
    places = dict[_Key, list[int]]()
    for at, key in enumerate(keys):
        places.setdefault(key, []).append(at)
    return places.items()


def sorted_out(keys: Iterable[Hashable]) -> tuple[list[int], list[int]]:
    """Return where each key stands first, and the number of each thing's key: it is like ``firsts[number]``."""
    known: dict[Hashable, int] = {}
    firsts: list[int] = []
    alike: list[int] = []
    for at, key in enumerate(keys):
        alike.append(known.setdefault(key, len(known)))
        if alike[-1] == len(firsts):
            firsts.append(at)
    return firsts, alike
