"""Least times of all stages by atoms, against the tables of the programmes, which share no code with them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation import limits as size
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import layer_graph
from pipecut.solvers.atoms import times
from pipecut.solvers.atoms.programs import programs
from pipecut.solvers.atoms.times import least_times
from pipecut.solvers.reference.algorithm_1 import StageTimes
from tests.examples import PLAIN, chain, instance_of, join, matrix, mesh
from tests.laws import so_many
from tests.problems import problems

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=SLOW)
@given(problems(), st.data())
def test_times_are_those_of_the_dynamic_programme(instance: Instance, data: st.DataObject) -> None:
    try:
        tables = all_tables(instance)
    except ValueError:
        assume(False)
        raise
    total = len(instance.layers)
    inner = data.draw(st.sets(st.integers(1, total - 1))) if total > 1 else set()
    space = CutSpace((0, *sorted(inner), total))
    found = least_times(tables, space, programs(tables, None, space))
    assert np.array_equal(found, StageTimes.of(tables, space).time)


def test_a_stage_that_ends_before_it_starts_is_forbidden() -> None:
    instance = instance_of(chain([matrix("a", 1), matrix("b", 2)], [4]), mesh(1), PLAIN)
    tables, space = all_tables(instance), CutSpace.everywhere(instance)
    found = least_times(tables, space, programs(tables, None, space))
    assert found.tolist() == [[[FORBIDDEN, 3, 9], [FORBIDDEN, FORBIDDEN, 6]]]


def test_where_too_many_layers_are_live_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*(matrix(name, 1) for name in "abc"), join("all")]
    graph = layer_graph("fan", rows, [(name, "all", 1) for name in "abc"])
    instance = instance_of(graph, mesh(2), PLAIN)
    tables, space = all_tables(instance), CutSpace.everywhere(instance)
    known = programs(tables, None, space)
    assert known.widest == 3
    monkeypatch.setattr(times, "MOST_LIVE", 2)
    with pytest.raises(TooLargeError, match="forms of 3 layers matter at once, at most 2 can be tried"):
        least_times(tables, space, known)


def test_tables_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = instance_of(chain([matrix("a", 1), matrix("b", 2)], [4]), mesh(1), PLAIN)
    tables, space = all_tables(instance), CutSpace.everywhere(instance)
    monkeypatch.setattr(size, "MOST_BYTES", 10)
    with pytest.raises(TooLargeError, match=r"times of all stages \(1 kinds of device groups, 3 places to cut\)"):
        least_times(tables, space, programs(tables, None, space))
