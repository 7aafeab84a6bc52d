"""The model over types of stages against the price of every plan, and its relaxation against the whole model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.passes import stage_passes
from pipecut.formulation.costs.times import activation_ns, gradient_ns
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers import exhaustive
from pipecut.solvers.cpsat.engine import make_solver
from pipecut.solvers.cpsat.on_types import cpsat_types as search
from pipecut.solvers.cpsat.on_types.accepts_types import FORMULAS, accepts
from pipecut.solvers.cpsat.on_types.counts import CountModel
from pipecut.solvers.cpsat.on_types.cpsat_types import critical_path, solve, space_of
from pipecut.solvers.cpsat.on_types.type_model import FAMILIES, TypeModel, TypeQuestion, along
from pipecut.solvers.cpsat.on_types.type_words import model_words
from pipecut.solvers.exhaustive import plans
from pipecut.solvers.reduce.programme import Cell
from tests.generators import cluster_graphs
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import freed, has_groups
from tests.solvers.priced import few_plans
from tests.solvers.reduce.test_reduced import as_seen, limited, repeated
from tests.solvers.test_stopped_anywhere import example

ONE = Limits(workers=1)
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
GOALS = st.sampled_from(FORMULAS)


def _seen(instance: Instance) -> None:
    assume(has_groups(instance) and accepts(instance).takes and few_plans(instance))


@st.composite
def demanding(draw: st.DrawFn) -> Instance:
    """Models that repeat themselves, with layers to be apart, in a stage, and limits on other goals."""
    instance = as_seen(draw(repeated()))
    names = [layer.name for layer in instance.layers]
    asked = instance.constraints
    if draw(st.booleans()):
        pair = draw(st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True))
        asked = replace(asked, apart=(tuple(pair),))
    if draw(st.booleans()):
        asked = replace(asked, pins=(Pin(draw(st.sampled_from(names)), stage=draw(st.integers(-2, 1))),))
    if draw(st.booleans()):
        asked = replace(asked, stages_at_least=draw(st.integers(1, 2)), stages_at_most=draw(st.integers(2, 3)))
    instance = replace(instance, constraints=asked, goals=(draw(GOALS),))
    _seen(instance)
    best = exhaustive.solve(instance)
    if best.plan is not None and draw(st.booleans()):
        goal = draw(GOALS)
        worth = evaluate(replace(instance, goals=(goal,)), best.plan).objective or 0
        limit = GoalLimit(goal, worth + draw(st.integers(-1, 1)) * (worth // 10))
        instance = replace(instance, constraints=replace(asked, at_most=(limit,)))
    return instance


def _agrees(instance: Instance) -> None:
    """With and without counts, which leave the whole model little to do."""
    truth = exhaustive.solve(instance)
    for efforts in (search.EFFORTS, ()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "EFFORTS", efforts)
            found = checked(instance, solve(instance, ONE))
        assert (found.proof, found.objective) == (truth.proof, truth.objective)


@pytest.mark.slow
@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(freed(goals=st.just(Goal.ITERATION_TIME)), st.integers(1, 6), GOALS)
def test_it_proves_what_pricing_every_plan_does(instance: Instance, micro_batches: int, goal: Goal) -> None:
    instance = replace(as_seen(instance, micro_batches), goals=(goal,))
    _seen(instance)
    _agrees(instance)


@pytest.mark.slow
@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(repeated(cluster_graphs(max_devices=4)), GOALS)
def test_models_that_repeat_themselves_are_proved(instance: Instance, goal: Goal) -> None:
    """With links of several speeds, uneven servers, ZeRO, tensor parallelism, memory and blocks computed again."""
    instance = replace(as_seen(instance), goals=(goal,))
    assume(instance.devices * len(instance.layers) <= 20)
    _seen(instance)
    _agrees(instance)


def _executed(instance: Instance) -> None:
    """A proof has the least step, and any other answer a bound that no plan is below."""
    try:
        instance = replace(instance, goals=(Goal.STEP_TIME,))
    except ValueError:  # not every pipeline is executed
        assume(condition=False)
    _seen(instance)
    truth = exhaustive.solve(instance)
    for efforts in (search.EFFORTS, ()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "EFFORTS", efforts)
            found = checked(instance, solve(instance, ONE))
        assert found.objective == truth.objective
        if found.proof is Proof.FEASIBLE:
            assert found.bound is not None and truth.objective is not None and found.bound < truth.objective
        else:
            assert found.proof is truth.proof


@pytest.mark.slow
@settings(max_examples=so_many(200), deadline=None, suppress_health_check=QUIET)
@given(repeated(cluster_graphs(max_devices=4)), st.integers(1, 6))
def test_the_critical_path_of_one_plan_bounds_every_plan_with_as_many_stages(
    instance: Instance, micro_batches: int
) -> None:
    """As it is a row of the model: pairs of passes, and both ways over boundaries."""
    try:
        instance = replace(as_seen(instance, micro_batches), goals=(Goal.STEP_TIME,))
    except ValueError:
        assume(condition=False)
    _seen(instance)
    some = sorted(itertools.islice(plans(instance), 600), key=len)[::-9]
    for one, other in itertools.product(some[:20], repeat=2):
        if len(one) != len(other):
            continue
        stages, boundaries = along(critical_path(instance, one))
        passes = [stage_passes(instance, stage, halves=False) for stage in reversed(other.stages)]
        pairs = [of.forward_ns + of.backward_ns + of.again_ns for of in passes]
        whole = [pair + of.sync_ns // micro_batches for pair, of in zip(pairs, passes, strict=True)]
        total = sum(many * (whole if end else pairs)[at] for at, (many, end) in enumerate(stages))
        for at, many in enumerate(boundaries):
            index = len(other) - 1 - at
            where = other.stages[index].span.first, other.link_before(instance, index)
            total += many * (activation_ns(instance, *where) + gradient_ns(instance, *where))
        step = evaluate(instance, other).objective
        assert step is None or total <= step


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(freed(goals=st.just(Goal.ITERATION_TIME)), st.integers(1, 6))
def test_the_least_executed_step_is_found(instance: Instance, micro_batches: int) -> None:
    _executed(as_seen(instance, micro_batches))


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(repeated(cluster_graphs(max_devices=4)), st.integers(1, 3))
def test_the_least_executed_step_of_models_that_repeat_themselves(instance: Instance, stages: int) -> None:
    asked = replace(instance.constraints, stages_at_least=stages)
    instance = replace(as_seen(instance), constraints=asked)
    assume(instance.devices >= stages and instance.devices * len(instance.layers) <= 20)
    _executed(instance)


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(st.one_of(demanding(), limited().map(as_seen)))
def test_demands_that_programmes_over_suffixes_do_not_see_are_kept(instance: Instance) -> None:
    _seen(instance)
    _agrees(instance)


@pytest.mark.slow
@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(repeated(cluster_graphs(max_devices=4)), st.integers(2, 3), GOALS)
def test_the_best_plan_of_a_number_of_stages_is_found(instance: Instance, stages: int, goal: Goal) -> None:
    """Where one stage would be best: what crosses boundaries counts."""
    asked = replace(instance.constraints, stages_at_least=stages, stages_at_most=stages)
    instance = replace(as_seen(instance, 2), constraints=asked, goals=(goal,))
    assume(instance.devices >= stages)
    _seen(instance)
    _agrees(instance)


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(repeated(), GOALS)
def test_the_best_plan_is_left_in_by_both_models(instance: Instance, goal: Goal) -> None:
    """Counts take no more than the whole model, and that no more than the best plan with as many stages."""
    instance = replace(as_seen(instance), goals=(goal,))
    _seen(instance)
    truth = exhaustive.solve(instance)
    assume(truth.objective is not None and truth.plan is not None)
    best, plan = truth.objective or 0, truth.plan or Plan(())
    ask = TypeQuestion.of(space_of(instance, ONE.begun()), len(plan), best)
    counts, types = CountModel.of(ask), TypeModel.of(ask)
    assert counts is not None and types is not None
    values = []
    for one in (counts, types):
        if not isinstance(one.value, int):
            one.model.minimize(one.value)
        engine = make_solver(ONE.begun())
        assert engine.status_name(engine.solve(one.model)) == "OPTIMAL"
        values.append(engine.value(one.value))
    assert values[0] <= values[1] <= best


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(repeated())
def test_a_value_just_above_the_best_plan_rules_it_out_nowhere(instance: Instance) -> None:
    instance = replace(as_seen(instance), goals=(Goal.ITERATION_TIME,))
    _seen(instance)
    best = exhaustive.solve(instance).objective
    assume(best is not None)
    found = solve(instance, replace(ONE, below=(best or 0) + 1))
    assert (found.proof, found.objective) == (Proof.OPTIMAL, best)
    none = solve(instance, replace(ONE, below=best))
    assert none.plan is None and none.bound == best


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=QUIET)
@given(demanding())
def test_the_model_says_what_it_is(instance: Instance) -> None:
    """Its own numbers of variables and rows, and of each family with its formula."""
    title, *sections = model_words(instance, ONE)
    model = TypeModel.of(_asked_first(instance))
    if model is None:
        assert [one.title for one in sections] == ["model"]
        return
    said = {re.sub(r"^[\d,]+ ", "", one.title): (_number(one.title), one.rows) for one in sections}
    total, rows = said["constraints"]
    assert total == len(model.model.proto.constraints) == sum(_number(text) for _, text in rows)
    assert [name for name, _ in rows] == [name for name in FAMILIES if model.rows[name]]
    assert all(text.split(": ", 1)[1] for _, text in rows)
    total, rows = said["variables"]
    assert total == len(model.model.proto.variables) == sum(_number(text) for _, text in rows)
    assert said["types of stages"][0] == sum(map(len, model.types))
    limits = [text for name, text in title.rows if name == "limit"]
    assert len(limits) == len(instance.constraints.at_most)


def _number(text: str) -> int:
    found = re.match(r"[\d,]+", text)
    return int(found.group().replace(",", "")) if found else 0


def _asked_first(instance: Instance) -> TypeQuestion:
    """Ask for plans with as many stages as the first one, that are better."""
    space, known = space_of(instance, ONE.begun()), search.most_of(instance) + 1
    plan = search.proposed(space.stages)
    priced = None if plan is None else evaluate(instance, plan)
    if plan is None or priced is None or not priced.feasible or priced.objective is None:
        return TypeQuestion.of(space, space.stages.numbers[0], known - 1)
    return TypeQuestion.of(space, len(plan), min(known, priced.objective) - 1)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(repeated(cluster_graphs(max_devices=4)))
def test_a_type_that_is_called_exact_takes_what_its_stages_do(instance: Instance) -> None:
    """Settling them changes nothing."""
    instance = replace(as_seen(instance), goals=(Goal.ITERATION_TIME,))
    assume(instance.devices * len(instance.layers) <= 20)
    _seen(instance)
    space = space_of(instance, ONE.begun())
    for stages in range(space.stages.numbers[0], space.stages.numbers[1] + 1):
        for slot in range(stages):
            for one in space.of_slot(slot, stages, FORBIDDEN - 1):
                seats = [x for x in range(space.line.devices) if x % space.period in one.rests]
                cells = [Cell(x, one.size, first, first + one.atoms) for x in seats for first in one.starts]
                exact = space.is_exact(slot, one)
                changed = [space.stages.settle(cell, slot, FORBIDDEN - 1) for cell in cells if space.stands(cell)]
                assert not (exact and any(changed))
                assert space.is_exact(slot, one) or changed


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["atoms", "devices", "places", "slowest"])
def test_without_a_family_the_model_says_something_else(family: str) -> None:
    """Beside the classes of atoms, which follow from the others, and one type a stage, which a ladder asks for."""
    space = space_of(replace(example(), goals=(Goal.ITERATION_TIME,)), ONE.begun())
    rest = FAMILIES.keys() - {"classes"}

    def values(families: Collection[str]) -> list[object]:
        found = list[object]()
        for stages in range(1, 5):
            model = TypeModel.of(TypeQuestion.of(space, stages, 10**9), families)
            assert model is not None
            model.model.minimize(model.value)
            engine = make_solver(ONE.begun())
            optimal = engine.status_name(engine.solve(model.model)) == "OPTIMAL"
            found.append(engine.value(model.value) if optimal else None)
        return found

    assert values(FAMILIES) == values(rest) != values(rest - {family})
