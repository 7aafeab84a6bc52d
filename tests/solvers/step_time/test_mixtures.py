"""Bounds by paths with weights: below every plan, whatever the weights, and with what labels know of suffixes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.costs.tables import Times, all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.executed import PipelinePasses
from pipecut.formulation.limits import NEVER
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Training
from pipecut.solvers import exhaustive
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.step_time import step_dp as solver
from pipecut.solvers.step_time.bounds.mixtures import Mixture, mixture
from pipecut.solvers.step_time.bounds.pass_sums import Sums, least_passes, pairs_of
from pipecut.solvers.step_time.bounds.pass_tables import stage_parts
from pipecut.solvers.step_time.bounds.paths import longest_path
from pipecut.solvers.step_time.bounds.rays import rays_of
from pipecut.solvers.step_time.bounds.spans import Index, Spans, spans_of
from pipecut.solvers.step_time.bounds.ways import Ways, ways_of
from pipecut.solvers.step_time.responses import responses
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_step_dp import (
    given_warm_ups,
    judged_by_step,
    pipelines,
    step_given_ns,
    trainings_given,
    with_much_to_synchronise,
)


def rows_of(passes: PipelinePasses) -> Times:
    sent = ((*passes.activation_ns, 0), (*passes.gradient_ns, 0))
    return np.array([passes.forward_ns, passes.backward_ns, *sent, passes.sync_ns], dtype=np.int64)


@settings(max_examples=so_many(300), deadline=None)
@given(pipelines(), trainings_given())
def test_a_longest_path_is_as_long_as_the_step(passes: PipelinePasses, training: Training):
    path = longest_path(training, rows_of(passes).astype(np.float64))
    assert path.length == step_given_ns(training, passes) == (path.often * rows_of(passes)).sum()


@settings(max_examples=so_many(300), deadline=None)
@given(st.data(), pipelines(), st.integers(1, 6), given_warm_ups)
def test_a_path_of_other_passes_is_no_longer_than_the_step(
    data: st.DataObject, passes: PipelinePasses, size: int, warm_up: tuple[int, ...]
):
    other = data.draw(pipelines(passes.stages))
    training = Training(size, size, warm_up=warm_up)
    path = longest_path(training, rows_of(other).astype(np.float64))
    rows, step = rows_of(passes), step_given_ns(training, passes)
    assert (path.often * rows).sum() <= step
    answers = responses(training, passes.stages)
    known = answers.last(rows[[0, 1, 4], -1:].T)
    for slot in range(1, passes.stages):
        at = passes.stages - slot
        visits = Counter(path.visits[at])
        ahead = (path.often[:, :at] * rows[:, :at]).sum()
        seen = answers.visited(known, visits)
        assert seen is not None
        assert (path.often * rows).sum() <= ahead + int(seen[0]) <= step
        known = answers.before(known, slot, rows[[0, 1, 4], at - 1 : at].T, rows[[2, 3], at - 1 : at].T)


def sums_of(instance: Instance, most_ns: int, starts: Index | None = None) -> tuple[Spans, Ways, list[Sums]]:
    """Return the least passes by places, the ways, and the sums of plans by blocks that start at these places."""
    tables, space = all_tables(instance), CutSpace.of(instance)
    parts = stage_parts(tables, space)
    fine, ways = spans_of(tables, parts.passes, space), ways_of(tables, state_space(tables))
    starts = np.arange(space.stops + 1) if starts is None else starts
    rays = rays_of(tables, parts.passes, space, starts, range(len(tables.kinds)))
    spans = replace(fine.blocks(starts), rays=replace(rays, block=np.arange(len(starts))))
    least = least_passes(parts.passes, space)
    rows = [
        pairs_of(spans, ways, least, spans.roomy[rule] & (spans.whole <= most_ns), last=slot == 0)
        for slot, rule in enumerate(spans.rules)
    ]
    known = [row for row in rows if row is not None]
    sums = [Sums(spans, ways, tuple(known[:stages]), NEVER) for stages in range(1, len(known) + 1)]
    return replace(fine, rays=rays), ways, sums


def _keeps(found: Mixture | None, instance: Instance, plan: Plan, value: int, kinds: tuple[object, ...]):
    assert found is not None and found.bound <= value
    rows = rows_of(pipeline_passes(instance, plan))
    assert (found.often * rows).sum() <= found.weight * value
    places = CutSpace.of(instance).places
    for slot, stage in enumerate(reversed(plan.stages)):
        pairs = found.sums.slots[slot]
        kind, first = kinds.index(GroupKind.of(instance, stage.group)), places.index(stage.span.first)
        stop = places.index(stage.span.stop)
        way, starts, stops = (row[pairs.rows] for row in (pairs.of.way, pairs.of.first, pairs.of.stop))
        here = (found.sums.ways.kind[way] == kind) & (starts == first) & (stops == stop)
        assert here.any()


def no_plan_breaks_the_bounds(instance: Instance, more: int):
    priced = [(evaluate(instance, plan), plan) for plan in exhaustive.plans(instance)]
    kept = [(one.objective, plan) for one, plan in priced if one.feasible and one.objective]
    assume(kept)
    limit = min(value for value, _ in kept) * (100 + more) // 100
    _, _, sums = sums_of(instance, limit)
    kinds = tuple(all_tables(instance).kinds)
    found = [mixture(one, instance.training, limit) for one in sums]
    for value, plan in kept:
        if value <= limit:
            _keeps(found[len(plan) - 1], instance, plan, value, kinds)


@settings(max_examples=so_many(60), deadline=None)
@given(judged_by_step(max_layers=3), st.integers(0, 60))
def test_no_plan_within_a_limit_is_below_a_mixture(instance: Instance, more: int):
    assume(solver.accepts(instance).proves and few_plans(instance))
    no_plan_breaks_the_bounds(instance, more)


@settings(max_examples=so_many(40), deadline=None)
@given(with_much_to_synchronise(), st.integers(0, 60))
def test_no_plan_that_synchronises_for_long_is_below_a_mixture(instance: Instance, more: int):
    no_plan_breaks_the_bounds(instance, more)
