"""Plain grids: the best one is no worse than any, priced one by one, and none undercuts what it promises."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.costs.megatron_forms import forms_in
from pipecut.formulation.costs.passes import stage_passes
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER, Deadline, StoppedError, TooLargeError
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof
from pipecut.formulation.problem.constraints import Goal, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, Axis, Split
from pipecut.formulation.problem.modes import modes
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.searched import not_searched, searched
from pipecut.solvers.auto.solve import plan as auto
from pipecut.solvers.choices.standing import Standing
from pipecut.solvers.choices.trainings import decide
from pipecut.solvers.reduce.best_grid import DealtGrids, GridTold, best_grid, shortened
from pipecut.solvers.search.grids import LATE, GridPlan, Grids
from pipecut.solvers.search.pieces import ShortModel
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many
from tests.solvers.choices.test_wider import alike
from tests.solvers.reduce.test_reduced import repeated
from tests.solvers.search.test_fitting import blocks

QUIET = settings(
    max_examples=so_many(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
SEEN_LATER = {"memory", "equal_stages"}
GOALS = st.sampled_from([Goal.STEP_TIME, Goal.STEP_TIME, Goal.ITERATION_TIME])


def every_grid(instance: Instance) -> Iterator[Plan]:
    """Yield all plain grids, by no code of the search: all sizes, modes, forms, blocks, and three ways to cut."""
    sizes = [server.devices for server in instance.servers]
    for size in range(1, instance.devices + 1):
        parts = all(one % size == 0 for one in sizes)
        whole = len(set(sizes)) == 1 and size % sizes[0] == 0 and instance.devices % size == 0
        asked = instance.demands.devices_per_stage
        if not (parts or whole) or (asked and size not in asked):
            continue
        many = min(instance.devices // size, CutSpace.of(instance).stops)
        for mode in (one for one in modes(instance, size) if one.grid == 1):
            groups = [Group.on_line(instance, at * size, size, mode) for at in range(many)]
            for forms in dict.fromkeys(forms_of(instance, groups[0])):
                for again in (False, True):
                    if not again or (instance.constraints.recompute.by_blocks and not mode.recompute):
                        yield from divided(instance, groups, forms, again=again)


def forms_of(instance: Instance, group: Group) -> Iterator[tuple[int, ...]]:
    """Yield the forms of all layers alike, and Megatron-LM's; the first one of a layer that may not take these."""
    total = len(instance.layers)
    sequence = (False, True) if Axis.SEQUENCE in instance.demands.splits else (False,)
    rows = [forms_in(instance, [Span(0, total)], sequence=one) for one in sequence]
    alike = [] if 1 in instance.constraints.tensor_parallel_degrees else [(form,) * total for form in FORMS]
    for wanted in (*rows, *alike):
        pairs = zip(wanted, instance.layers, strict=True)
        yield tuple(
            0 if row.split is Split.FOLLOW else one if one in forms_on(row, group) else min(forms_on(row, group))
            for one, row in pairs
        )


def divided(instance: Instance, groups: list[Group], forms: tuple[int, ...], *, again: bool) -> Iterator[Plan]:
    """Yield plans with as many atoms a stage, more in front or behind, and with the least largest stage."""
    space, many = CutSpace.of(instance), len(groups)
    rows = [[replace(one, name="") for one in instance.layers[a:b]] for a, b in space.atoms()]
    told = instance.constraints.recompute is Recompute.EVERY_BLOCK
    several = [told or rows.count(row) > 1 or all(rows.count(one) == 1 for one in rows) for row in rows]

    def planned(cuts: tuple[int, ...]) -> Plan:
        stages = []
        for (first, stop), group in zip(itertools.pairwise((0, *cuts, space.stops)), groups, strict=True):
            span = space.layers(Span(first, stop))
            runs = [space.layers(Span(at, at + 1)) for at in range(first, stop) if again and several[at]]
            stages.append(Stage(span, group, forms[span.first : span.stop], again=tuple(runs)))
        return Plan(tuple(stages))

    every = [planned(cuts) for cuts in itertools.combinations(range(1, space.stops), many - 1)]
    atoms = [[len(space.run(stage.span)) for stage in plan.stages] for plan in every]
    for plan, row in zip(every, atoms, strict=True):
        if max(row) - min(row) <= 1 and row in (sorted(row), sorted(row, reverse=True)):
            yield plan
    fitting = [plan for plan in every if evaluate(instance, plan).feasible]
    least = min((slowest(instance, plan) for plan in fitting), default=0)
    even = [plan for plan in fitting if slowest(instance, plan) == least]
    if even:  # of these the one whose first stages are full
        yield max(even, key=lambda plan: [stage.span.stop for stage in plan.stages])


