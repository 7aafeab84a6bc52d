"""Certificates: they prove what the exact methods find, and nothing more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formulation.certificate import CertificateError, certifiable, fingerprint, verify, verify_labels
from formulation.groups import group_kind, line_places
from formulation.instance import Instance
from formulation.least import StagePrices
from formulation.options import AllReduce, Boundary, Combine, Constraints, CostModel, Placement, StageTime
from formulation.plan import Plan, Span
from formulation.tables import build_tables, line_groups
from formulation.units import Link
from solvers import line_dp
from solvers.hybrid import stage_times
from solvers.labels import certify, labels_at
from tests.examples import chain, instance_of, matrix, mesh, vgg16
from tests.generators import instances, layer_graphs

PATHS = st.builds(
    CostModel,
    all_reduce=st.sampled_from(AllReduce),
    boundary=st.sampled_from(Boundary),
    stage_time=st.sampled_from(StageTime),
)
"""Cost models that labels can speak about."""

cases = instances(layers=layer_graphs(max_layers=6), costs=PATHS)


def optimum(instance: Instance) -> tuple[Plan, int]:
    found = line_dp.solve(instance)
    assert found.plan is not None and found.objective is not None
    return found.plan, found.objective


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases)
def test_the_checker_accepts_what_labels_prove(instance: Instance) -> None:
    """The bound is the optimum almost always, not always: a label takes every cut below it for reachable."""
    plan, objective = optimum(instance)
    certificate = certify(instance, plan, objective)
    verify(instance, certificate)
    if not certificate.optimal:  # then no labels of this kind prove one nanosecond more
        times = stage_times(build_tables(instance, tuple(line_groups(instance).values())))
        above = labels_at(times, line_places(instance), certificate.bound)
        assert max(above.values()) == len(instance.layers)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases, st.data())
def test_no_labels_whatever_prove_a_bound_above_the_optimum(instance: Instance, data: st.DataObject) -> None:
    plan, objective = optimum(instance)
    last = len(instance.layers) - 1
    honest = certify(instance, plan, objective).labels
    generous = {place: last for place in honest}
    times = stage_times(build_tables(instance, tuple(line_groups(instance).values())))
    clipped = {
        place: min(label, last) for place, label in labels_at(times, line_places(instance), objective).items()
    }
    random = {place: data.draw(st.integers(0, last)) for place in honest}
    for labels in (honest, generous, clipped, random):
        with pytest.raises(CertificateError):
            verify_labels(instance, objective, labels)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(layers=layer_graphs(max_layers=6)), st.data())
def test_the_checkers_stage_times_are_those_of_the_dynamic_programme(
    instance: Instance, data: st.DataObject
) -> None:
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    times, prices = stage_times(tables), StagePrices(instance)
    index = data.draw(st.integers(0, len(tables.groups) - 1))
    stop = data.draw(st.integers(1, len(instance.layers)))
    start = data.draw(st.integers(0, stop - 1))
    kind = group_kind(instance, tables.groups[index])
    value = int(times.time[tables.kind_of[index], start, stop])
    assert not prices.exceeds(kind, start, stop, value)
    assert prices.exceeds(kind, start, stop, value - 1)


def vgg_certificate():
    instance = instance_of(vgg16(), mesh(2, 2, inside=Link(10_000_000_000), between=Link(1_000_000_000)))
    return instance, certify(instance, *optimum(instance))


def test_false_claims_are_noticed_one_by_one() -> None:
    instance, good = vgg_certificate()
    verify(instance, good)
    place, label = max(good.labels.items(), key=lambda item: item[1])
    worse = Plan((replace(good.plan.stages[0], span=Span(0, 39), forms=(0,) * 39),))
    lies = {
        "bound raised by one": replace(good, bound=good.bound + 1, objective=good.objective + 1),
        "bound above objective": replace(good, bound=good.bound + 1),
        "objective lowered by one": replace(good, objective=good.objective - 1, bound=good.bound - 1),
        "label lowered by one": replace(good, labels=good.labels | {place: label - 1}),
        "label left out": replace(good, labels={one: at for one, at in good.labels.items() if one != place}),
        "label past the end": replace(good, labels=good.labels | {place: 39}),
        "another plan": replace(good, plan=worse),
        "broken plan": replace(good, plan=Plan(good.plan.stages[:-1])),
        "another instance": replace(good, fingerprint=fingerprint(replace(instance, name="other"))),
    }
    for what, lie in lies.items():
        with pytest.raises(CertificateError):
            verify(instance, lie)
            pytest.fail(f"not noticed: {what}")


def test_a_weaker_bound_is_a_true_claim_too() -> None:
    instance, good = vgg_certificate()
    weaker = replace(good, bound=good.bound - 1)
    verify(instance, weaker)
    assert not weaker.optimal


def test_fingerprints_see_every_number() -> None:
    instance = instance_of(chain([matrix("a", 1), matrix("b", 2)], [3]), mesh(1, 1))
    others = [
        replace(instance, forward_ns=((1, 3),)),
        replace(instance, constraints=Constraints(memory=True)),
        replace(instance, cost=replace(instance.cost, flops_per_mac=2)),
    ]
    assert len({fingerprint(one) for one in (instance, *others)}) == 4
    assert fingerprint(instance) == fingerprint(replace(instance))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"constraints": Constraints(placement=Placement.FREE)}, "placement is free"),
        ({"cost": CostModel(combine=Combine.SUM)}, "combine is 'sum'"),
    ],
)
def test_says_what_cannot_be_certified(changed: dict, reason: str) -> None:
    instance = replace(instance_of(chain([matrix("a", 1)], []), mesh(1)), **changed)
    assert reason in (certifiable(instance) or "")
    with pytest.raises(ValueError, match=reason):
        certify(instance, *optimum(instance))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases)
def test_memory_limits_leave_the_bound_true(instance: Instance) -> None:
    plan, objective = optimum(instance)
    limited = replace(instance, constraints=Constraints(memory=True))
    certificate = certify(limited, plan, objective)
    verify_labels(limited, certificate.bound - 1, certificate.labels)
