"""Places to cut, and what lies between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.plan import Span
from tests.examples import chain, instance_of, matrix, mesh


def test_atoms_lie_between_neighbouring_places() -> None:
    space = CutSpace((0, 3, 4, 9))
    assert space.stops == 3 and list(space.atoms()) == [(0, 3), (3, 4), (4, 9)]
    assert space.layers(Span(1, 3)) == Span(3, 9)


@pytest.mark.parametrize("places", [(), (0,), (1, 2), (0, 2, 2), (0, 3, 1)])
def test_places_that_do_not_rise_from_0_are_refused(places: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected 0 and then rising numbers of layers"):
        CutSpace(places)


def test_what_is_closed_or_kept_together_is_no_place() -> None:
    instance = instance_of(chain([matrix(name) for name in "abcdef"], [0] * 5), mesh(1))
    assert CutSpace.of(instance) == CutSpace(tuple(range(7)))
    closed = replace(instance, constraints=Constraints(no_cut=("b",), together=(("c", "e"),)))
    assert CutSpace.of(closed) == CutSpace((0, 2, 5, 6))
