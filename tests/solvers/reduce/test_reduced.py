"""The search on the atoms of deep models against the price of every plan, and its parts against the evaluator."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations, islice
from unittest import mock

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.costs.memory_tables import most_bytes
from pipecut.formulation.costs.tables import all_tables, build_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute, Sharded
from pipecut.formulation.problem.instance import FORBIDDEN, Instance, build_instance
from pipecut.formulation.problem.layers import Axis, Split, layer_graph
from pipecut.formulation.problem.options import BoundaryCharge, StageTime
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.reduce.cells import PricedPasses
from pipecut.solvers.reduce.executed.compositions import Compositions
from pipecut.solvers.reduce.executed.leaves import Leaves, counted_passes
from pipecut.solvers.reduce.executed.slowest import SlowestFirst
from pipecut.solvers.reduce.jointly import Jointly
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.reduce.reduced_dp import accepts, solve
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from pipecut.solvers.reduce.seats import SeatLine
from pipecut.solvers.reduce.word import Word
from pipecut.solvers.search.support import capped
from tests.enumerator import every_plan
from tests.examples import chain, follow, instance_of, matrix, mesh, on_servers
from tests.generators import cluster_graphs, cost_models, layer_graphs
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import freed, has_groups
from tests.solvers.priced import few_plans
from tests.solvers.search.test_fitting import blocks
from tests.solvers.step_time.test_formula import paced

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


FEW = cluster_graphs(max_devices=3)
NUMBERS = [(None, None), (None, None), (2, None), (None, 2), (2, 2), (3, None)]
"""Of stages, at least and at most."""


@st.composite
def repeated(draw: st.DrawFn, clusters: st.SearchStrategy[nx.Graph] = FEW, least: int = 2) -> Instance:
    """A few layers that follow themselves ``least`` times or more, between others that stand once."""
    block = draw(layer_graphs(max_layers=2, tied=False))
    times, first = draw(st.integers(least, max(4, least))), draw(st.booleans())
    rows, edges = [], []
    for number in range(times):
        names = {name: f"{name}.{number}" for name in block}
        rows += [replace(block.nodes[name]["layer"], name=names[name]) for name in block]
        edges += [(names[one], names[two], size) for one, two, size in block.edges(data="bytes")]
        if number:
            before = [name for name in block][-1]
            edges.append((f"{before}.{number - 1}", names[next(iter(block))], draw(st.just(70))))
    if first:
        rows[0] = replace(rows[0], macs=rows[0].macs + 1)
    shared = draw(st.sampled_from([0, 0, 40]))
    if shared:  # the first layer of every block has the same weights, which count at the first one
        rows[0] = replace(rows[0], parameter_bytes=rows[0].parameter_bytes + shared, trainable_bytes=None)
    layers = layer_graph("repeated", rows, edges)
    names = tuple(f"{next(iter(block))}.{number}" for number in range(times))
    layers.graph["ties"] = ((names, shared, shared),) if shared else ()
    constraints = Constraints(
        memory=draw(st.booleans()),
        tensor_parallel_degrees=draw(st.sampled_from([(), (1,), (1, 2)])),
        recompute=draw(st.sampled_from(list(Recompute))),
        sharded=draw(st.sampled_from([(Sharded.NONE,), (Sharded.NONE, Sharded.OPTIMIZER), tuple(Sharded)])),
    )
    size = draw(st.integers(1, 5))
    training = Training(global_batch=size, micro_batches=size)
    found = build_instance(layers, draw(clusters), training, draw(cost_models))
    return replace(found, constraints=constraints)


DEEP = repeated(least=6)
"""Of which the short model has fewer layers."""


@st.composite
def demanding(draw: st.DrawFn) -> Instance:
    """Such models whose plans have so many stages, or stages with equally many devices and replicas."""
    instance, (least, most) = draw(repeated()), draw(st.sampled_from(NUMBERS))
    equal = draw(st.booleans())
    asked = replace(
        instance.constraints,
        equal_stages=equal,
        one_mode=equal and draw(st.booleans()),
        stages_at_least=least,
        stages_at_most=most,
    )
    return replace(instance, constraints=asked)


def _priced(draw: st.DrawFn, one: DeviceClass, sizes: st.SearchStrategy[int]) -> DeviceClass:
    room = max(1, draw(sizes)) if draw(st.booleans()) else one.memory_bytes
    return replace(one, memory_bytes=room, price_per_hour=draw(st.integers(0, 3)))


@st.composite
def limited(draw: st.DrawFn) -> Instance:
    """Such models of which plans may have so much memory, so many stages or devices, dear ones, or some forms."""
    instance = draw(st.one_of(repeated(cluster_graphs(max_devices=4)), DEEP))
    bytes_ = st.integers(5, 100).map(lambda percent: most_bytes(instance) * percent // 100)
    servers = [
        replace(one, device_class=_priced(draw, one.device_class, bytes_)) for one in instance.cluster.servers
    ]
    sizes = {
        Goal.MEMORY: bytes_,
        Goal.STAGES: st.integers(0, 3),
        Goal.DEVICES: st.integers(0, instance.devices),
        Goal.COST: st.integers(0, 2 * instance.devices),
    }
    goals = draw(st.lists(st.sampled_from(list(sizes)), min_size=1, max_size=2, unique=True))
    choosing = [one for one in instance.layers if one.split is not Split.FOLLOW]
    forms = []
    if choosing and draw(st.booleans()):
        layer = draw(st.sampled_from(choosing))
        some = st.lists(st.sampled_from(layer.allowed_forms), min_size=1, unique=True)
        forms.append(FormLimit(layer.name, tuple(draw(some))))
    asked = replace(
        instance.constraints,
        at_most=tuple(GoalLimit(goal, draw(sizes[goal])) for goal in goals),
        forms=tuple(forms),
        splits=(Axis.SEQUENCE,) if draw(st.booleans()) else (),
    )
    return replace(instance, cluster=replace(instance.cluster, servers=tuple(servers)), constraints=asked)


def as_seen(instance: Instance, micro_batches: int | None = None) -> Instance:
    """The same instance as the reduction can see it: a step of 1F1B on the line, whose times are added up."""
    instance = paced(instance, micro_batches)
    added = replace(instance.cost, stage_time=StageTime.ADD, boundary_charge=BoundaryCharge.LINK)
    training = replace(instance.training, schedule=Schedule.ONE_F_ONE_B, warm_up="classic")
    line = replace(instance.constraints, placement=Placement.LINE)
    return replace(instance, cost=added, training=training, constraints=line)


def _seen(instance: Instance) -> None:
    assume(has_groups(instance) and accepts(instance).takes and few_plans(instance))


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(freed(goals=st.just(Goal.ITERATION_TIME)), st.integers(1, 6))
def test_the_formula_is_proved_as_by_pricing_every_plan(instance: Instance, micro_batches: int) -> None:
    instance = as_seen(instance, micro_batches)
    _seen(instance)
    found, truth = solve(instance, Limits()), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(st.one_of(repeated(), DEEP, demanding(), limited()))
def test_models_that_repeat_themselves_are_proved_as_by_pricing_every_plan(instance: Instance) -> None:
    instance = as_seen(instance)
    _seen(instance)
    found, truth = solve(instance, Limits()), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)


@pytest.mark.parametrize("solver", ["reduced_dp", "step_dp", "state_dp"])
def test_a_layer_that_follows_nothing_is_not_taken_for_one_that_follows_a_product(solver: str) -> None:
    """The first layer lies by rows alone, the third, which costs the same in every form, as the product does."""
    rows = [replace(follow("a"), macs=6), matrix("b", weights=1000), replace(follow("c"), macs=6)]
    layers = chain([*rows, matrix("d", weights=1000)], [0, 0, 0])
    instance = instance_of(layers, mesh(1, 1, between=Link(30_000_000)))
    goal = Goal.BOTTLENECK if solver == "state_dp" else Goal.ITERATION_TIME
    instance = replace(instance, constraints=Constraints(memory=True), goals=(goal,))
    found, truth = find_any(solver).load()(instance, Limits()), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (Proof.OPTIMAL, truth.objective)


@pytest.mark.few(20)
@pytest.mark.parametrize("solver", ["reduced_dp", "cpsat_types"])
@pytest.mark.parametrize("forms", [row for many in range(1, 6) for row in combinations(range(5), many)])
def test_what_follows_may_lie_as_the_product_does_though_that_may_not_lie_otherwise(
    forms: tuple[int, ...], solver: str
) -> None:
    """A layer costs the same by columns and by rows of the sequence: one of these stands for both behind a cut."""
    layers = chain([matrix("a", macs=8, weights=4, made=40, allowed=forms), follow("b", weights=16)], [0])
    instance = instance_of(layers, mesh(2))
    asked = Constraints(memory=True, devices_per_stage=(2,), tensor_parallel_degrees=(2,))
    instance = replace(instance, constraints=asked, goals=(Goal.ITERATION_TIME,))
    found, truth = find_any(solver).load()(instance, Limits()), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (Proof.OPTIMAL, truth.objective)


@pytest.mark.few(10)
@pytest.mark.parametrize("forms", [row for many in range(1, 6) for row in combinations(range(5), many)])
def test_no_plan_as_executed_has_a_form_that_the_product_does_not_have(forms: tuple[int, ...]) -> None:
    """No memory is limited that would tell which forms there are; devices of a replica stand in three servers."""
    rows = [matrix("a", macs=2, made=10, allowed=(0,)), matrix("b", weights=100, made=100, allowed=forms)]
    layers = chain([*rows, matrix("c", macs=101, weights=1, allowed=(0, 3))], [100, 0])
    asked = Constraints(tensor_parallel_degrees=(4,), splits=(Axis.SEQUENCE,))
    instance = as_seen(replace(instance_of(layers, mesh(1, 2, 1)), constraints=asked), 2)
    instance = replace(instance, goals=(Goal.STEP_TIME,))
    found, truth = solve(instance, Limits()), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (Proof.OPTIMAL, truth.objective)


@pytest.mark.slow
@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(st.one_of(repeated(), DEEP, demanding(), limited()), st.sampled_from([0, 12_000]))
def test_no_plan_is_below_the_bound_of_the_executed_step(instance: Instance, told_apart: int) -> None:
    """Also where no more suffixes are told apart by their devices, and places of the line by others behind it."""
    instance = replace(as_seen(instance), goals=(Goal.STEP_TIME,))
    _seen(instance)
    with mock.patch("pipecut.solvers.reduce.by_count.MOST", told_apart):
        found, truth = solve(instance, Limits()), exhaustive.solve(instance)
    assert (truth.objective is None) <= (found.plan is None)
    if truth.objective is not None:
        assert found.bound is not None and found.bound <= truth.objective
    if found.plan is not None:
        assert evaluate(instance, found.plan).objective == found.objective
        assert found.objective is not None and truth.objective is not None and found.objective >= truth.objective
    if found.proof is Proof.OPTIMAL:
        assert found.objective == truth.objective
    if instance.constraints.memory:  # else the ways to run a stage are not listed
        assert found.proof is truth.proof


@pytest.mark.slow
@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(st.one_of(repeated(), demanding(), limited()), st.sampled_from([Goal.ITERATION_TIME, Goal.STEP_TIME]))
def test_a_value_just_above_the_best_plan_rules_it_out_nowhere(instance: Instance, goal: Goal) -> None:
    """What leaves suffixes out for a value that plans have to be below leaves the best plan in."""
    instance = replace(as_seen(instance), goals=(goal,))
    _seen(instance)
    truth = exhaustive.solve(instance)
    assume(truth.objective is not None)
    best = truth.objective or 0
    found = solve(instance, Limits(below=best + 1))
    assert found.bound is not None and found.bound <= best
    if goal is Goal.ITERATION_TIME:
        assert (found.proof, found.objective) == (Proof.OPTIMAL, best)


@pytest.mark.slow
@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(repeated())
def test_bounds_leave_the_stages_of_the_best_plan_and_its_paths_prove_no_more_than_it_takes(
    instance: Instance,
) -> None:
    instance = replace(as_seen(instance), goals=(Goal.STEP_TIME,))
    _seen(instance)
    truth = exhaustive.solve(instance)
    assume(truth.objective is not None and truth.plan is not None)
    best, word = truth.objective or 0, Word.of(instance)
    stages = ReducedStages.of(word, SeatLine.of(instance, word.space), each=True)
    stages.leave_out(best + 1)
    slowest = SlowestFirst(stages, -1, best, best)
    assert slowest.run()
    found = Compositions(slowest).all()
    assert found is not None
    rows = list(found)
    assert all(row in rows for row in Compositions(slowest).all(2) or ())
    plans = list[Plan]()

    def taken(plan: Plan, value: int) -> int:
        plans.append(plan)
        assert value == evaluate(instance, plan).objective
        return best + 1

    for ways in (False, True):
        leaves = Leaves(instance, stages, taken)
        assert min(leaves.bound(cells, bound, best + 1, ways=ways) for bound, cells in rows) <= best
    ends = [stage.span.stop for stage in truth.plan.stages] if truth.plan is not None else []
    places = word.space.places
    assert ends in [[places[cell.stop] for cell in cells] for _, cells in rows]
    for plan in plans:
        assert (evaluate(instance, plan).objective or 0) >= best


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(st.data())
def test_of_many_beginnings_some_are_left_out_and_the_least_composition_that_is_open_is_there(
    data: st.DataObject,
) -> None:
    """Of stages that take any times. One after the other is closed: what was left out before is there then."""
    number, many = data.draw(st.integers(4, 7)), data.draw(st.sampled_from([2, 4, 8, 16]))
    layers = chain([matrix(f"l{at}", 1, 1, made=1) for at in range(number)], [1] * (number - 1))
    instance = replace(instance_of(layers, mesh(2, 3)), training=Training(global_batch=many, micro_batches=many))
    instance = replace(instance, constraints=Constraints(devices_per_stage=(1, 2)), goals=(Goal.STEP_TIME,))
    word, drawn = Word.of(instance), np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    line, most = SeatLine.of(instance, word.space), data.draw(st.sampled_from([4, 30, 1000]))
    crossed = drawn.integers(1, data.draw(st.sampled_from([2, 30, 300])), line.crossing.shape)
    stages = ReducedStages.of(word, replace(line, crossing=crossed), each=True)
    inside = np.arange(number + 1)[:, None] < np.arange(number + 1)
    times = [np.where(inside, drawn.integers(1, most, inside.shape), FORBIDDEN) for _ in line.groups]
    with (
        mock.patch.object(ReducedStages, "least", lambda _, seat, slot: times[seat]),
        mock.patch.object(ReducedStages, "whole", lambda *_: np.zeros_like(times[0])),
    ):
        slowest = SlowestFirst(stages, -1, most, 1 << 40)
        assert slowest.run()
        slowest = SlowestFirst(stages, -1, most, slowest.least * data.draw(st.integers(12, 30)) // 10)
        assume(slowest.run())
        rows = [(bound, tuple(cells)) for bound, cells in Compositions(slowest).all() or ()]
        assume(rows)
        floor, closed = rows[0][0] * data.draw(st.integers(0, 12)) // 10, set[tuple[Cell, ...]]()
        for _ in range(20):
            with mock.patch("pipecut.solvers.reduce.executed.compositions.LARGE", 0):
                few = [(bound, tuple(cells)) for bound, cells in Compositions(slowest, closed, floor).all() or ()]
            assert {*few} <= {*rows}
            open_ = [[row for row in some if row[1] not in closed] for some in (rows, few)]
            least = [max(floor, some[0][0]) if some else 1 << 40 for some in open_]
            assert least[0] == least[1]
            closed.update(cells for _, cells in open_[1][: data.draw(st.integers(1, 3))])
            closed.add(data.draw(st.sampled_from(rows))[1])


@st.composite
def traded(draw: st.DrawFn) -> Instance:
    """Two layers in turn that divided otherwise run longer and synchronise less: paths often leave a gap.

    Devices have room for what a plan of such a model holds, or less: stages may then compute everything again.
    """
    rows = [
        matrix(
            name,
            draw(st.sampled_from([40, 60])),
            draw(st.sampled_from(weights)),
            made=draw(st.sampled_from([200, 400])),
        )
        for name, weights in (("a", (100, 4000)), ("b", (2000, 4000, 8000)))
    ]
    number, many = draw(st.integers(4, 8)), draw(st.sampled_from([2, 4, 6]))
    layers = chain(
        [replace(rows[at % 2], name=f"l{at}") for at in range(number)],
        [draw(st.sampled_from([50, 200]))] * (number - 1),
    )
    between = Link(draw(st.sampled_from([30_000_000, 300_000_000])))
    instance = instance_of(layers, mesh(*draw(st.sampled_from([(4,), (2, 2), (2, 2, 2)])), between=between))
    asked = Constraints(
        memory=True,
        tensor_parallel_degrees=(1, 2),
        recompute=draw(st.sampled_from([Recompute.NEVER, Recompute.ALLOWED])),
        sharded=draw(st.sampled_from([(Sharded.NONE,), (Sharded.NONE, Sharded.OPTIMIZER)])),
    )
    training = Training(global_batch=4 * many, micro_batches=many)
    instance = replace(instance, training=training, constraints=asked, goals=(Goal.STEP_TIME,))
    plan = solve(instance, Limits()).plan or Plan(())
    held = max(MemoryParts.of_stage(instance, plan, at).total for at in range(len(plan)))
    room = held * draw(st.sampled_from([100, 80, 60, 45])) // 100
    some = [replace(one, device_class=replace(one.device_class, memory_bytes=room)) for one in instance.servers]
    return on_servers(instance, some)


@pytest.mark.slow
@settings(max_examples=so_many(40), deadline=None, suppress_health_check=QUIET)
@given(traded(), st.sampled_from([1, 40_000]), st.sampled_from([0, 5_000]))
def test_what_weights_of_paths_leave_open_is_proved_as_by_another_method(
    instance: Instance, rows: int, large: int
) -> None:
    """By the search over suffixes, which knows no compositions: plans are too many to be priced one by one.

    Where ways to run a stage are too many to be told apart less is said, and nothing that is not so.
    """
    leaves = mock.patch("pipecut.solvers.reduce.executed.steps.Leaves", partial(Leaves, rows=rows))
    with leaves, mock.patch("pipecut.solvers.reduce.executed.compositions.LARGE", large):
        found = solve(instance, Limits())
    other = find_any("step_dp").load()(instance, Limits())
    assert other.proof is (Proof.INFEASIBLE if other.plan is None else Proof.OPTIMAL)
    assert other.objective is None or (found.bound or 0) <= other.objective
    assert rows == 1 or (found.proof, found.objective) == (other.proof, other.objective)


@settings(max_examples=so_many(100), deadline=None, suppress_health_check=QUIET)
@given(repeated(), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3))
def test_ways_to_run_a_stage_are_listed_but_for_those_that_are_no_better_in_any_pass(
    instance: Instance, forward: int, backward: int, sync: int
) -> None:
    """Of one stage with all layers: against every plan that has one."""
    instance = as_seen(instance)
    alone = replace(instance.constraints, memory=True, stages_at_least=1, stages_at_most=1)
    instance = replace(instance, constraints=alone, goals=(Goal.STEP_TIME,))
    _seen(instance)
    word = Word.of(instance)
    stages = ReducedStages.of(word, SeatLine.of(instance, word.space), each=True)
    line = stages.line
    feasible = [one for one in every_plan(instance) if evaluate(instance, one).feasible]
    assume(feasible)
    for size, devices in enumerate(line.sizes):
        known = [one.stages[0] for one in feasible if one.stages[0].group.devices == devices]
        priced = PricedPasses.of(word, line.groups[line.seat[0, size]], NEVER)
        often, whole = np.array([forward, backward, sync]), (0, stages.atoms)
        weighed = stages.weighed(int(line.seat[0, size]), priced, often, whole, apart=True)
        found = list(weighed.listed(Cell(0, size, *whole), 0, FORBIDDEN, [], 1 << 20))
        for passes, group, label in found:
            stage = weighed.stage_of(Cell(0, size, *whole), group, label())
            assert evaluate(instance, Plan((stage,))).violations == ()
            assert tuple(passes.tolist()) == counted_passes(instance, stage)
        for stage in known:
            own = np.array(counted_passes(instance, stage))
            assert any((passes <= own).all() for passes, _, _ in found)


def test_devices_have_room_for_the_whole_model_where_the_short_one_needs_little() -> None:
    plenty = replace(blocks(96, 10**12, tensor_parallel_degrees=(1, 2, 4)), goals=(Goal.ITERATION_TIME,))
    any_ = replace(plenty, constraints=replace(plenty.constraints, memory=False))
    found, truth = solve(plenty, Limits()), solve(any_, Limits())
    assert (found.proof, found.objective) == (Proof.OPTIMAL, truth.objective)


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(limited(), st.integers(0, 40))
def test_the_same_plans_keep_limits_and_what_they_leave(instance: Instance, first: int) -> None:
    assume(has_groups(instance))
    left = capped(instance)
    assert not any(one.at_most for one in left.constraints.at_most if one.goal is Goal.MEMORY)
    for plan in islice(every_plan(instance), first, 2000, 41):
        assert evaluate(left, plan).feasible is evaluate(instance, plan).feasible


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(st.one_of(repeated(), DEEP, limited()))
def test_atoms_of_the_short_model_cost_what_those_cost_that_they_stand_for(instance: Instance) -> None:
    assume(has_groups(instance) and accepts(replace(as_seen(instance), goals=(Goal.ITERATION_TIME,))).takes)
    word, whole = Word.of(instance), all_tables(instance)
    short = build_tables(word.short, whole.groups)
    ends, few = list(word.space.atoms()), list(word.short_space.atoms())
    assert len(few) <= len(ends) == len(word.of_atom)
    for atom, like in enumerate(word.of_atom):
        own, other = range(*ends[atom]), range(*few[like])
        assert len(own) == len(other)
        for one, two in zip(own, other, strict=True):
            assert word.whole.layers[one].allowed_forms == word.short.layers[two].allowed_forms
            assert np.array_equal(whole.compute[:, one], short.compute[:, two])
            assert np.array_equal(whole.inside[:, one], short.inside[:, two])
            assert np.array_equal(whole.each[:, one], short.each[:, two])


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(
    st.one_of(repeated(), demanding()),
    st.sampled_from([Goal.STEP_TIME, Goal.ITERATION_TIME]),
    st.integers(-2, 2),
)
def test_several_searched_for_plans_of_less_than_a_value_claim_no_more(
    instance: Instance, goal: Goal, off: int
) -> None:
    """Whoever asks for better ones than he has is told of no plan below that, and never that there is none."""
    size = instance.training.global_batch
    parts = [replace(as_seen(instance, many), goals=(goal,)) for many in sorted({1, size})]
    for one in parts:
        _seen(one)
    best = min((value for one in parts if (value := exhaustive.solve(one).objective) is not None), default=0)
    assume(best)
    below = max(1, best + off)
    found = [outcome for _, outcome in Jointly.run(parts, Limits(time_limit_s=10, below=below))]
    assert all(one.proof is not Proof.INFEASIBLE for one in found)
    assert min(one.bound or 0 for one in found) <= best
    assert all(best <= one.objective < below for one in found if one.objective is not None)
