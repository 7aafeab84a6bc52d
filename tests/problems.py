"""Small instances with everything that a scenario may ask for, drawn from the strategies of the other tests.

All goals, one or several in order, limits on goals, every demand, degrees, recomputation, reserved memory,
measured times, both placements, memory that binds, prices, all schedules and all readings of the costs; servers
that are alike, and almost alike.
"""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
from hypothesis import assume, reject
from hypothesis import strategies as st

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.problem.cluster import cluster_graph, servers_of
from pipecut.formulation.problem.constraints import Constraints, Goal, OnHost, Placement, Recompute, Sharded
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime
from pipecut.formulation.problem.training import Schedule, Training
from tests.enumerator import every_plan, more_plans_than
from tests.generators import (
    OF_SINGLE_STAGES,
    any_costs,
    cluster_graphs,
    curves,
    hosts,
    instances,
    layer_graphs,
    recomputation,
    sharded_kinds,
    trainings,
    warm_ups,
)
from tests.solvers.cpsat.demanded import constraints as demands
from tests.solvers.dynamic.test_states import clusters as alike_clusters

MOST_PLANS = 250
MEMORY_BYTES = (30_000, 100_000, 400_000, 1_600_000, 1 << 30)
PRICES = (0, 1, 700, 1_000_000)
SEEN = (Goal.BOTTLENECK, Goal.ITERATION_TIME, Goal.STEP_TIME, Goal.PERIOD)
EXECUTED: dict[Goal | None, tuple[Schedule, ...]] = {
    Goal.STEP_TIME: (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.NAIVE, Schedule.ZERO_BUBBLE_H1),
    Goal.PERIOD: (Schedule.ASYNC_ONE_F_ONE_B,),
}
"""Under which schedules exact methods see executed times."""
DEGREES = ((), (), (), (1,), (1, 2), (1, 2), (2,), (1, 2, 3))


@st.composite
def problems(draw: st.DrawFn, most_plans: int = MOST_PLANS) -> Instance:
    """One small instance with no more plans than that.

    Every other one is asked for a time in a way that all exact methods can see: most demands, limits on goals and
    some readings of the costs are for CP-SAT alone.
    """
    seen = draw(st.sampled_from([None, None, None, *SEEN]))
    layers = draw(layer_graphs(max_layers=4, places=seen is not Goal.ITERATION_TIME, tied=seen not in EXECUTED))
    cluster = _priced(draw, draw(st.one_of(cluster_graphs(max_devices=4), alike_clusters(max_devices=4))))
    small = len(layers) == 1 or sum(server.devices for server in servers_of(cluster)) == 1
    assume(not small or draw(st.integers(0, 9)) == 0)
    if draw(st.integers(0, 3)) == 0:
        layers = _measured(draw, layers, cluster)
    schedules = EXECUTED.get(seen) or OF_SINGLE_STAGES
    training = replace(draw(trainings()), schedule=draw(st.sampled_from(schedules)))
    cost = draw(any_costs)
    if seen is not None:
        cost = replace(cost, combine=Combine.MAX, boundary_charge=BoundaryCharge.LINK)
    if seen in EXECUTED:
        cost = replace(cost, stage_time=StageTime.ADD)
    try:
        asked = _asked(draw, build_instance(layers, cluster, training, cost), seen)
        if seen is not None and training.schedule.in_halves:
            number = draw(st.integers(1, 3))
            asked = replace(asked, stages_at_least=number, stages_at_most=number)
        goals = _goals(draw, cost.combine, training.schedule, seen)
        instance = build_instance(layers, cluster, training, cost, asked, goals)
        assume(not more_plans_than(instance, most_plans))
        if seen is None and draw(st.booleans()):
            asked = replace(asked, at_most=_limits(draw, instance))
            instance = build_instance(layers, cluster, training, cost, asked, goals)
        if training.warms_up:  # drawn last, so that seeds have the instances that they had
            instance = replace(instance, training=replace(training, warm_up=draw(warm_ups)))
            assume(not more_plans_than(instance, most_plans))
    except ValueError:  # demands that leave no form or no memory, measured and unmeasured layers
        reject()
    return instance


def _priced(draw: st.DrawFn, cluster: nx.Graph) -> nx.Graph:
    """Give every device class a price and a memory."""
    servers = servers_of(cluster)
    classes = {
        one: replace(
            one, memory_bytes=draw(st.sampled_from(MEMORY_BYTES)), price_per_hour=draw(st.sampled_from(PRICES))
        )
        for one in dict.fromkeys(server.device_class for server in servers)
    }
    switches = [name for name, row in cluster.nodes(data=True) if "server" not in row]
    links = [(one, other, link) for one, other, link in cluster.edges(data="link")]
    resized = [replace(server, device_class=classes[server.device_class]) for server in servers]
    return cluster_graph(cluster.graph["name"], resized, links, switches)