def slowest(instance: Instance, plan: Plan) -> int:
    """Return what the slowest stage takes for a micro-batch, without what it may receive."""
    if instance.goals[0] is Goal.ITERATION_TIME:
        return max(one.total_ns - one.received_ns for one in evaluate(instance, plan).stages)
    passes = [stage_passes(instance, stage, halves=False) for stage in plan.stages]
    return max(one.forward_ns + one.backward_ns + one.again_ns for one in passes)


def best_of(choices: list[Instance], model: ShortModel) -> int | None:
    """Return the value of the best grid: priced in turn until none that is left promises less."""
    grids, best, before = Grids(model, NEVER), None, 0
    of = {one.training: one for one in choices}
    for found in grids.plans(of):
        assert found.promised >= before
        before = found.promised
        if best is not None and found.promised >= best:
            break
        priced = evaluate(of[found.training], grids.plan(found))
        assert priced.objective is not None and {one.rule for one in priced.violations} <= SEEN_LATER
        assert found.promised <= priced.objective
        if priced.feasible:
            best = priced.objective if best is None else min(best, priced.objective)
    return best


def no_grid_is_better(instance: Instance, model: ShortModel) -> None:
    """Hold the best grid over all numbers of micro-batches against every grid."""
    choices = [replace(instance, training=one) for one in instance.training.choices]
    priced = [evaluate(one, plan) for one in choices for plan in every_grid(one)]
    values = [one.objective for one in priced if one.feasible and one.objective is not None]
    best = best_of(choices, model)
    assert (best is None) == (not values)
    assert best is None or best <= min(values)


def judged(
    instance: Instance, goal: Goal, batches: tuple[int, ...] = (1, 2, 4), *, even: bool = False
) -> Instance:
    """Return an instance judged by the time of a step, of groups with one stage each; micro-batches are open.

    ``even``: replicas get equally many samples.
    """
    training = instance.training
    assume(training.schedule.flushes and training.chunks == 1 and not training.schedule.in_halves)
    batch = 12 * training.micro_batch
    training = replace(training, global_batch=batch, micro_batches=2, micro_batch_choices=batches)
    asked = replace(
        instance.constraints, equal_stages=even, one_mode=even, splits=(Axis.SEQUENCE,) if even else ()
    )
    cost = replace(instance.cost, combine=Combine.MAX)
    return replace(instance, goals=(goal,), training=training, cost=cost, constraints=asked)


def test_what_blocks_keep_is_that_of_their_own_micro_batches() -> None:
    """Of one micro-batch of sixteen no block fits beside another, of sixteen of one all do where all are rerun."""
    instance = blocks(16, 56 * 2**20, recompute=Recompute.BLOCKS)
    training = replace(instance.training, micro_batches=1, micro_batch_choices=(1, 16))
    instance = replace(instance, goals=(Goal.STEP_TIME,), training=training)
    last = replace(instance, training=replace(training, micro_batches=16, micro_batch_choices=()))
    among = best_of([instance.trained(one) for one in training.choices], shortened(instance))
    assert among == best_of([last], shortened(last)) == 122_054_602


@QUIET
@given(repeated(), GOALS, st.sampled_from([(1, 2, 4), (2, 3), (1,)]), st.booleans())
def test_no_grid_is_better_where_models_repeat_themselves(
    instance: Instance, goal: Goal, batches: tuple[int, ...], even: bool
) -> None:
    instance = judged(instance, goal, batches, even=even)
    no_grid_is_better(instance, shortened(instance))


