"""The evaluator on plans priced by hand, and the check of claims that rests on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import FalseClaimError, Outcome, Proof, checked
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.options import Boundary, BoundaryCharge, Combine, CostModel, Samples, StageTime
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.units import Link
from tests.examples import GIGA, chain, follow, instance_of, join, matrix, mesh

LAYERS = chain(
    [
        matrix("a", 10, weights=8, made=6),
        matrix("b", 20, weights=4, taken=6, made=10),
        matrix("c", 5, weights=2, taken=10),
    ],
    [6, 10],
)
CLUSTER = mesh(2, 1, between=Link(4 * GIGA))
PLAN = Plan((Stage(Span(0, 2), Group(((0, 2),)), (0, 1)), Stage(Span(2, 3), Group(((1, 1),)), (0,))))
# Stage 0: a 5 + 10, b 10 + 20 of computation; weights of a 8, rows to columns 2 * 6 / 4, partial sums of b 10.
# Stage 1: 5 + 10 on one device. The cut: 10 bytes at 2 ns, each way.
ADD, OVERLAP = StageTime.ADD, StageTime.OVERLAP
LINK, RECEIVER = BoundaryCharge.LINK, BoundaryCharge.RECEIVER


def priced(**options):
    return evaluate(
        instance_of(LAYERS, CLUSTER, CostModel(flops_per_mac=1, samples=Samples.FRACTIONS, **options)), PLAN
    )


def test_where_the_time_goes():
    head, tail = priced().stages
    assert (head.compute_ns, head.inside_ns, head.between_ns, head.received_ns) == (45, 18, 3, 0)
    assert (head.total_ns, head.boundary_ns, head.communication_ns) == (66, 0, 21)
    assert (tail.compute_ns, tail.communication_ns, tail.total_ns, tail.boundary_ns) == (15, 0, 15, 40)


def test_what_receivers_pay():
    head, tail = priced(boundary_charge=RECEIVER).stages
    assert (head.received_ns, head.total_ns) == (20, 86)
    assert (tail.received_ns, tail.total_ns) == (20, 35)


@pytest.mark.parametrize(
    ("stage_time", "charge", "boundary", "largest", "total"),
    [
        (ADD, LINK, Boundary.BOTH, 66, 66 + 15 + 40),
        (ADD, LINK, Boundary.ACTIVATION, 66, 66 + 15 + 20),
        (ADD, LINK, Boundary.NONE, 66, 66 + 15),
        (ADD, RECEIVER, Boundary.BOTH, 86, 86 + 35),
        (ADD, RECEIVER, Boundary.ACTIVATION, 66, 66 + 35),
        (OVERLAP, LINK, Boundary.BOTH, 45, 45 + 15 + 40),
        (OVERLAP, RECEIVER, Boundary.BOTH, 45, 45 + 20),
        (OVERLAP, RECEIVER, Boundary.NONE, 45, 45 + 15),
    ],
)
def test_every_reading_of_the_objective(stage_time, charge, boundary, largest, total):
    options = {"stage_time": stage_time, "boundary_charge": charge, "boundary": boundary}
    assert priced(**options).objective == largest
    assert priced(**options, combine=Combine.SUM).objective == total


def test_a_boundary_can_be_the_bottleneck():
    """100 bytes at 2 ns each way exceed both stages, if links pay."""
    layers = chain([matrix("a", 10), matrix("b", 10)], [100])
    instance = instance_of(layers, mesh(1, 1, between=Link(4 * GIGA)))
    plan = Plan((Stage(Span(0, 1), Group(((0, 1),)), (0,)), Stage(Span(1, 2), Group(((1, 1),)), (0,))))
    assert evaluate(instance, plan).objective == 400


def test_layouts_from_another_stage_are_free():
    """A norm behind a cut sums its weights as in form 0; its consumer takes any layout at no charge."""
    layers = chain([matrix("a"), follow("norm", weights=12), matrix("b", weights=9, made=2)], [50, 50])
    instance = instance_of(layers, mesh(1, 2))
    apart = (
        Stage(Span(0, 1), Group(((0, 1),)), (0,)),
        Stage(Span(1, 3), Group(((1, 2),)), (0, 1)),
    )
    tail = evaluate(instance, Plan(apart)).stages[1]
    assert (tail.inside_ns, tail.between_ns) == (12 + 2, 0)


def test_a_follow_layer_sums_weights_in_the_layout_of_its_source():
    """Behind form 2 a norm's weights are split with the columns; behind form 1 all gradients are alike."""
    layers = chain([matrix("a", weights=7), follow("norm", weights=12)], [50])
    instance = instance_of(layers, mesh(2))
    inside = [
        evaluate(instance, Plan((Stage(Span(0, 2), Group(((0, 2),)), (form, 0)),))).stages[0].inside_ns
        for form in (0, 1, 2)
    ]
    assert inside == [7 + 12, 50, 0]


