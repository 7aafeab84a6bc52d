"""Every rule, on a plan that breaks it and no other rule of its own kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.constraints.rules import (
    RULES,
    check_cover,
    check_devices,
    structure_violations,
)
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.constraints import Constraints, Placement
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.exhaustive import count_plans, plans
from tests.examples import chain, follow, instance_of, matrix, mesh
from tests.generators import cluster_graphs, instances, layer_graphs

CHECKS = {rule.name: rule.check for rule in RULES}
INSTANCE = instance_of(
    chain([matrix("a"), follow("b"), matrix("c", allowed=(0, 2)), matrix("d")], [1, 1, 1]), mesh(2, 3)
)
HEAD = Stage(Span(0, 2), Group(((0, 1),)), (0, 0))
TAIL = Stage(Span(2, 4), Group(((0, 1), (1, 1))), (2, 1))
GOOD = Plan((HEAD, TAIL))
SPARE = Group(((1, 1),))


def broken(plan):
    """Names of the rules that a plan breaks, once for each violation."""
    return [found.rule for rule in RULES for found in rule.check(INSTANCE, plan)]


def plan(head=HEAD, tail=TAIL, *more):
    return Plan((head, tail, *more))


def test_a_stage_with_more_devices_than_there_are_has_no_price() -> None:
    """Pricing it would write every device out: two thousand million of them take gigabytes."""
    for counts in (((0, 2**31 - 1),), ((0, 2), (1, INSTANCE.devices))):
        found = evaluate(INSTANCE, plan(tail=replace(TAIL, group=Group(counts))))
        assert found.objective is None and found.stages == ()
        (violation,) = (row for row in found.violations if row.unit == "devices")
        assert (violation.rule, violation.limit) == ("devices", INSTANCE.devices)
        assert f"the whole cluster has {INSTANCE.devices}" in violation.message


def test_a_good_plan_breaks_nothing():
    assert broken(GOOD) == []
    assert evaluate(INSTANCE, GOOD).feasible


def test_rules_are_numbered_and_named_once():
    numbers = [rule.number for rule in RULES]
    assert numbers == sorted(set(numbers))
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("bad", "rules"),
    [
        (plan(head=replace(HEAD, span=Span(1, 2), forms=(0,))), ["cover"]),
        (plan(head=replace(HEAD, span=Span(0, 1), forms=(0,))), ["cover"]),
        (plan(tail=replace(TAIL, span=Span(1, 4), forms=(0, 2, 1))), ["cover"]),
        (plan(tail=replace(TAIL, span=Span(2, 3), forms=(2,))), ["cover"]),
        (Plan(()), ["cover"]),
        (plan(HEAD, TAIL, Stage(Span(4, 4), SPARE, ())), ["cover"]),
        (
            plan(head=replace(HEAD, group=Group(((0, 3),))), tail=replace(TAIL, group=SPARE, forms=(0, 0))),
            ["devices", "line"],
        ),
        (plan(tail=replace(TAIL, group=Group(((0, 2),)))), ["devices", "line"]),
        (plan(head=replace(HEAD, group=Group(((1, 1),)))), ["line"]),
        (plan(tail=replace(TAIL, group=Group(((1, 2),)))), ["line"]),
        (plan(tail=replace(TAIL, forms=(1, 1))), ["forms"]),
        (plan(head=replace(HEAD, forms=(1, 0))), ["forms"]),
        (
            plan(head=replace(HEAD, group=Group(((0, 2),)), forms=(1, 1)), tail=replace(TAIL, group=SPARE)),
            3 * ["forms"],
        ),
    ],
    ids=[
        "first layer missing",
        "layer missing between",
        "layer in two stages",
        "last layer missing",
        "no stage",
        "empty stage",
        "server gives too many",
        "device in two stages",
        "second server first",
        "device of the line skipped",
        "form not allowed",
        "form on one device",
        "form of a follow layer, and two on one device",
    ],
)
def test_each_rule_finds_its_violation(bad, rules):
    assert broken(bad) == rules
    assert not evaluate(INSTANCE, bad).feasible


def test_too_many_forms_is_a_matter_of_cover():
    bad = plan(head=replace(HEAD, forms=(0, 0, 0)))
    (found,) = check_cover(INSTANCE, bad)
    assert (found.where, found.found, found.limit, found.unit) == ("stage 0", 3, 2, "forms")
    assert evaluate(INSTANCE, bad).objective is None


def test_a_stage_beyond_the_last_layer():
    bad = plan(tail=replace(TAIL, span=Span(2, 5), forms=(2, 1, 0)))
    found = list(check_cover(INSTANCE, bad))
    assert [(one.found, one.limit) for one in found] == [(5, 4), (5, 4)]


@pytest.mark.parametrize("group", [Group(()), Group(((7, 1),)), Group(((-1, 1),)), Group(((0, 0),))])
def test_a_group_that_is_none_has_no_price(group):
    bad = plan(tail=replace(TAIL, group=group))
    assert [found.rule for found in structure_violations(INSTANCE, bad)] == ["devices"]
    assert evaluate(INSTANCE, bad).objective is None


@pytest.mark.parametrize("replicas", [0, -1, 2, 4])
def test_replicas_that_do_not_divide_the_devices_have_no_price(replicas):
    bad = plan(tail=replace(TAIL, group=Group(((0, 1), (1, 2)), Mode(replicas))))
    (found,) = structure_violations(INSTANCE, bad)
    assert (found.rule, found.found, found.limit, found.unit) == ("devices", replicas, 3, "replicas")
    assert evaluate(INSTANCE, bad).objective is None


def test_a_group_with_less_than_one_device_of_a_server_has_no_price():
    bad = plan(tail=replace(TAIL, group=Group(((0, 3), (1, -1)))))
    assert evaluate(INSTANCE, bad).objective is None


def test_an_unknown_form_has_no_price():
    assert evaluate(INSTANCE, plan(tail=replace(TAIL, forms=(8, 1)))).objective is None


def test_messages_name_the_place_and_both_numbers():
    bad = plan(tail=replace(TAIL, forms=(1, 1)))
    (found,) = CHECKS["forms"](INSTANCE, bad)
    assert found.message == "stage 1, layer c: form 1, expected 0, 2 (matrix layer on 2 devices)"
    (found,) = check_devices(INSTANCE, plan(tail=replace(TAIL, group=Group(((0, 2),)))))
    assert found.message == "stages take 3 devices of server s0, which has 2"
    (found,) = CHECKS["line"](INSTANCE, plan(tail=replace(TAIL, group=Group(((1, 2),)))))
    assert found.message == "stage 1 runs on 2 x s1, but the next 2 of the line are 1 x s0 + 1 x s1"


def limited(**limits):
    return replace(INSTANCE, constraints=Constraints(**limits))


def test_free_placement_takes_devices_in_any_order_but_no_more_than_there_are():
    free = limited(placement=Placement.FREE)
    for bad in (
        plan(head=replace(HEAD, group=Group(((1, 1),)))),
        plan(tail=replace(TAIL, group=Group(((1, 2),)))),
    ):
        assert evaluate(INSTANCE, bad).violations[0].rule == "line"
        assert evaluate(free, bad).feasible
    twice = plan(tail=replace(TAIL, group=Group(((0, 2),))))
    assert [found.rule for found in evaluate(free, twice).violations] == ["devices"]


def test_a_stage_may_not_stretch_over_too_many_servers():
    (found,) = evaluate(limited(max_servers=1), GOOD).violations
    assert (found.rule, found.where, found.found, found.limit, found.unit) == (
        "devices",
        "stage 1",
        2,
        1,
        "servers",
    )
    assert evaluate(limited(max_servers=2), GOOD).feasible


def test_a_stage_must_fit_into_memory():
    """Weights and their gradient, 2 * 80 bytes, and 4 bytes of optimiser state for each 4 of weights: 240."""
    layers = chain([matrix("a", weights=80)], [])
    whole = Plan((Stage(Span(0, 1), Group(((0, 1),)), (0,)),))
    for memory, rules in ((239, ["memory"]), (240, [])):
        cluster = mesh(1, kind=DeviceClass("small", memory, 1))
        instance = replace(instance_of(layers, cluster), constraints=Constraints(memory=True))
        assert [found.rule for found in evaluate(instance, whole).violations] == rules
        assert evaluate(replace(instance, constraints=Constraints()), whole).feasible


@given(st.data())
def test_enumerated_plans_keep_every_rule_until_one_layer_is_dropped(data):
    instance = data.draw(instances(layer_graphs(3), cluster_graphs(3)))
    every = [*plans(instance)] if count_plans(instance) < 500 else []
    for one in every:
        assert evaluate(instance, one).feasible
        last = one.stages[-1]
        shorter = replace(last, span=Span(last.span.first, last.span.stop - 1), forms=last.forms[:-1])
        assert not evaluate(instance, Plan((*one.stages[:-1], shorter))).feasible
