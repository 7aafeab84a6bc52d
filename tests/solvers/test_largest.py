"""The largest instances that are allowed, given to everything that counts: nothing wraps, nothing is off by one.

``formulation.problem.instance`` refuses what is larger. Brute force prices plans in Python's integers, which
cannot wrap.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.certificates.check import certifiable, verify
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import MOST, MOST_NS, Instance, longest_ns
from pipecut.formulation.problem.options import BoundaryCharge, Combine, CostModel
from pipecut.formulation.problem.training import Training
from pipecut.report.simulation import simulate
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.catalogue import all_solvers, find_any
from pipecut.solvers.certifying import certify
from tests.examples import BYTE_LINK, UNIT, chain, instance_of, matrix, mesh, on_servers, times_a
from tests.generators import (
    OF_SINGLE_STAGES,
    cluster_graphs,
    hosts,
    instances,
    layer_graphs,
    recomputation,
    sharded_kinds,
    whole_passes,
)
from tests.laws import so_many

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
ONE_WORKER = Limits(workers=1)
ON_A_FLAT_MACHINE = ("pipedream", "pipedream_code", "alpa", "pipepar", "pipepar_listed", "gpipe")
"""Planners that price the model on a machine of their own (``solvers.reference.flat_cluster``)."""
TIMES = (Goal.BOTTLENECK, Goal.ITERATION_TIME)


def allowed(instance: Instance, factor: int) -> bool:
    try:
        times_a(instance, factor)
    except ValueError as error:
        assert "can be counted" in str(error)
        return False
    return True


def largest(instance: Instance) -> Instance:
    """Multiply all times and bytes by as much as is allowed: one more is refused."""
    low, high = 1, 1 << 70
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(instance, middle) else (low, middle)
    return times_a(instance, low)


@st.composite
def cases(draw: st.DrawFn) -> Instance:
    """Small instances of every kind, as large as they may be; some with memory that binds, and huge prices."""
    instance = draw(instances(layer_graphs(4), cluster_graphs(3)))
    goal = draw(st.sampled_from((*TIMES, *TIMES, Goal.MEMORY, Goal.COST)))
    cost = instance.cost
    if goal is Goal.ITERATION_TIME or draw(st.booleans()):
        cost = replace(cost, combine=Combine.MAX)
    if draw(st.booleans()):
        cost = replace(cost, boundary_charge=BoundaryCharge.LINK)
    count = draw(st.sampled_from((1, 7, 5000)))
    schedules = whole_passes if goal is Goal.ITERATION_TIME else st.sampled_from(OF_SINGLE_STAGES)
    training = Training(count, count, schedule=draw(schedules))
    constraints = Constraints(
        placement=draw(st.sampled_from(Placement)),
        **draw(recomputation),
        sharded=draw(sharded_kinds),
        optimizer_on_host=draw(hosts),
        tensor_parallel_degrees=draw(st.sampled_from(((), (1, 2)))),
    )
    instance = replace(instance, goals=(goal,), cost=cost, training=training, constraints=constraints)
    assume(has_groups(instance))
    instance = largest(instance)
    return _limited(draw, instance) if draw(st.booleans()) else instance


def has_groups(instance: Instance) -> bool:
    try:
        return bool(Group.possible(instance))
    except ValueError:
        return False


def _limited(draw: st.DrawFn, instance: Instance) -> Instance:
    """Give devices the memory that some plan needs, more or less; and some far more than can be counted."""
    some = list(itertools.islice(brute_force.plans(instance), 50))
    needed = max(stage.memory_bytes for stage in evaluate(instance, draw(st.sampled_from(some))).stages)
    room = max(1, needed * draw(st.integers(70, 130)) // 100)
    price = draw(st.integers(0, MOST // 2 // instance.devices))
    servers = [
        replace(
            server,
            device_class=replace(
                server.device_class,
                memory_bytes=room << draw(st.sampled_from((0, 0, 40))),
                price_per_hour=price,
            ),
        )
        for server in instance.servers
    ]
    return on_servers(replace(instance, constraints=replace(instance.constraints, memory=True)), servers)


@settings(max_examples=so_many(25), deadline=None, suppress_health_check=QUIET)
@given(cases())
def test_every_solver_counts_the_largest_instances_exactly(instance: Instance) -> None:
    best = brute_force.solve(instance)
    with np.errstate(all="raise"):
        for entry in all_solvers():
            try:
                found = checked(instance, entry.load()(instance, ONE_WORKER))
            except ValueError as error:
                assert "64 bits" not in str(error), entry.name
                # Where all devices are of the slowest class, times can be longer than any of the cluster itself.
                assert "can be counted" not in str(error) or entry.name in ON_A_FLAT_MACHINE, entry.name
                continue
            if found.proof is Proof.OPTIMAL:
                assert found.objective == best.objective, entry.name
            assert found.proof is not Proof.INFEASIBLE or best.plan is None, entry.name
            if found.bound is not None and best.objective is not None:
                assert found.bound <= best.objective, entry.name


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=QUIET)
@given(cases())
def test_certificates_and_timeline_count_the_largest_instances_exactly(instance: Instance) -> None:
    best = brute_force.solve(instance)
    assume(best.plan is not None and best.objective is not None)
    assert best.plan is not None and best.objective is not None
    if certifiable(instance) is None:
        found = certify(instance, best.plan, best.objective)
        assert found.optimal
        verify(instance, found)
    timeline = simulate(instance, best.plan).timeline
    times, took = timeline.times, timeline.program.duration.tolist()
    for start, stop, duration in zip(times.start_ns.tolist(), times.stop_ns.tolist(), took, strict=True):
        assert start >= 0 and start + duration == stop <= timeline.makespan_ns < 4 * MOST


def hours_long(count: int = 48) -> Instance:
    """Three layers of 2**45 multiply-accumulates on devices of 1 GFLOP/s: a step of hours."""
    layers = chain([matrix(name, 2**45, taken=8, made=8) for name in "abc"], [8, 8])
    servers = [8] * (count // 8)
    return instance_of(layers, mesh(*servers, inside=BYTE_LINK), CostModel())


@pytest.mark.parametrize("solver", [pytest.param("cpsat", marks=pytest.mark.slow), "line_dp", "state_dp"])
def test_times_of_hours_on_many_devices_are_planned(solver: str) -> None:
    """Each layer on 16 of 48 devices: 6 * 2**45 / 16 FLOP at 1 GFLOP/s, each of its two passes rounded up."""
    (entry,) = (one for one in all_solvers() if one.name == solver)
    instance = hours_long()
    found = checked(instance, entry.load()(instance, ONE_WORKER))
    assert found.proof is Proof.OPTIMAL and found.objective == found.bound
    assert found.objective is not None
    assert 6 * 2**45 // 16 <= found.objective <= 6 * 2**45 // 16 + 1_000_000


def test_areas_that_leave_64_bits_are_counted_in_larger_units() -> None:
    """Unlike devices have prices up to 1000: those times such times leave 64 bits by far."""
    slow = replace(UNIT, name="slow", flops_per_second=UNIT.flops_per_second // 2)
    instance = instance_of(chain([matrix(name, 2**33) for name in "abc"], [1, 1]), mesh(1, 2))
    servers = [replace(row, device_class=slow) if at else row for at, row in enumerate(instance.servers)]
    instance = largest(on_servers(instance, servers))
    assert longest_ns(instance) * (1000 + 2 * 500) > 1 << 63
    for placement in Placement:
        placed = replace(instance, constraints=Constraints(placement=placement))
        best = brute_force.solve(placed)
        for name in ("cpsat", "line_dp", "state_dp", "step_dp"):
            found = checked(placed, find_any(name).load()(placed, ONE_WORKER))
            assert found.proof is not Proof.OPTIMAL or found.objective == best.objective, name


def test_the_limit_is_where_it_is_said_to_be() -> None:
    instance = largest(instance_of(chain([matrix("a", 3), matrix("b", 5)], [2]), mesh(1, 1)))
    assert longest_ns(instance) < MOST_NS <= longest_ns(instance) * Fraction(101, 100)


@pytest.mark.slow
def test_cp_sat_refuses_sums_over_many_groups_that_it_cannot_count() -> None:
    """CP-SAT adds a layer's time on every kind of group, of which a stage has one: more than any plan takes.

    Weights take as long to synchronise on many devices as the layer takes on one, and of kinds there are hundreds.
    """
    layers = chain([matrix("a", 1000, weights=1400)], [])
    modes = Constraints(tensor_parallel_degrees=tuple(range(1, 41)), recompute=Recompute.ALLOWED)
    instance = largest(replace(instance_of(layers, mesh(40)), constraints=modes))
    with pytest.raises(TooLargeError, match=r"cannot count in 64 bits.*ask another solver"):
        all_solvers()[0].load()(instance, Limits(workers=1, time_limit_s=60))
    for name in ("line_dp", "state_dp"):
        (entry,) = (one for one in all_solvers() if one.name == name)
        assert checked(instance, entry.load()(instance, ONE_WORKER)).proof is Proof.OPTIMAL, name
