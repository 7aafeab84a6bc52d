from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof, checked
from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.units import Link
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import exhaustive
from pipecut.solvers.goals import solve_in_order
from pipecut.solvers.whatif.answers import NOBODY, ChangedAnswer, answers, carried
from pipecut.solvers.whatif.variants import (
    BASE,
    ChangedInstance,
    ChangeKind,
    with_another,
    with_bandwidth,
    without,
)
from tests.commands.fakes import write_scenario
from tests.enumerator import truth
from tests.generators import CLASSES, links
from tests.laws import so_many
from tests.problems import problems

SEEN = settings(
    max_examples=so_many(20),
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


def searched(instance: Instance, limits: Limits) -> tuple[Instance, Outcome]:
    def one_goal(judged: Instance, within: Limits) -> Outcome:
        return exhaustive.solve(replace(judged, goals=judged.goals[:1]), within)

    return instance, checked(instance, solve_in_order(instance, one_goal, limits))


def answered(
    instance: Instance, changed: Sequence[ChangedInstance], ask=searched, limits: Limits | None = None
) -> dict:
    found: dict[str, ChangedAnswer] = {}
    for one in answers(instance, changed, ask, limits or Limits()):
        found[one.variant.what] = one
    return found


def limited(instance: Instance) -> Instance:
    return replace(instance, constraints=replace(instance.constraints, memory=True))


@pytest.fixture
def scarce(tmp_path: Path) -> Instance:
    """Two servers; the best plan without a limit of memory needs a little more than there is."""
    instance = limited(load_scenario(write_scenario(tmp_path)).load())
    plan = exhaustive.solve(instance, Limits()).plan
    assert plan is not None
    needed = max(cost.memory_bytes for cost in stage_costs(instance, plan))
    servers = [
        replace(one, device_class=replace(one.device_class, memory_bytes=needed - 1)) for one in instance.servers
    ]
    link = instance.links[0][1]
    assert link is not None
    return replace(instance, cluster=Cluster.mesh("scarce", servers, link))


@SEEN
@given(problems(most_plans=120), st.booleans())
def test_every_answer_is_the_best_of_all_plans_of_its_variant(instance: Instance, memory: bool) -> None:
    """Also of those that are settled without a search."""
    instance = limited(instance) if memory else instance
    kinds = (ChangeKind.MEMORY, ChangeKind.LINKS, ChangeKind.MICRO_BATCHES)
    changed = [one for one in ChangedInstance.variants(instance) if one.kind in kinds]
    found = answered(instance, changed)
    assert list(found) == [BASE, *(one.what for one in changed)]
    for one in found.values():
        if one.variant.instance is None:
            assert one.outcome is None and one.reason
            continue
        best = truth(one.variant.instance)
        assert one.outcome is not None and one.instance is not None
        if best.values is None:
            assert one.outcome.proof is Proof.INFEASIBLE
        else:
            assert one.outcome.proof is Proof.OPTIMAL
            assert tuple(claim.value for claim in one.outcome.claims) == best.values


@SEEN
@given(problems(most_plans=60))
def test_servers_and_devices_are_varied(instance: Instance) -> None:
    changed = [
        one
        for one in ChangedInstance.variants(instance, CLASSES)
        if one.kind in (ChangeKind.SERVERS, ChangeKind.DEVICES)
    ]
    for one in changed:
        if one.instance is None:
            assert one.reason
        elif one.kind is ChangeKind.SERVERS:
            more = 1 if "more" in one.what else -1
            assert len(one.instance.cluster.servers) == len(instance.cluster.servers) + more
        else:
            assert one.instance.cluster != instance.cluster


@pytest.mark.slow
def test_what_a_limit_does_not_bind_is_settled_without_a_search(scarce: Instance) -> None:
    """The witness of the shortcut: one search of the instance, one without limit, and none for the rest."""
    asked: list[bool] = []

    def ask(instance: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        asked.append(instance.constraints.memory)
        return searched(instance, limits)

    roomy = replace(
        scarce,
        cluster=Cluster.mesh(
            "roomy",
            [replace(one, device_class=replace(one.device_class, memory_bytes=2**50)) for one in scarce.servers],
            Link(10**9, 0),
        ),
    )
    memory = [one for one in ChangedInstance.variants(roomy) if one.kind is ChangeKind.MEMORY]
    found = answered(roomy, memory, ask)
    assert len(memory) == 5 and asked == [True, False]
    assert all(one.proved and one.of_a_step == found[BASE].of_a_step for one in found.values())
    asked.clear()
    answered(scarce, [one for one in ChangedInstance.variants(scarce) if one.kind is ChangeKind.MEMORY], ask)
    assert len(asked) > 2


@pytest.mark.slow
def test_time_is_shared_and_what_is_left_goes_to_what_is_not_proved(scarce: Instance) -> None:
    """A search that proves nothing the first time is asked again, and its plan is where it begins."""
    calls: dict[int, list[Limits]] = {}

    def ask(instance: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        mine = calls.setdefault(instance.training.micro_batches, [])
        mine.append(limits)
        found = exhaustive.solve(instance, limits)
        if instance.training.micro_batches == scarce.training.micro_batches or len(mine) > 1:
            return instance, found
        return instance, replace(found, proof=Proof.FEASIBLE, bound=0)

    changed = [one for one in ChangedInstance.variants(scarce) if one.kind is ChangeKind.MICRO_BATCHES]
    heard = list(answers(scarce, changed, ask, Limits(time_limit_s=300.0)))
    assert changed and len(heard) == 1 + 2 * len(changed)
    latest = {one.variant.what: one for one in heard}
    assert all(one.proved for one in latest.values())
    for number, mine in calls.items():
        if number != scarce.training.micro_batches:
            assert mine[1].start is not None
    first = calls[scarce.training.micro_batches][0].end_s
    assert first is not None and all(mine[0].end_s is not None for mine in calls.values())


@pytest.mark.slow
def test_nobody_is_asked_once_the_time_is_over(scarce: Instance) -> None:
    stopped = [False]

    def ask(instance: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        found = searched(instance, limits)
        stopped[0] = True
        return found

    found = answered(scarce, ChangedInstance.variants(scarce), ask, Limits(stopped=lambda: stopped[0]))
    rest = [one for what, one in found.items() if what != BASE]
    assert found[BASE].proved and rest
    late = [one for one in rest if not one.proved]
    assert late and all(one.reason for one in late)
    for one in late:
        assert one.outcome is None or one.outcome.solver == NOBODY


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(), (1, 2, 4)])
def test_no_answer_is_worse_than_a_plan_of_another(scarce: Instance, numbers: tuple[int, ...]) -> None:
    """Whoever finds poor plans has the good ones of the others, and the scenario itself those of its changes.

    Plans of other numbers of micro-batches are compared with them for a whole step.
    """
    scarce = scarce.trained(replace(scarce.training, global_batch=4, micro_batch_choices=numbers))
    asked: list[Instance] = []

    def poor(instance: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        """Find the best plan the third time, of other links, and else the worst that keeps the rules."""
        choices = instance.training.choices
        instance = instance.trained(choices[len(asked) % len(choices)])
        asked.append(instance)
        best = exhaustive.solve(instance, limits)
        if best.plan is None or len(asked) == 3:
            return instance, replace(best, proof=Proof.UNKNOWN if best.plan is None else Proof.FEASIBLE, bound=0)
        kept = (plan for plan in exhaustive.plans(instance) if evaluate(instance, plan).feasible)
        worst = max(kept, key=lambda plan: evaluate(instance, plan).objective or 0)
        return instance, replace(
            best, proof=Proof.FEASIBLE, plan=worst, objective=evaluate(instance, worst).objective, bound=0
        )

    roomy = replace(scarce, constraints=replace(scarce.constraints, memory=False))
    changed = [one for one in ChangedInstance.variants(roomy) if one.kind is ChangeKind.LINKS]
    heard = list(answers(roomy, changed, poor, Limits()))
    latest = list({one.variant.what: one for one in heard}.values())
    assert [one.variant.what for one in heard].count(BASE) > 1, (
        "a plan of a change is better than that of the base"
    )
    plans = [
        (one.instance, one.outcome.plan) for one in latest if one.instance and one.outcome and one.outcome.plan
    ]
    for one in latest:
        assert one.instance is not None and one.outcome is not None
        for holder, plan in plans:
            other = carried(plan, holder, one.instance)
            if other is not None and evaluate(*other).feasible:
                step = (evaluate(*other).objective or 0) * other[0].training.micro_batches
                assert (one.outcome.objective or 0) * one.instance.training.micro_batches <= step
        assert one.outcome.plan is not None and evaluate(one.instance, one.outcome.plan).feasible


def test_a_variant_that_nobody_takes_says_why(scarce: Instance) -> None:
    def ask(instance: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        if instance.cluster != scarce.cluster:
            raise ValueError("too large")
        return searched(instance, limits)

    changed = [one for one in ChangedInstance.variants(scarce) if one.kind is ChangeKind.SERVERS]
    found = answered(scarce, changed, ask)
    assert {one.reason for one in found.values() if one.variant.what != BASE} == {"too large"}


def test_another_server_is_joined_as_the_one_that_it_is_like() -> None:
    card = DeviceClass("card", 10, 10)
    near, far = Link(8, 1), Link(2, 5)
    servers = [Server(name, card, 1) for name in ("a", "b", "c")]
    mesh = Cluster.mesh("mesh", servers, near)
    more = with_another(mesh, "b")
    assert [one.name for one in more.servers] == ["a", "b", "b-2", "c"]
    assert {link for row in more.links for link in row} == {None, near}
    tree = Cluster.of(_tree(servers, near, far))
    more = with_another(tree, "c")
    assert more.links[2][3] == Link(2, 10) and more.links[0][3] == tree.links[0][2]
    with pytest.raises(ValueError, match="no link between servers"):
        with_another(Cluster.of(cluster_graph("one", servers[:1], [])), "a")


def test_a_server_that_joins_others_cannot_be_left_out() -> None:
    card, link = DeviceClass("card", 10, 10), Link(8, 1)
    servers = [Server(name, card, 1) for name in ("a", "b", "c")]
    line = Cluster.of(cluster_graph("line", servers, [("a", "b", link), ("b", "c", link)]))
    with pytest.raises(ValueError, match="cannot reach"):
        without(line, "b")
    assert [one.name for one in without(line, "c").servers] == ["a", "b"]


def _tree(servers: list[Server], near: Link, far: Link) -> nx.Graph:
    drawn = [("a", "switch", near), ("b", "switch", near), ("c", "switch", far)]
    return cluster_graph("tree", servers, drawn, ["switch"])


@given(links)
def test_bandwidth_is_scaled_where_it_is_asked(link: Link) -> None:
    card = DeviceClass("card", 10, 10)
    cluster = Cluster.mesh("two", [Server(name, card, 2, link) for name in ("a", "b")], link)
    twice = replace(link, bits_per_second=2 * link.bits_per_second)
    for inside in (False, True):
        found = with_bandwidth(cluster, 2, 1, inside=inside)
        for one, other in itertools.product(range(2), repeat=2):
            assert found.links[one][other] == (twice if (one == other) is inside else link)


def test_what_is_reserved_on_a_server_goes_and_comes_with_it(tmp_path: Path) -> None:
    """A scenario says it of several servers by a name that they share; that of a single one nobody wrote."""
    instance = load_scenario(write_scenario(tmp_path), ["constraints.reserve.node=100 MiB"]).load()
    kept = {
        one.what: one.instance and [row.server for row in one.instance.constraints.reserve]
        for one in ChangedInstance.variants(instance)
        if one.kind is ChangeKind.SERVERS
    }
    fewer, more = kept.values()
    assert fewer == ["node0"] and more is not None and more[:2] == ["node0", "node1"]
    assert all(names is not None and len(set(names)) == len(names) for names in kept.values()) and len(more) == 3
