"""The least latency within a threshold, cut by cut: held against every plan there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER, Deadline, StoppedError
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.dynamic.iteration_time.exactly import ExactLatency
from pipecut.solvers.dynamic.iteration_time.plans import Correction
from pipecut.solvers.dynamic.iteration_time.spans import StageSpans
from pipecut.solvers.dynamic.iteration_time.steps import flat_steps
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.reference.line import atom_tables
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import freed, has_groups
from tests.solvers.dynamic.test_paced import paced, solved

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def questions(instance: Instance, deadline: Deadline = NEVER) -> ExactLatency:
    tables = all_tables(instance)
    spans = StageSpans(atom_tables(tables, CutSpace.of(instance)))
    return ExactLatency(spans, flat_steps(state_space(tables), tables), deadline)


def prices(instance: Instance) -> list[tuple[int, int]]:
    """Latency and bottleneck of every plan that keeps the rules."""
    found: list[tuple[int, int]] = []
    for plan in brute_force.plans(instance):
        priced = evaluate(instance, plan)
        if priced.feasible:
            terms = [time for stage in priced.stages for time in (stage.total_ns, stage.boundary_ns)]
            found.append((sum(terms), max(terms)))
    return found


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(freed(goals=st.just(Goal.ITERATION_TIME)), st.data())
def test_no_plan_within_a_threshold_is_quicker(instance: Instance, data: st.DataObject) -> None:
    """Without a limit on memory tables are exact; with one they are lower limits, as forms may not fit."""
    assume(has_groups(instance))
    instance = paced(instance, 3)
    known = prices(instance)
    assume(known)
    most = data.draw(st.sampled_from(sorted({bottleneck for _, bottleneck in known})))
    least = min(latency for latency, bottleneck in known if bottleneck <= most)
    found = questions(instance).least(most, ())
    assert found is not None and found.latency_ns <= least and found.bottleneck_ns <= most
    assert found.cuts[0] == 0 and found.cuts[-1] == CutSpace.of(instance).stops
    below = questions(instance).least(most, (), found.latency_ns + 1)
    assert below is not None and below.latency_ns == found.latency_ns
    assert questions(instance).least(most, (), found.latency_ns) is None
    if not instance.constraints.memory:
        assert found.latency_ns == least


def test_below_the_least_bottleneck_there_is_none() -> None:
    instance = paced(instance_of(chain([matrix("a", 10), matrix("b", 20)], [0]), mesh(1, 1), PLAIN), 4)
    least = min(bottleneck for _, bottleneck in prices(instance))
    assert questions(instance).least(least, ()) is not None
    assert questions(instance).least(least - 1, ()) is None


def test_what_was_learnt_of_a_stage_is_seen() -> None:
    """Two stages of 30 and 60 ns keep a threshold of 60; if the second takes longer than thought, none does."""
    layers = chain([matrix("a", 10, weights=10**6), matrix("b", 20, weights=10**6)], [0])
    instance = paced(instance_of(layers, mesh(1, 1), PLAIN), 4)
    instance = replace(instance, constraints=replace(instance.constraints, devices_per_stage=(1,)))
    asked = questions(instance)
    parted = asked.least(60, ())
    assert parted is not None and (parted.cuts, parted.times, parted.latency_ns) == ((0, 1, 2), (30, 60), 90)
    second = int(asked.steps.kind[parted.steps[1]])
    learnt = Correction(0, second, 1, 2, 500)
    assert asked.least(60, (learnt,)) is None
    whole = asked.least(1000, (learnt,))
    assert whole is not None and (whole.cuts, whole.times) == ((0, 2), (90,))


def test_it_can_be_stopped() -> None:
    instance = paced(instance_of(chain([matrix("a", 10), matrix("b", 20)], [0]), mesh(1, 1), PLAIN), 4)
    with pytest.raises(StoppedError):
        questions(instance, Deadline(stopped=lambda: True)).least(10**9, ())
    assert solved(instance).objective is not None
