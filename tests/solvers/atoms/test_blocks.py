"""Blocks that are computed again alone, in chains of atoms: all methods that use these agree with brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.memory import stage_parts
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.outcome import Limits, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import forms_on
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.atoms.chains import Chains
from pipecut.solvers.catalogue import find_any
from tests.examples import chain, instance_of, matrix, mesh
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW
from tests.solvers.cpsat.test_blocks import choosing, whole_stages

ONE = Limits(workers=1)
GOALS = {
    "state_dp": [Goal.BOTTLENECK],
}


@pytest.mark.parametrize("name", GOALS)
def test_a_method_on_atoms_chooses_as_brute_force_does(name: str) -> None:
    entry = find_any(name)

    @settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
    @given(choosing(goals=st.sampled_from(GOALS[name]), costs=whole_stages))
    def agrees(instance: Instance) -> None:
        if entry.accepts(instance).takes:
            best = brute_force.solve(instance)
            found = checked(instance, entry.load()(instance, ONE))
            assert (found.proof, found.objective) == (best.proof, best.objective)

    agrees()


@pytest.mark.parametrize("name", ["state_dp"])
def test_blocks_are_refused_by_name_where_backward_passes_are_in_halves(name: str) -> None:
    instance = instance_of(chain([matrix("a", 10), matrix("b", 10)], [10]), mesh(1))
    constraints = Constraints(memory=True, recompute=Recompute.BLOCKS, stages_at_least=1, stages_at_most=1)
    halves = replace(instance.training, schedule=Schedule.ZERO_BUBBLE_H1)
    refused = find_any(name).accepts(replace(instance, training=halves, constraints=constraints)).reason
    assert name in refused and "write constraints.recompute: allowed" in refused


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(choosing(costs=whole_stages), st.data())
def test_rows_are_those_of_every_choice(instance: Instance, data: st.DataObject) -> None:
    tables, space = all_tables(instance), CutSpace.of(instance)
    held = MemoryTables.of(tables)
    chains = Chains(tables, held, space)
    slot, at = data.draw(st.integers(0, 2)), data.draw(st.integers(0, len(tables.groups) - 1))
    kind, start = tables.kind_of[at], data.draw(st.integers(0, space.stops - 1))
    row = chains.row(slot, kind, start, FORBIDDEN)
    for stop in range(start + 1, space.stops + 1):
        span, room = space.layers(Span(start, stop)), held.capacity[kind]
        stages = every_choice(instance, Stage(span, tables.groups[at], ()))
        fitting = [one for one in stages if needed(instance, one, slot) <= room]
        least = min((time_ns(instance, one) for one in fitting), default=FORBIDDEN)
        assert int(row.time[stop]) == least
        if fitting:
            chosen = chains.forms(slot, kind, Span(start, stop), least)
            assert chosen is not None
            stage = Stage(span, tables.groups[at], chosen[0], again=chosen[1])
            assert time_ns(instance, stage) == least and needed(instance, stage, slot) <= room


def every_choice(instance: Instance, stage: Stage) -> list[Stage]:
    """All forms of the layers of a stage, with all sets of its blocks where it does not recompute as a whole."""
    blocks = CutSpace.of(instance).blocks(stage.span)
    some = [one for count in range(len(blocks) + 1) for one in itertools.combinations(blocks, count)]
    rows = [instance.layers[layer] for layer in stage.span.layers]
    forms = [(0,) if row.split is Split.FOLLOW else forms_on(row, stage.group) for row in rows]
    runs = [()] if stage.group.mode.recompute else some
    return [replace(stage, forms=own, again=again) for own in itertools.product(*forms) for again in runs]


def needed(instance: Instance, stage: Stage, slot: int) -> int:
    return stage_parts(instance, stage).times(Keeps.in_slot(instance.training, slot), stage.group.mode).total


def time_ns(instance: Instance, stage: Stage) -> int:
    return stage_costs(instance, Plan((stage,)))[0].total_ns
