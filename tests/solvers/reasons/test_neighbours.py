from __future__ import annotations

import pytest

from formulation.problem.groups import Group
from formulation.problem.plan import Plan, Span, Stage
from solvers.reasons.choices import most_plans, neighbours
from solvers.reasons.devices import device_candidates
from solvers.reasons.priced import Pricing
from tests.examples import PLAIN, chain, instance_of, matrix, mesh


@pytest.mark.parametrize(("layers", "most"), [(1, 400), (100, 400), (400, 100), (10_000, 4), (100_000, 1)])
def test_of_large_models_fewer_plans_are_priced(layers: int, most: int) -> None:
    assert most_plans(layers) == most


def test_what_was_not_priced_is_said() -> None:
    layers = chain([matrix(name, 50, 9, taken=9, made=9) for name in "abc"], [9, 9])
    instance = instance_of(layers, mesh(2, 2), PLAIN)
    plan = Plan((Stage(Span(0, 3), Group(((0, 1),)), (0, 0, 0)),))
    pricing = Pricing(instance, plan)
    base = pricing.price(plan)
    assert base is not None
    every = neighbours(pricing, base, device_candidates(pricing, plan, 0), None)
    some = neighbours(pricing, base, device_candidates(pricing, plan, 0), every.looked_at - 1)
    assert every.complete and every.looked_at > 1
    assert not some.complete and some.looked_at == every.looked_at - 1
