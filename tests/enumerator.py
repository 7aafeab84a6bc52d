"""Every plan of a small instance, from the page of the formulation alone: an oracle for solvers.

It knows what a plan is (stages of layers in order, numbers of devices of every server, replicas, recomputation,
forms) and leaves every rule on it to the evaluator. Unlike the solvers it asks nobody which groups are possible,
takes no two servers for alike, and prices whole plans only. ``solvers.exhaustive`` is one of those that are
compared with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipecut.formulation.evaluate import Evaluation, evaluate
from pipecut.formulation.problem.constraints import OnHost, Placement, Recompute, Sharded
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule

MOST_LAYERS = 8
"""Of models that are tried to be cut everywhere, also where no stage may start."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The best plan there is and its values of all goals in order (None: no plan keeps every rule)."""

    plan: Plan | None
    values: tuple[int, ...] | None
    plans: int


def truth(instance: Instance, seen: Callable[[Instance, Plan, Evaluation], None] = lambda *_: None) -> Truth:
    """Price every plan, and show each with its price to somebody."""
    best: tuple[tuple[int, ...], Plan] | None = None
    number = 0
    for plan in every_plan(instance):
        number += 1
        found = evaluate(instance, plan)
        seen(instance, plan, found)
        if found.feasible and found.objective is not None:
            values = (found.objective, *found.further)
            if best is None or values < best[0]:
                best = values, plan
    return Truth(None, None, number) if best is None else Truth(best[1], best[0], number)


def closed_choices(instance: Instance) -> list[Instance]:
    """Return an instance for each training and each order of the layers that is left open, the given order first.

    A training that is no order of passes, and an order in which the layers make no problem, are none.
    """
    open_ = instance.training
    numbers = open_.micro_batch_choices or (open_.micro_batches,)
    schedules = open_.schedule_choices or (open_.schedule,)
    chunks = open_.chunk_choices or (open_.chunks,)
    found: dict[tuple[object, ...], Instance] = {}
    for number, schedule, held in itertools.product(numbers, schedules, chunks):
        held = 2 if schedule is Schedule.ZERO_BUBBLE_V else held
        if held > 1 and schedule not in (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE_V):
            continue
        closed = {"micro_batch_choices": (), "schedule_choices": (), "chunk_choices": ()}
        warm_up = open_.warm_up if schedule is Schedule.ONE_F_ONE_B and held == 1 else "classic"
        said = {"micro_batches": number, "schedule": schedule, "chunks": held, "warm_up": warm_up}
        one = replace(instance, training=replace(open_, **closed, **said))
        for order in _orders(one):
            found.setdefault((number, schedule, held, order), one if order is None else _in_order(one, order))
    return list(found.values())


def _orders(instance: Instance) -> Iterator[tuple[int, ...] | None]:
    """Yield None for the given order, and every other one that is open.

    What lies between two neighbouring places to cut stays together, and producers come before consumers.
    """
    yield None
    if not instance.model.free_order:
        return
    places = _places(instance)
    runs = [range(*ends) for ends in itertools.pairwise(places)]
    run_of = {layer: at for at, run in enumerate(runs) for layer in run}
    before = [
        {run_of[one.producer] for one in instance.edges if one.consumer in run} - {at}
        for at, run in enumerate(runs)
    ]
    for order in _after((), before):
        if list(order) != sorted(order):
            yield tuple(layer for run in order for layer in runs[run])


def _after(done: tuple[int, ...], before: Sequence[set[int]]) -> Iterator[tuple[int, ...]]:
    """Yield all orders that begin so, in which everything comes after what stands before it."""
    if len(done) == len(before):
        yield done
    for one, needed in enumerate(before):
        if one not in done and needed <= {*done}:
            yield from _after((*done, one), before)


def _in_order(instance: Instance, order: tuple[int, ...]) -> Instance:
    return replace(instance, model=instance.model.in_order(order))


def _places(instance: Instance) -> list[int]:
    """Return where stages may start, and the number of layers."""
    closed = set(instance.demands.no_cut) - {0}
    for layers in instance.demands.together:
        closed |= set(range(layers[0] + 1, layers[-1] + 1))
    return [at for at in range(len(instance.layers) + 1) if at not in closed]


def more_plans_than(instance: Instance, most: int) -> bool:
    """Tell whether there are more plans than this."""
    return next(itertools.islice(every_plan(instance), most, None), None) is not None


def every_plan(instance: Instance) -> Iterator[Plan]:
    """Yield every plan that has devices for its stages, and many that break a rule."""
    chunks = instance.training.chunks
    for cuts in _cuts(instance):
        groups, odd = divmod(len(cuts) - 1, chunks)
        if odd or (chunks > 1 and groups == 1):
            continue
        for held in _devices(instance, groups, tuple(server.devices for server in instance.servers)):
            # The V goes down through the groups and up again; other chunks are dealt out round and round.
            on = [*range(groups), *reversed(range(groups))] if instance.training.schedule.in_a_v else range(groups)
            turns = list(itertools.islice(itertools.cycle(on), groups * chunks))
            rows = zip(itertools.pairwise(cuts), (held[at] for at in turns), strict=True)
            choices = [list(_stages(instance, Span(*span), counts)) for span, counts in rows]
            for stages in _in_turn((), choices, turns):
                yield Plan(stages)
                yield from _warmed_up(instance, stages)