def _measured(draw: st.DrawFn, layers: nx.DiGraph, cluster: nx.Graph) -> nx.DiGraph:
    """Give all layers measured times on one or all device classes."""
    names = sorted({server.device_class.name for server in servers_of(cluster)})
    names = names if draw(st.booleans()) else names[:1]
    graph = nx.DiGraph(layers)
    rows = draw(st.sampled_from([1, 3]))
    for name, row in layers.nodes(data=True):
        times_on = tuple(time for one in names for time in draw(curves(one, rows=rows)))
        graph.nodes[name]["layer"] = replace(row["layer"], measured=times_on)
    return graph


def _asked(draw: st.DrawFn, plain: Instance, seen: Goal | None) -> Constraints:
    asked = draw(demands(plain))
    if seen is not None:
        asked = replace(asked, stages_at_least=None, stages_at_most=None, pins=(), apart=())
        asked = replace(asked, stages_per_server=None, equal_stages=False)
        if seen is Goal.ITERATION_TIME:
            asked = replace(asked, together=(), no_cut=())
    return replace(
        asked,
        max_servers=draw(st.sampled_from([None, None, None, 1, 2])),
        tensor_parallel_degrees=draw(st.sampled_from(DEGREES)),
        **draw(recomputation),
        sharded=draw(sharded_kinds),
        optimizer_on_host=draw(hosts),
    )


def _goals(draw: st.DrawFn, combine: Combine, schedule: Schedule, seen: Goal | None) -> tuple[Goal, ...]:
    executed = Goal.STEP_TIME if schedule.flushes else Goal.PERIOD
    if seen in EXECUTED or (seen is None and draw(st.integers(0, 4)) == 0):
        return (executed,)
    known = _known(combine)
    first = seen or draw(st.sampled_from(known))
    others = draw(st.permutations([goal for goal in known if goal is not first]))
    return (first, *others[: draw(st.sampled_from([0, 0, 0, 1, 2]))])


def _limits(draw: st.DrawFn, instance: Instance) -> tuple[GoalLimit, ...]:
    """Limit one goal or two to what some plan has, or a little less."""
    plans = list(every_plan(instance))
    assume(plans)
    plan = draw(st.sampled_from(plans))
    costs = stage_costs(instance, plan)
    limited = draw(st.lists(st.sampled_from(_known(instance.cost.combine)), min_size=1, max_size=2, unique=True))
    less = draw(st.sampled_from([0, 0, 1]))
    values = {goal: goal_value(goal, instance, plan, costs) for goal in limited}
    return tuple(GoalLimit(goal, max(0, value - less)) for goal, value in values.items())


def _known(combine: Combine) -> list[Goal]:
    """Return the goals by formulas that a cost model knows."""
    return [
        goal for goal in Goal if not goal.executed and (goal is not Goal.ITERATION_TIME or combine is Combine.MAX)
    ]


@st.composite
def dealt_out(draw: st.DrawFn, most_plans: int = 400) -> Instance:
    """Small instances that ``cpsat_chunks`` takes: groups of two stages or three, one form a layer."""
    made = draw(
        instances(layer_graphs(max_layers=6, places=True, tied=False), cluster_graphs(max_devices=4), any_costs)
    )
    micro_batches = draw(st.sampled_from([2, 2, 3, 4, 6]))
    training = Training(
        micro_batches * draw(st.integers(1, 2)), micro_batches, chunks=draw(st.sampled_from([2, 2, 2, 3]))
    )
    if draw(st.booleans()):
        training = replace(training, schedule=Schedule.ZERO_BUBBLE_V, chunks=2)
    cost = replace(made.cost, combine=Combine.MAX, boundary_charge=BoundaryCharge.LINK, stage_time=StageTime.ADD)
    constraints = Constraints(
        memory=draw(st.booleans()),
        placement=draw(st.sampled_from(Placement)),
        tensor_parallel_degrees=(1,),
        recompute=draw(st.sampled_from([one for one in Recompute if not one.by_blocks])),
        sharded=draw(st.sampled_from([(Sharded.NONE,), (Sharded.NONE, Sharded.WEIGHTS)])),
        optimizer_on_host=draw(st.sampled_from([OnHost.NEVER, OnHost.NEVER, OnHost.ALLOWED])),
        stages_at_most=draw(st.sampled_from([None, None, 4])),
    )
    try:
        goal = draw(st.sampled_from([Goal.BOTTLENECK, Goal.STEP_TIME]))
        instance = replace(made, training=training, cost=cost, constraints=constraints, goals=(goal,))
    except ValueError:
        assume(False)
        raise
    assume(not more_plans_than(instance, most_plans))
    assume(next(every_plan(instance), None) is not None)
    return instance
