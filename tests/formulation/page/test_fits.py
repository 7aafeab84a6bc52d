"""What a certificate states of a stage, as the page has it: some forms keep its time and its memory at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.certificates.labels import StageFits
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.options import BoundaryCharge
from pipecut.formulation.problem.plan import Plan, Span, Stage
from tests.formulation.page.memory import capacity_bytes, peak_bytes
from tests.formulation.page.numbers import numbers_of
from tests.formulation.page.plans import free_instances, offered
from tests.formulation.page.stages import PricedStage
from tests.generators import groups
from tests.laws import so_many


def least_that_fits(instance: Instance, span: Span, group: Group, slot: int) -> int | None:
    """The least threshold at which ``fits`` of the page holds, by trying all forms; None: there is none."""
    numbers, found = numbers_of(instance), []
    choices = [offered(instance.layers[layer], group) for layer in span.layers]
    for forms in product(*choices):
        stage = PricedStage(numbers, Plan((Stage(span, group, forms),)), 0)
        if not instance.constraints.memory or peak_bytes(stage, slot + 1) <= capacity_bytes(stage):
            found.append(stage.total_ns)
    return min(found, default=None)


@settings(max_examples=so_many(60))
@given(st.data())
def test_a_stage_fits_from_the_least_time_on(data: st.DataObject) -> None:
    drawn = data.draw(free_instances())
    cost = replace(drawn.cost, boundary_charge=BoundaryCharge.LINK)
    limits = Constraints(memory=data.draw(st.booleans()))
    instance = build_instance(drawn.layer_graph, drawn.cluster_graph, drawn.training, cost, limits)
    total = len(instance.layers)
    first = data.draw(st.integers(0, total - 1))
    span = Span(first, data.draw(st.integers(first + 1, total)))
    group = data.draw(groups(instance))
    slot = data.draw(st.integers(0, instance.devices - 1))
    least = least_that_fits(instance, span, group, slot)

    def fits(threshold_ns: int) -> bool:
        kinds = (GroupKind.of(instance, group),)
        stages = StageFits(instance, kinds, threshold_ns)
        return stages.first_that_fits(slot, 0, (span.first,), span.stop) == span.first

    if least is None:
        assert not fits(1 << 60)
    else:
        assert fits(least) and (least == 0 or not fits(least - 1))
