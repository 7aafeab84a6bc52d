"""The accelerated model agrees with the layered one, which borrows nothing from a dynamic programme."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formulation.costs.tables import build_tables, line_groups
from formulation.outcome import Limits, Proof, checked
from formulation.problem.instance import Instance
from formulation.problem.options import AllReduce, Boundary, CostModel
from solvers.cpsat import solver as layered
from solvers.cpsat.whole_stages import solver as staged
from solvers.cpsat.whole_stages import stages
from solvers.dynamic.tables.stage_times import stage_times
from tests.generators import instances, layer_graphs

LIMITS = Limits(workers=1)
ALONE = st.builds(CostModel, all_reduce=st.sampled_from(AllReduce), boundary=st.sampled_from(Boundary))
"""Cost models under which a stage's time is its own."""


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(layers=layer_graphs(max_layers=6), costs=ALONE))
def test_independent_and_accelerated_mode_agree(instance: Instance) -> None:
    fast = checked(instance, staged.solve(instance, LIMITS))
    slow = checked(instance, layered.solve(instance, LIMITS))
    assert fast.proof is slow.proof is Proof.OPTIMAL
    assert fast.objective == slow.objective


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances())
def test_falls_back_where_stages_depend_on_their_neighbours(instance: Instance) -> None:
    fast = checked(instance, staged.solve(instance, LIMITS))
    assert fast.proof is Proof.OPTIMAL
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    assert stages.applies(tables) != any("layered" in note for note in fast.notes)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances())
def test_stage_times_never_fall_when_a_layer_is_added(instance: Instance) -> None:
    times = stage_times(build_tables(instance, tuple(line_groups(instance).values())))
    for kind in times.time:
        for first, row in enumerate(kind):
            real = row[first + 1 :]
            assert (real[1:] >= real[:-1]).all()
