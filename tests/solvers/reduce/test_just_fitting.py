"""Devices that have room for just one plan: no table rules it out, and no exact method says more than it takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.rules import structure_violations
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Goal, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer, Split
from pipecut.formulation.problem.modes import modes
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.catalogue import SOLVERS
from pipecut.solvers.crosscheck import solve_checked
from pipecut.solvers.reduce.executed.leaves import counted_passes
from pipecut.solvers.reduce.reduced_dp import accepts, stages_of
from tests.examples import on_servers
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import has_groups
from tests.solvers.reduce.test_reduced import QUIET, as_seen, repeated

MORE = st.sampled_from([0, 1_000, 30_000])
"""Bytes that blocks keep, or that the ends work on, beside what is drawn."""
FEW, LIMIT_S = 15, 3.0
"""So many layers times devices are searched in so long."""


@st.composite
def unlike(draw: st.DrawFn) -> Instance:
    """A model that repeats itself, whose blocks may keep much, and whose ends may work on much."""
    instance = as_seen(draw(repeated(least=3)))
    kept, works, end = draw(MORE), draw(MORE), draw(MORE)
    rows = [replace(one, stash_bytes=one.stash_bytes + kept) for one in instance.model.layers]
    rows[0] = replace(rows[0], input_bytes=rows[0].input_bytes + end)
    last = rows[-1]
    rows[-1] = replace(last, output_bytes=last.output_bytes + works, stash_bytes=last.stash_bytes + end)
    asked = replace(instance.constraints, recompute=Recompute.BLOCKS, memory=False)
    return replace(instance, model=replace(instance.model, layers=tuple(rows)), constraints=asked)


@st.composite
def just_fitting(draw: st.DrawFn) -> tuple[Instance, Plan]:
    """A plan of one or two stages, blocks of which are computed again, and devices with room for just that."""
    instance = draw(unlike())
    assume(has_groups(instance))
    space, stages = CutSpace.of(instance), list[Stage]()
    ends = sorted(draw(st.sets(st.sampled_from(space.places[:-1]), max_size=1)) | {0, len(instance.layers)})
    many = len(ends) - 1
    assume(many <= instance.devices)
    size = draw(st.integers(1, instance.devices // many))
    ways = modes(instance, size)
    assume(ways)
    for at, span in enumerate(Span(*one) for one in pairwise(ends)):
        group = Group.on_line(instance, size * at, size, draw(st.sampled_from(ways)))
        blocks = () if group.mode.recompute else space.blocks(span)
        again = tuple(run for run in blocks if draw(st.booleans()))
        forms = tuple(_form(draw, instance.layers[layer], group) for layer in span.layers)
        stages.append(Stage(span, group, forms, again=again))
    plan = Plan(tuple(stages))
    assume(not any(structure_violations(instance, plan)))
    held = max(1, *(MemoryParts.of_stage(instance, plan, at).total for at in range(many)))
    rows = [replace(one, device_class=replace(one.device_class, memory_bytes=held)) for one in instance.servers]
    asked = replace(instance.constraints, memory=True)
    return on_servers(replace(instance, constraints=asked), rows), plan


def _form(draw: st.DrawFn, layer: Layer, group: Group) -> int:
    if layer.split is Split.FOLLOW or group.devices == 1:
        return 0
    some = forms_on(layer, group)
    assume(some)
    return draw(st.sampled_from(some))


@settings(max_examples=so_many(200), deadline=None, suppress_health_check=QUIET)
@given(just_fitting())
def test_tables_rule_no_stage_out_that_just_fits_and_say_no_more_than_it_takes(
    drawn: tuple[Instance, Plan],
) -> None:
    """What an atom holds while it is computed again is not beside what another one works on."""
    instance, plan = replace(drawn[0], goals=(Goal.STEP_TIME,)), drawn[1]
    assume(accepts(instance).takes)
    stages = stages_of(instance, Limits().deadline)
    pairs = zip(plan.stages, stages.at_least(plan), strict=True)
    assert all(least <= sum(counted_passes(instance, stage)) for stage, least in pairs)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(just_fitting(), st.sampled_from([Goal.STEP_TIME, Goal.ITERATION_TIME, Goal.BOTTLENECK]))
def test_no_exact_method_says_more_than_a_plan_takes_that_just_fits(
    drawn: tuple[Instance, Plan], goal: Goal
) -> None:
    instance, plan = replace(drawn[0], goals=(goal,)), drawn[1]
    found = evaluate(instance, plan)
    assume(found.feasible and instance.devices * len(instance.layers) <= FEW)
    for entry in SOLVERS:
        if entry.exact and entry.name != "brute_force" and entry.accepts(instance).takes:
            told = solve_checked(instance, entry, Limits(time_limit_s=LIMIT_S))
            assert told.proof is not Proof.INFEASIBLE
            assert (told.bound or 0) <= (found.objective or 0), entry.name
