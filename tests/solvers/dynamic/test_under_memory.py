"""Memory limits, on the line and anywhere: the programme over states agrees with the model, and forms fit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Placement
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import AllReduce, Boundary
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.atoms.chains import Chains
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.dynamic.states import state_dp as states
from tests.generators import instances, layer_graphs, priced, sharings, whole_passes
from tests.laws import so_many
from tests.solvers.cpsat.test_cpsat_memory import limited

LIMITS = Limits(workers=1)
ALONE = st.builds(
    priced,
    sharings,
    all_reduce=st.sampled_from(AllReduce),
    boundary=st.sampled_from(Boundary),
)


@st.composite
def tight(draw: st.DrawFn) -> Instance:
    """Instances whose memory is a part of what a good plan would need; on the line or anywhere."""
    instance = draw(instances(layers=layer_graphs(max_layers=4), costs=ALONE))
    free = limited(instance, 1 << 50, draw(whole_passes))
    plan = layered.solve(free, LIMITS).plan
    assert plan is not None
    needed = max(stage.memory_bytes for stage in evaluate(free, plan).stages)
    assume(needed > 0)
    capacity = max(1, needed * draw(st.integers(20, 110)) // 100)
    chosen = limited(instance, capacity, free.training.schedule)
    placement = draw(st.sampled_from(Placement))
    return replace(chosen, constraints=replace(chosen.constraints, placement=placement))


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tight())
def test_programme_and_model_agree_under_memory_limits(instance: Instance) -> None:
    fast = checked(instance, states.solve(instance, LIMITS))
    slow = checked(instance, layered.solve(instance, LIMITS))
    assert fast.proof is slow.proof
    assert fast.proof in (Proof.OPTIMAL, Proof.INFEASIBLE)
    assert fast.objective == slow.objective


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tight(), st.data())
def test_forms_of_chains_are_the_fastest_that_fit(instance: Instance, data: st.DataObject) -> None:
    """One stage that holds the whole model on some group, against every choice of forms."""
    tables = build_tables(instance, Group.possible(instance))
    index = data.draw(st.integers(0, len(tables.groups) - 1))
    group, kind = tables.groups[index], tables.kind_of[index]
    total = len(instance.layers)
    assume(
        not any(
            violation
            for violation in evaluate(instance, _plan(group, (0,) * total, total)).violations
            if violation.rule in ("devices", "line")
        )
    )
    priced = []
    for plan in brute_force.plans(instance):
        if len(plan) == 1 and plan.stages[0].group == group:
            found = evaluate(instance, plan)
            if found.feasible and found.objective is not None:
                priced.append(found.objective)
    space = CutSpace((*range(len(instance.layers) + 1),))
    chosen = Chains(tables, MemoryTables.of(tables), space).forms(0, kind, Span(0, space.stops), 1 << 40)
    if chosen is None:
        assert not priced
    else:
        found = evaluate(instance, _plan(group, chosen[0], total))
        assert found.feasible and found.objective == min(priced)


def _plan(group, forms, total: int) -> Plan:
    return Plan((Stage(Span(0, total), group, forms),))
