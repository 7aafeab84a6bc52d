"""Stages without a table of all their times: the same ends, and the same optima as every plan priced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.size.large import many_operators
from pipecut.formulation.costs.tables import build_tables, line_groups
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.outcome import Proof, checked
from pipecut.formulation.problem.cluster import Server
from pipecut.formulation.problem.constraints import Constraints, Placement
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import Split, layer_graph
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.dynamic.states import solver
from pipecut.solvers.dynamic.tables import doubled_times
from pipecut.solvers.dynamic.tables.doubled_times import check_runs, size_of
from pipecut.solvers.reference.algorithm_1 import StageTimes
from tests.examples import BYTE_LINK, UNIT, chain, instance_of, join, matrix, mesh
from tests.generators import instances, layer_graphs
from tests.laws import so_many
from tests.solvers.dynamic.test_alike import alike_cases, on_cluster
from tests.solvers.dynamic.test_states import QUIET, agree, cases


def untied(instance: Instance) -> bool:
    return not any(instance.copies)


def can_be_doubled(instance: Instance, space: CutSpace) -> bool:
    """Tell whether the layouts of live layers are few enough: one that ends or begins in rows has five forms."""
    try:
        check_runs(instance, 1, space)
    except TooLargeError:
        return False
    return True


@st.composite
def spaces(draw: st.DrawFn, instance: Instance) -> CutSpace:
    every = CutSpace.of(instance).places
    return CutSpace(tuple(one for one in every if one in (0, every[-1]) or draw(st.booleans())))


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(st.data(), instances(layer_graphs(max_layers=7)))
def test_stages_reach_as_far_as_their_times_say(data: st.DataObject, instance: Instance) -> None:
    assume(untied(instance))
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    space = data.draw(spaces(instance))
    assume(can_be_doubled(instance, space))
    known = StageTimes.of(tables, space)
    doubled = doubled_times.doubled_times(tables, space)
    assert doubled.values(0, 1 << 60) is None
    values = np.unique(known.time[known.time < FORBIDDEN])
    assume(len(values))
    for value in data.draw(st.lists(st.sampled_from(values.tolist()), min_size=1, max_size=6)):
        for threshold in (value - 1, value):
            assert (doubled.ends(threshold) == known.ends(threshold)).all()


def without_a_table(instance: Instance) -> None:
    """Solve with doubled runs where a table would do, and hold the outcome against every plan."""
    assume(can_be_doubled(instance, CutSpace.of(instance)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "size_of", lambda at, kinds, space: (check_runs(at, kinds, space), True))
        found = checked(instance, solver.solve(instance))
    agree(found, brute_force.solve(instance))


@pytest.mark.slow
@settings(max_examples=so_many(40), deadline=None, suppress_health_check=QUIET)
@given(alike_cases(Placement.LINE, 1))
def test_lines_of_alike_servers_find_what_every_plan_says(instance: Instance) -> None:
    assume(untied(instance))
    without_a_table(instance)


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(cases())
def test_states_find_what_every_plan_says(instance: Instance) -> None:
    assume(untied(instance))
    without_a_table(instance)


@pytest.mark.slow
def test_a_chain_is_proved_alike_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = many_operators(30)
    with_table = checked(instance, solver.solve(instance))
    monkeypatch.setattr(solver, "size_of", lambda at, kinds, space: (check_runs(at, kinds, space), True))
    without = checked(instance, solver.solve(instance))
    assert (without.proof, without.objective) == (Proof.OPTIMAL, with_table.objective)


def test_a_boundary_that_is_too_slow_is_not_crossed() -> None:
    """The even cut sends far more than the uneven ones; a bigger last stage is the price."""
    layers = chain([matrix(name, 60) for name in "abcd"], [1, 10_000, 1])
    for width in (1, 2):
        servers = [Server(f"s{at}", UNIT, width, BYTE_LINK if width > 1 else None) for at in range(2)]
        instance = on_cluster(layers, servers, BYTE_LINK)
        instance = replace(instance, constraints=Constraints(devices_per_stage=(1,)))
        without_a_table(instance)


def test_what_doubling_does_not_take_is_refused() -> None:
    wide = instance_of(
        layer_graph(
            "wide",
            [*(matrix(name) for name in "abcd"), join("sum")],
            [("a", "b", 1), ("b", "c", 1), ("c", "d", 1), *((name, "sum", 1) for name in "abcd")],
        ),
        mesh(2),
    )
    assert all(layer.split is not Split.FOLLOW for layer in wide.layers)
    with pytest.raises(TooLargeError, match="256 ways, at most 64"):
        check_runs(wide, 2, CutSpace.of(wide))
    long = instance_of(chain([matrix(str(at)) for at in range(40)], [1] * 39), mesh(2))
    assert size_of(long, 2, CutSpace.of(long)) == (24 * 2 * 40 * 41, False)
