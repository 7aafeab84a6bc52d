"""The stages that searches for an executed step know: of every kind, slot and span all that are worth having."""

from __future__ import annotations

import itertools
from dataclasses import replace
from operator import add, le

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.memory import MemoryParts, capacity_bytes
from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.step_time.bounds.pass_tables import stage_parts
from pipecut.solvers.step_time.bounds.spans import spans_of
from pipecut.solvers.step_time.pass_fronts import StageFronts
from pipecut.solvers.step_time.step_dp import accepts
from tests.laws import so_many
from tests.solvers.step_time.test_halves import in_halves
from tests.solvers.step_time.test_step_dp import judged_by_step
from tests.solvers.step_time.test_tied import tied_steps

MOST_NS = 1 << 50
FILTERED = [HealthCheck.filter_too_much, HealthCheck.too_slow]
Passes = tuple[int, ...]


def _all_of(instance: Instance, group: Group, span: Span, slot: int) -> set[Passes]:
    """Return the passes of a stage in all forms that its memory allows: forward, backward, synchronisation.

    With backward passes in halves also what of them is for weights. In a period both passes are one.
    """
    choices = [forms_on(row, group) if row.split is not Split.FOLLOW else (0,) for row in instance.layers]
    stages, found = instance.demands.stages_at_most or slot + 1, set[Passes]()
    for forms in itertools.product(*choices[span.first : span.stop]):
        stage = Stage(span, group, tuple(forms))
        held = MemoryParts.of_stage(instance, Plan((stage,) * stages), stages - 1 - slot).total
        if not instance.constraints.memory or held <= capacity_bytes(instance, group):
            passes = pipeline_passes(instance, Plan((stage,)))
            if instance.goals[0] is Goal.PERIOD:
                found.add((*map(add, passes.forward_ns, passes.backward_ns), 0, *passes.sync_ns))
                continue
            halves = passes.weight_ns if instance.training.schedule.in_halves else ()
            found.add((*passes.forward_ns, *passes.backward_ns, *passes.sync_ns, *halves))
    return found


def _worth_having(rows: set[Passes]) -> set[Passes]:
    """Return those that no other beats: by forward pass, backward pass or its halves, and synchronisation.

    This stands behind the backward pass, or its half for the weights, so it is compared together with that.
    """
    seen = {
        (forward, backward - sum(late), *late, sync + sum(late or (backward,)))
        for forward, backward, sync, *late in rows
    }
    beaten = (any(one != row and all(map(le, one, row)) for one in seen) for row in seen)
    return {row for row, worse in zip(seen, beaten, strict=True) if not worse}


def keeps_what_is_worth_having(instance: Instance) -> None:
    """Compare the stages of all spans and slots with those of all forms."""
    tables, space = all_tables(instance), CutSpace.of(instance)
    parts = stage_parts(tables, space)
    spans, fronts = spans_of(tables, parts.passes, parts.space), StageFronts(parts, MOST_NS)
    for slot, rule in enumerate(spans.rules[: instance.demands.stages_at_most]):
        for kind in range(len(tables.kinds)):
            group = tables.groups[tables.kind_of.index(kind)]
            rows = fronts.rows(slot, kind, spans.roomy[rule][kind])
            for first, stop in itertools.combinations(range(parts.space.stops + 1), 2):
                here = rows.passes[(rows.start == first) & (rows.stop == stop)]
                expected = _all_of(instance, group, parts.space.layers(Span(first, stop)), slot)
                assert _worth_having(set(map(tuple, here.tolist()))) == _worth_having(expected)
                if expected:
                    assert spans.pace[kind, first, stop] <= min(one[0] + one[1] for one in expected)
                    assert spans.whole[kind, first, stop] <= parts.passes.alone(np.array(list(expected))).min()


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=FILTERED)
@given(st.one_of(tied_steps(), judged_by_step()))
def test_of_every_span_all_stages_are_known(instance: Instance):
    instance = replace(instance, training=replace(instance.training, warm_up="classic"))
    assume(accepts(instance).proves)
    keeps_what_is_worth_having(instance)


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=FILTERED)
@given(in_halves(st.one_of(tied_steps(), judged_by_step())))
def test_so_they_are_with_backward_passes_in_halves(instance: Instance):
    assume(accepts(instance).proves)
    keeps_what_is_worth_having(instance)
