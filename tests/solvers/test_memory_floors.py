"""What layers hold at least: over the forms that their layout can have, and no others."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.costs.times import layout_form
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, checked
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat.model import floors, furthest
from pipecut.solvers.dynamic.states import state_dp as solver
from pipecut.solvers.dynamic.states import state_dp as states
from pipecut.solvers.dynamic.tables.stage_table import StageLimits
from pipecut.solvers.reference.algorithm_1 import StageTimes
from pipecut.solvers.reference.line_dp import atom_tables
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.generators import instances, layer_graphs, on_grids, whole_passes
from tests.laws import so_many
from tests.solvers.cpsat.test_cpsat_memory import limited
from tests.solvers.cpsat.test_freedoms import degrees, has_groups
from tests.solvers.dynamic.test_under_memory import ALONE

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]
COPIED = tuple(matrix(name, 10, weights=100, allowed=(0,)) for name in "ab")
"""Two layers that every device holds whole, though other layers of their kind could be divided."""


@st.composite
def of_degrees(draw: st.DrawFn) -> tuple[Instance, tuple[Group, ...]]:
    """An instance and all its groups of some degrees."""
    instance, allowed = draw(instances(layers=layer_graphs(max_layers=4))), draw(degrees)
    instance = replace(instance, constraints=Constraints(tensor_parallel_degrees=allowed))
    assume(has_groups(instance))
    return instance, Group.possible(instance)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(st.one_of(of_degrees(), on_grids()))
def test_possible_forms_are_those_of_some_stage(drawn: tuple[Instance, tuple[Group, ...]]) -> None:
    """On equally many devices, what is possible in a grid is not what is possible in none."""
    instance, groups = drawn
    tables = build_tables(instance, groups)
    held = MemoryTables.of(tables)
    for at, kind in enumerate(tables.kinds):
        found = np.zeros(held.possible.shape[1:], dtype=np.bool_)
        for first, stop in itertools.combinations(range(len(instance.layers) + 1), 2):
            rows = instance.layers[first:stop]
            for layer in range(first, stop):
                source = layout_form(instance, Span(first, stop), layer)
                if source is None:
                    found[layer, 0] = True
                elif rows[source - first].split is not Split.FOLLOW:
                    taken = forms_on(rows[source - first], kind)
                    found[layer, list(taken)] = True
        assert np.array_equal(held.possible[at], found)


def test_no_floor_counts_on_a_form_that_a_layer_may_not_take() -> None:
    """A device holds 200 bytes of each layer, weights and gradients; halved, both would fit into 300."""
    training = Training(1, optimizer_bytes_per_parameter=0, schedule=Schedule.GPIPE)
    instance = limited(instance_of(chain(COPIED, [0]), mesh(2), PLAIN, training), 300, Schedule.GPIPE)
    tables = build_tables(instance, tuple(one for one in Group.possible(instance) if one.devices == 2))
    limits, atoms = (
        StageLimits(StageTimes.of(tables)),
        atom_tables(tables, CutSpace((*range(len(instance.layers) + 1),))),
    )
    assert limits.ends(0, FORBIDDEN)[0].tolist() == [1, 2, 2]
    assert furthest(floors(tables), 0, 0, FORBIDDEN).tolist() == [1, 2, 2]
    assert atoms.least is not None and atoms.least.by_version[0].tolist() == [[100] * 3] * 2


@st.composite
def tight(draw: st.DrawFn) -> Instance:
    """Memory near to what some plan needs, forms restricted, degrees chosen: floors decide often."""
    instance = draw(instances(layers=layer_graphs(max_layers=4), costs=ALONE))
    constraints = Constraints(memory=True, tensor_parallel_degrees=draw(degrees))
    free = replace(limited(instance, 1 << 50, draw(whole_passes)), constraints=constraints)
    assume(has_groups(free))
    plans = list(itertools.islice(brute_force.plans(free), 200))
    assume(plans)
    needed = max(one.memory_bytes for one in evaluate(free, draw(st.sampled_from(plans))).stages)
    return replace(limited(instance, max(1, needed), free.training.schedule), constraints=constraints)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(tight())
def test_optima_are_those_of_brute_force(instance: Instance) -> None:
    expected = brute_force.solve(instance)
    for solve in (solver.solve, states.solve):
        found = checked(instance, solve(instance, Limits(workers=1)))
        assert (found.proof, found.objective) == (expected.proof, expected.objective)