@QUIET
@given(instances(layer_graphs(max_layers=4, places=True), cluster_graphs(max_devices=4)), GOALS)
def test_no_grid_is_better_of_any_model(instance: Instance, goal: Goal) -> None:
    instance = judged(instance, goal)
    no_grid_is_better(instance, ShortModel.itself(instance))


@QUIET
@given(repeated(), GOALS, st.sampled_from([(1, 2, 4), (2, 3), (4, 6), (2, 4, 6, 12)]), st.booleans())
def test_short_models_promise_what_whole_ones_do(
    instance: Instance, goal: Goal, batches: tuple[int, ...], even: bool
) -> None:
    instance = judged(instance, goal, batches, even=even)
    rows = [
        [one.promised for one in Grids(model, NEVER).plans(instance.training.choices)]
        for model in (shortened(instance), ShortModel.itself(instance))
    ]
    choices = instance.training.choices
    alone = [one.promised for some in choices for one in Grids(shortened(instance), NEVER).plans([some])]
    assert rows[0] == rows[1] == sorted(rows[0]) == sorted(alone)


def test_who_is_stopped_has_some_of_the_grids_that_were_priced() -> None:
    """They promise nothing, as others may be better, until all are known."""
    instance = replace(blocks(16, 56 * 2**20, recompute=Recompute.BLOCKS), goals=(Goal.STEP_TIME,))
    training = replace(instance.training, micro_batches=1, micro_batch_choices=(1, 2, 4, 8, 16))
    of = {one: instance.trained(one) for one in training.choices}
    model, late = shortened(replace(instance, training=training)), list[int]()
    every = [(one.promised, one.cuts) for one in Grids(model, NEVER).plans(of)]
    for looks in itertools.accumulate(itertools.count(1), lambda most, _: most + 1 + most // 8):
        clock, found = itertools.count(), list[GridPlan]()
        grids = Grids(model, Deadline(stopped=lambda: next(clock) >= looks))  # noqa: B023 (used here)
        with contextlib.suppress(StoppedError):
            for one in grids.plans(of):
                found.append(one)
        known = [one for one in found if one.promised]
        assert [(one.promised, one.cuts) for one in known] == every[: len(known)]
        assert all(evaluate(of[one.training], grids.plan(one)).objective is not None for one in found)
        late.append(len(found) - len(known))
        if len(known) == len(every):
            break
    assert 0 < max(late) <= LATE and late[-1] == 0


HALVES = (Schedule.ZERO_BUBBLE_H1, Schedule.ZERO_BUBBLE_V)


@QUIET
@given(repeated(), st.sampled_from(HALVES))
def test_passes_in_halves_have_the_same_grids_alone_and_together(instance: Instance, schedule: Schedule) -> None:
    same_alone_and_together(judged(instance, Goal.STEP_TIME, (2, 4, 12)), schedule)


@pytest.mark.parametrize("schedule", HALVES)
@pytest.mark.parametrize("mebibytes", [200, 300, 400])
def test_what_waits_between_two_halves_is_less_of_small_micro_batches(schedule: Schedule, mebibytes: int) -> None:
    """Also where it was priced of large ones, which do not fit."""
    instance = replace(blocks(32, mebibytes * 2**20, tensor_parallel_degrees=(1, 2, 4)), goals=(Goal.STEP_TIME,))
    training = replace(instance.training, micro_batches=1, micro_batch_choices=(1, 16))
    assert same_alone_and_together(replace(instance, training=training), schedule) > 0


def same_alone_and_together(instance: Instance, schedule: Schedule) -> int:
    """Hold the grids of all numbers of micro-batches against those of each alone; return how many there are."""
    chunks = 2 if schedule.in_a_v else 1
    training = replace(instance.training, schedule=schedule, warm_up="classic", chunks=chunks)
    instance = replace(instance, training=training)
    model, of = shortened(instance), {one: replace(instance, training=one) for one in training.choices}
    every = [(one.promised, one.training) for one in Grids(model, NEVER).plans(training.choices)]
    alone = [(one.promised, some) for some in of for one in Grids(model, NEVER).plans([some])]
    assert sorted(every, key=str) == sorted(alone, key=str)
    grids = Grids(model, NEVER)
    for one in itertools.islice(grids.plans(training.choices), 8):
        priced = evaluate(of[one.training], grids.plan(one))
        assert priced.objective is not None and {rule.rule for rule in priced.violations} <= SEEN_LATER
    return len(every)


def dealt_out(instance: Instance) -> Iterator[Plan]:
    """Yield grids of one training whose groups hold several stages, the first of which have an atom more."""
    training, space = instance.training, CutSpace.of(instance)
    for size in range(1, instance.devices // 2 + 1):
        ranks = instance.devices // size
        stages = ranks * training.chunks
        if any(one.devices % size for one in instance.servers) or not training.dealt_to(ranks):
            continue
        parts = [space.stops // stages + (at < space.stops % stages) for at in range(stages)]
        ends = [space.places[at] for at in itertools.accumulate(parts, initial=0)]
        for mode in (one for one in modes(instance, size) if one.grid == 1 and min(parts) > 0):
            groups = [Group.on_line(instance, at % ranks * size, size, mode) for at in range(stages)]
            for forms in dict.fromkeys(forms_of(instance, groups[0])):
                pairs = zip(itertools.starmap(Span, itertools.pairwise(ends)), groups, strict=True)
                yield Plan(tuple(Stage(span, one, forms[span.first : span.stop]) for span, one in pairs))


@QUIET
@given(repeated(alike(), 4), st.sampled_from([(2,), (1, 2), (1, 2, 3)]), st.sampled_from([2, 4]))
def test_no_grid_is_better_where_groups_hold_several_stages(
    instance: Instance, chunks: tuple[int, ...], least: int
) -> None:
    instance = judged(instance, Goal.STEP_TIME, (least, 6))
    training = replace(
        instance.training,
        schedule=Schedule.ONE_F_ONE_B,
        warm_up="classic",
        chunks=chunks[-1],
        chunk_choices=chunks if len(chunks) > 1 else (),
    )
    instance = replace(instance, training=training)
    choices = [one for one in training.choices if one.chunks > 1]
    several = [replace(instance, training=one) for one in choices]
    priced = [evaluate(one, plan) for one in several for plan in dealt_out(one)]
    values = [one.objective for one in priced if one.feasible and one.objective is not None]
    best = best_of(several, shortened(instance))
    assert not values or (best is not None and best <= min(values))


def test_a_grid_is_told_and_said_as_people_write_it() -> None:
    """256 blocks of two products on two servers of four cards; what a search leaves is no worse."""
    instance = replace(blocks(256, 10**12, tensor_parallel_degrees=(1, 2, 4)), goals=(Goal.STEP_TIME,))
    told: list[Progress] = []
    grid = best_grid(instance, Limits(progress=told.append))
    assert grid is not None and isinstance(told[-1], GridTold) and told[-1].grid == grid
    assert evaluate(grid.instance, grid.plan).objective == grid.objective == told[-1].objective
    group, many = grid.plan.stages[0].group, len(grid.plan)
    words = f"(tp {group.tensor_parallel_degree}, pp {many}, dp {group.replicas}, ZeRO 0, 8 micro-batches)"
    nothing = Outcome("nobody", Proof.UNKNOWN, bound=1, goals=instance.goals)
    about, kept = grid.no_worse(instance, nothing)
    assert (about, kept.plan, kept.objective, kept.bound) == (instance, grid.plan, grid.objective, 1)
    assert kept.proof is Proof.FEASIBLE and grid.beside(about, kept) == f"this plan {words}"
    worse = replace(kept, objective=(kept.objective or 0) + 1)
    assert grid.no_worse(instance, worse)[1].objective == grid.objective
    better = replace(nothing, plan=Plan(grid.plan.stages[:1]), objective=grid.objective // 2)
    assert grid.no_worse(instance, better) == (instance, better)
    assert grid.beside(instance, better).endswith(f" ms, 100 % slower {words}")
    priced = replace(instance, goals=(Goal.COST,))
    assert grid.beside(priced, better).endswith(f" per hour, 100 % more {words}")
    assert grid.beside(priced, replace(better, objective=0)).endswith(f" per hour {words}")
    assert grid.fields()["stages"] == many and grid.fields()["objective"] == grid.objective
    assert best_grid(replace(blocks(16, 10**12), goals=(Goal.STEP_TIME,)), Limits()) is None


@pytest.mark.slow
@pytest.mark.parametrize("number", [8, 256])
@pytest.mark.parametrize("choices", [(), (2, 3)])
def test_a_grid_stands_where_no_method_takes_the_question(number: int, choices: tuple[int, ...]) -> None:
    """Groups hold several stages, and layers are divided: nobody searches all of these plans."""
    instance = replace(blocks(number, 10**12, tensor_parallel_degrees=(1, 2, 4)), goals=(Goal.STEP_TIME,))
    instance = replace(instance, training=replace(instance.training, chunks=2, chunk_choices=choices))

    def unable(one: Instance, limits: Limits) -> Outcome:
        raise TooLargeError("one form a layer")

    grid = best_grid(instance, Limits())
    about, claim = decide(instance, unable, Limits())
    assert grid is not None and (about.training, claim.plan) == (grid.instance.training, grid.plan)
    assert claim.proof is Proof.FEASIBLE and claim.objective == grid.objective >= (claim.bound or 0) > 0
    assert any("one form a layer" in note for note in claim.notes)
    alone = replace(instance, training=replace(instance.training, chunks=1, chunk_choices=()))
    with pytest.raises(ValueError, match="one form a layer"):
        decide(
            replace(alone, constraints=replace(alone.constraints, tensor_parallel_degrees=(3,))), unable, Limits()
        )


def test_there_is_none_where_no_group_may_be() -> None:
    instance = replace(blocks(8, 10**12, tensor_parallel_degrees=(3,)), goals=(Goal.STEP_TIME,))
    assert list(Grids(ShortModel.itself(instance), NEVER).plans([instance.training])) == []


def with_dealt(instance: Instance, numbers: tuple[int, ...] = (2, 3, 4)) -> Instance:
    """Return an instance that looks at grids whose groups hold so many stages."""
    return replace(instance, training=replace(instance.training, dealt=numbers))


def test_a_grid_whose_groups_hold_several_stages_is_the_answer_where_it_is_better() -> None:
    instance = replace(blocks(256, 10**12, tensor_parallel_degrees=(1, 2, 4)), goals=(Goal.STEP_TIME,))
    asked = with_dealt(instance)
    grid = best_grid(instance, Limits())
    assert grid is not None
    dealt = DealtGrids.of(asked, grid.step, Limits())
    assert dealt.grid is not None and dealt.whole and dealt.bound == dealt.grid.step < grid.step
    chosen, claim = decide(asked, nobody, Limits())
    assert (chosen.training.chunks, claim.plan) == (dealt.grid.instance.training.chunks, dealt.grid.plan)
    assert (
        chosen.training.chunks in asked.training.dealt and f", vp {chosen.training.chunks}, " in dealt.grid.words
    )
    assert evaluate(chosen, dealt.grid.plan).objective == claim.objective == dealt.grid.step
    assert claim.proof is Proof.FEASIBLE and claim.bound == 0  # nobody said anything of all other plans
    assert "interleaved grids" in searched(chosen) and "uneven interleaved stages" in not_searched(chosen)
    said = {"chunks": chosen.training.chunks, "micro_batches": 8}
    assert asked.training.chosen(said) == chosen.training and asked.training.chosen({"chunks": 7}) is None
    assert decide(instance, nobody, Limits())[0].training.chunks == 1


@pytest.mark.parametrize(("found", "value"), [(Proof.OPTIMAL, 1), (Proof.FEASIBLE, 0), (Proof.INFEASIBLE, 0)])
def test_what_is_claimed_holds_for_plans_of_one_stage_a_group_and_for_grids(found: Proof, value: int) -> None:
    """Whoever claims that all others take ``value`` or more, and what stands then over the better grid."""
    instance = replace(blocks(256, 10**12, tensor_parallel_degrees=(1, 2, 4)), goals=(Goal.STEP_TIME,))
    asked, grid = with_dealt(instance), best_grid(instance, Limits())
    assert grid is not None

    def somebody(one: Instance, limits: Limits) -> Outcome:
        if found is Proof.INFEASIBLE:
            return Outcome("somebody", found, goals=one.goals)
        return Outcome("somebody", found, grid.plan, grid.objective, grid.objective * value, goals=one.goals)

    if found is Proof.INFEASIBLE:
        with pytest.raises(FalseClaimError):
            decide(asked, somebody, Limits())
        return
    chosen, claim = decide(asked, somebody, Limits())
    assert chosen.training.chunks > 1 and (claim.proof is Proof.OPTIMAL) is (value == 1)
    assert (claim.bound or 0) == (claim.objective or 0) * value


def test_of_grids_that_there_was_no_time_for_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one that is better the claim is about one stage a group alone; with one it is about both."""
    instance = replace(blocks(256, 10**12, tensor_parallel_degrees=(1, 2, 4)), goals=(Goal.STEP_TIME,))
    asked, grid, told = with_dealt(instance), best_grid(instance, Limits()), list[Progress]()
    assert grid is not None
    standing, every = Standing(asked), DealtGrids.of(asked, grid.step, Limits())

    def somebody(one: Instance, limits: Limits) -> Outcome:
        limits.progress(Progress(grid.objective, grid.objective, grid.plan, one, whole=True))
        return Outcome("somebody", Proof.OPTIMAL, grid.plan, grid.objective, grid.objective, goals=one.goals)

    def hear(progress: Progress) -> None:
        told.append(progress)
        standing.hear(progress)

    monkeypatch.setattr(DealtGrids, "of", lambda *_: DealtGrids(whole=False))
    chosen, claim = decide(asked, somebody, Limits(progress=hear))
    assert chosen.training.dealt == () and claim.proof is Proof.OPTIMAL
    assert "interleaved grids" not in searched(chosen) and claim.notes[0].startswith("interleaved grids are left")
    about, left = standing.outcome("somebody", 1.0)
    assert about.training.dealt == () and left.bound == grid.objective
    some = replace(every, bound=every.bound // 2, whole=False)
    monkeypatch.setattr(DealtGrids, "of", lambda *_: some)
    chosen, claim = decide(asked, somebody, Limits(progress=told.append))
    assert (chosen.training.dealt, claim.bound, claim.proof) == ((2, 3, 4), some.bound, Proof.FEASIBLE)
    assert told[-1].bound == some.bound
    bound = Standing(asked).outcome("nobody", 1.0)[1].bound
    assert bound == lower_bound(replace(asked, training=asked.training.choices_of_grids[0]))


@QUIET
@given(repeated(alike(), 4), st.integers(2, 3), st.integers(1, 99))
def test_grids_below_a_value_are_those_that_would_be_found_without_it(
    instance: Instance, chunks: int, percent: int
) -> None:
    instance = judged(instance, Goal.STEP_TIME, (2, 6))
    training = replace(instance.training, schedule=Schedule.ONE_F_ONE_B, warm_up="classic", dealt=(chunks,))
    instance = replace(instance, training=training)
    every = DealtGrids.of(instance, None, Limits())
    assume(every.grid is not None)
    value = every.grid.step if every.grid is not None else 0
    grids = Grids(shortened(instance), NEVER)
    for one in itertools.islice(grids.plans(training.choices_of_grids), 20):
        priced = evaluate(replace(instance, training=one.training), grids.plan(one))
        assert priced.objective is not None and one.promised <= priced.objective
    for below in (value * percent // 100 or 1, value, value + 1):
        found = DealtGrids.of(instance, below, Limits())
        assert found.whole and found.bound == min(below, value)
        assert (found.grid is None) is (below <= value)


@pytest.mark.slow
def test_where_there_is_no_time_for_interleaved_grids_the_best_other_one_is_begun_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All numbers of micro-batches are searched together then, from a grid that was one of those asked about."""
    limits = {"tensor_parallel_degrees": (4,), "devices_per_stage": (4,)}
    instance = replace(blocks(256, 10**12, **limits), goals=(Goal.STEP_TIME,))
    training = replace(instance.training, micro_batch_choices=(4, 8))
    asked = with_dealt(replace(instance, training=training))
    monkeypatch.setattr(DealtGrids, "of", lambda *_: DealtGrids(whole=False))
    monkeypatch.setattr("pipecut.solvers.choices.trainings.is_reduced", lambda _: True)
    chosen, claim = decide(asked, nobody, Limits())
    grid = best_grid(asked, Limits())
    assert grid is not None and claim.proof is Proof.OPTIMAL and (claim.objective or 0) <= grid.objective
    assert chosen.training.dealt == () and claim.notes[0].startswith("interleaved grids are left out")


def test_time_is_kept_for_grids_that_there_was_too_little_for_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search takes all the time that it has, and the best plan may be such a grid."""
    instance = replace(blocks(256, 10**12, tensor_parallel_degrees=(1, 2, 4)), goals=(Goal.STEP_TIME,))
    asked, grid, first, whole = with_dealt(instance), best_grid(instance, Limits()), [DealtGrids(whole=False)], 80
    of, ends = DealtGrids.of, list[float]()
    monkeypatch.setattr(DealtGrids, "of", lambda *words: first.pop() if first else of(*words))
    assert grid is not None

    def somebody(one: Instance, limits: Limits) -> Outcome:
        ends.append(limits.end_s or 0)
        return Outcome("somebody", Proof.FEASIBLE, grid.plan, grid.objective, 0, goals=one.goals)

    limits = Limits(time_limit_s=whole).begun()
    chosen, claim = decide(asked, somebody, limits)
    assert chosen.training.chunks > 1 and (claim.objective or 0) < grid.objective and not first
    assert limits.end_s is not None and max(ends) < limits.end_s - whole / 10


@pytest.mark.slow
@settings(QUIET, max_examples=so_many(20))
@given(repeated(alike(), 4), st.sampled_from([(2,), (2, 3)]), st.sampled_from([(1, 2, 6), (4, 6)]), st.booleans())
def test_a_claim_over_both_is_that_of_the_better_one(
    instance: Instance, dealt: tuple[int, ...], batches: tuple[int, ...], even: bool
) -> None:
    """Held against what is proved of one stage a group alone, and against the price of every grid."""
    instance = judged(instance, Goal.STEP_TIME, batches, even=even)
    training = replace(
        instance.training, schedule=Schedule.ONE_F_ONE_B, warm_up="classic", micro_batches=batches[0]
    )
    instance = replace(instance, training=training)
    _, alone = decide(instance, auto, Limits(workers=1))
    assume(alone.proof in (Proof.OPTIMAL, Proof.INFEASIBLE))
    asked = with_dealt(instance, dealt)
    several = [replace(asked, training=one) for one in asked.training.choices_of_grids]
    priced = [evaluate(one, plan) for one in several for plan in dealt_out(one)]
    values = [one.objective for one in priced if one.feasible]
    least = min((one for one in (alone.objective, *values) if one is not None), default=None)
    _, claim = decide(asked, auto, Limits(workers=1))
    if least is None:  # grids are cut in other ways too
        assert claim.proof is Proof.INFEASIBLE or claim.objective is not None
        return
    assert (claim.bound or 0) <= least and claim.proof is not Proof.INFEASIBLE
    assert claim.proof is not Proof.OPTIMAL or (claim.objective or 0) <= least


def nobody(instance: Instance, limits: Limits) -> Outcome:
    """Find nothing at all."""
    return Outcome("nobody", Proof.UNKNOWN, goals=instance.goals)