def _in_turn(
    begun: tuple[Stage, ...], choices: Sequence[Sequence[Stage]], turns: Sequence[int]
) -> Iterator[tuple[Stage, ...]]:
    """Yield one of each choice, all of one group alike: that of the stage whose turn it was first."""
    if len(begun) == len(choices):
        yield begun
        return
    first = turns[len(begun)]
    for stage in choices[len(begun)]:
        if first >= len(begun) or stage.group == begun[first].group:
            yield from _in_turn((*begun, stage), choices, turns)


def _warmed_up(instance: Instance, stages: tuple[Stage, ...]) -> Iterator[Plan]:
    """Yield stages with every number of forward passes before the first backward pass, where they may choose."""
    if instance.training.chooses_warm_ups:
        for many in itertools.product(range(1, instance.training.micro_batches + 1), repeat=len(stages)):
            yield Plan(tuple(replace(one, warm_up=own) for one, own in zip(stages, many, strict=True)))


def _cuts(instance: Instance) -> Iterator[tuple[int, ...]]:
    """Yield all sets of cuts that leave a device for each group, both ends included.

    Of models of many layers those at places to cut.
    """
    layers = len(instance.layers)
    places = range(1, layers) if layers <= MOST_LAYERS else _places(instance)[1:-1]
    for number in range(min(len(places) + 1, instance.devices * instance.training.chunks)):
        for inner in itertools.combinations(places, number):
            yield (0, *inner, layers)


def _devices(instance: Instance, stages: int, left: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield numbers of devices of every server for so many stages, none empty, no server overdrawn."""
    if stages == 0:
        yield ()
        return
    for own in itertools.product(*(range(count + 1) for count in left)):
        if not any(own) or (instance.constraints.placement is Placement.LINE and _leaves_a_gap(own, left)):
            continue
        after = tuple(count - taken for count, taken in zip(left, own, strict=True))
        if stages > 1 and not any(after):
            continue
        for others in _devices(instance, stages - 1, after):
            yield (own, *others)


def _leaves_a_gap(own: tuple[int, ...], left: tuple[int, ...]) -> bool:
    """Tell whether a stage skips devices of the line: it takes of a server while an earlier one has some left."""
    return any(
        own[server] and any(left[before] > own[before] for before in range(server)) for server in range(len(own))
    )


def _stages(instance: Instance, span: Span, counts: tuple[int, ...]) -> Iterator[Stage]:
    """Yield every way in which these devices may hold these layers."""
    held = tuple((server, count) for server, count in enumerate(counts) if count)
    devices, asked = sum(counts), instance.constraints.recompute
    either = (False, True, "layers") if instance.constraints.recompute_layers else (False, True)
    again = {Recompute.NEVER: (False,), Recompute.ALLOWED: either, Recompute.ALWAYS: (True,)}.get(
        asked, (False, True)
    )
    on_host = {OnHost.NEVER: (False,), OnHost.ALLOWED: (False, True), OnHost.ALWAYS: (True,)}
    hosts = on_host[instance.constraints.optimizer_on_host]
    pairs = "pairs" in instance.constraints.splits
    for degree, row in itertools.product(range(1, devices + 1), repeat=2):
        if devices % degree or (row > 1 and not (pairs and row < degree and degree % row == 0)):
            continue
        if degree not in (instance.constraints.tensor_parallel_degrees or (devices,)):
            continue
        forms = [
            (0,) if degree == 1 or layer.split is Split.FOLLOW else layer.allowed_forms
            for layer in instance.layers[span.first : span.stop]
        ]
        sharing = devices // degree if instance.constraints.one_mode else devices
        divided = instance.constraints.sharded if sharing > 1 else (Sharded.NONE,)
        for chosen in itertools.product(*forms):
            for recompute in again:
                for sharded in divided:
                    modes = (Mode(devices // degree, recompute, sharded, one, row) for one in hosts)
                    for mode in modes:
                        for runs in _runs(instance, span) if not recompute else [()]:
                            yield Stage(span, Group(held, mode), chosen, again=runs)


def _runs(instance: Instance, span: Span) -> Iterator[tuple[Span, ...]]:
    """Yield all sets of blocks inside a stage, where some may be computed again; where all have to, all."""
    named, asked = instance.demands.recompute_layers, instance.constraints.recompute
    places = itertools.pairwise(_places(instance))
    inside = [Span(*ends) for ends in places if span.first <= ends[0] < ends[1] <= span.stop]
    some = [one for one in inside if not named or {*named} >= {*one.layers}]
    if asked is Recompute.EVERY_BLOCK:
        yield tuple(some)
        return
    for number in range(len(some) + 1 if asked is Recompute.BLOCKS else 1):
        yield from itertools.combinations(some, number)