def test_a_skip_pays_for_its_layout_inside_a_stage_only():
    """a feeds the sum past b, 8 bytes: rows to whole on two devices is 4 forward, and nothing backward."""
    layers = layer_graph(
        "skip", [matrix("a", made=8), matrix("b"), join("sum")], [("a", "b", 0), ("a", "sum", 8), ("b", "sum", 0)]
    )
    instance = instance_of(layers, mesh(1, 2))
    whole = Plan((Stage(Span(0, 3), Group(((0, 1), (1, 1))), (0, 0, 1)),))
    assert evaluate(instance, whole).stages[0].between_ns == 4
    cut = Plan((Stage(Span(0, 1), Group(((0, 1),)), (0,)), Stage(Span(1, 3), Group(((1, 2),)), (0, 1))))
    assert evaluate(instance, cut).stages[1].between_ns == 0
    assert evaluate(instance, cut).stages[1].boundary_ns == 16


def test_no_price_for_what_is_no_plan():
    found = evaluate(instance_of(LAYERS, CLUSTER), Plan(PLAN.stages[:1]))
    assert (found.objective, found.stages, found.feasible) == (None, (), False)


CLAIM = Outcome("test", Proof.OPTIMAL, PLAN, 66, 66)
SWAPPED = Plan((replace(PLAN.stages[0], forms=(0, 7)), PLAN.stages[1]))


def test_a_true_claim_passes():
    instance = instance_of(LAYERS, CLUSTER)
    for claim in (CLAIM, replace(CLAIM, proof=Proof.FEASIBLE, bound=None), Outcome("test", Proof.UNKNOWN)):
        assert checked(instance, claim) is claim


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objective": 65, "bound": 65}, "claimed 65 ns, the evaluator finds 66 ns"),
        ({"bound": 65}, "claimed optimal with bound 65 ns and objective 66 ns"),
        ({"bound": None}, "claimed optimal with bound None"),
        ({"proof": Proof.FEASIBLE, "bound": 67}, "bound 67 ns above the objective 66 ns"),
        ({"proof": Proof.INFEASIBLE}, "claimed infeasible and returned a plan"),
        ({"plan": None}, "claimed 66 ns without a plan"),
        ({"plan": None, "objective": None, "bound": None}, "claimed optimal without a plan"),
        ({"plan": SWAPPED}, "form 7, expected 0, 1, 2"),
        ({"plan": Plan((PLAN.stages[0], replace(PLAN.stages[1], forms=(1,))))}, "form 1, expected 0"),
    ],
)
def test_a_false_claim_is_caught(change, said):
    with pytest.raises(FalseClaimError, match=said):
        checked(instance_of(LAYERS, CLUSTER), replace(CLAIM, **change))


def test_gap():
    assert CLAIM.gap == 0
    assert replace(CLAIM, bound=33).gap == 0.5
    assert replace(CLAIM, bound=None).gap is None
