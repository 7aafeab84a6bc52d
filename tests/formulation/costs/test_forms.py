"""The volumes of the three forms, against the tables of PipePar's and AccPar's papers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from pipecut.formulation.costs import forms
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.layers import FORMS, Across, Axis, Split
from pipecut.formulation.problem.modes import Mode, modes
from pipecut.formulation.problem.options import AllReduce, CostModel
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.shares import equal_shares
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import NOTHING, Volume
from tests.examples import chain, join, matrix, mesh

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)

# AccPar Table 5 with alpha = beta = 1/2 and E as large as F: shares of |F|, producer's form by consumer's.
ACCPAR_BETWEEN = (
    (0, 2 * QUARTER, HALF),
    (HALF, HALF, 0),
    (2 * QUARTER, 0, HALF),
)
WEIGHTS, OUTPUT, INPUT = Fraction(1000), Fraction(100), Fraction(10)
GATHERED, SUMMED = Fraction(7), Fraction(8)


def changed(consumer: Split, source: int, form: int, size: int, devices: int) -> Volume:
    """What one of so many equal devices moves at an edge."""
    shares = equal_shares(devices, 1)
    parts = (size * shares.rows.gather, size * shares.rows.turn, 2 * size * shares.rows.turn)
    (have, *_), (want, *_) = forms.layouts(consumer, source, form)
    return forms.between(have, want, devices, parts=parts)


def spent(split: Split, form: int, devices: int, kind: AllReduce) -> list[Volume]:
    """What one replica on so many devices moves for a layer: in its passes, and for its weights."""
    passes = forms.inside(split, form, devices, sizes=(OUTPUT, INPUT), own=(GATHERED, SUMMED), kind=kind)
    held = forms.held(split, form, Fraction(1, devices))
    sync = forms.all_reduce(held * WEIGHTS, forms.holders(split, form, devices, 1), kind)
    return [volume for volume in (*passes, sync) if volume != NOTHING]


@pytest.mark.parametrize("source", FORMS)
@pytest.mark.parametrize("form", FORMS)
def test_between_on_two_devices_is_accpars_table(source, form):
    found = changed(Split.MATRIX, source, form, 1000, 2)
    assert found.amount_bytes == 1000 * ACCPAR_BETWEEN[source][form]


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_between_on_n_devices(n):
    """AccPar's Table 5 for n devices instead of two, in whole tensors."""
    beta, mixed = Fraction(n - 1, n), Fraction(2 * (n - 1), n * n)
    expected = ((0, mixed, beta), (beta, beta, 0), (mixed, 0, beta))
    for source in FORMS:
        for form in FORMS:
            assert changed(Split.MATRIX, source, form, 7, n).amount_bytes == 7 * expected[source][form]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_join_keeps_one_layout_for_everything(n):
    """Whole to split is free forward, so it is paid backward only; the producer's own form changes nothing."""
    beta, mixed = Fraction(n - 1, n), Fraction(2 * (n - 1), n * n)
    expected = ((0, beta, mixed), (beta, 0, beta), (mixed, beta, 0))
    for source in FORMS:
        for form in FORMS:
            assert changed(Split.JOIN, source, form, 7, n).amount_bytes == 7 * expected[source][form]


def test_messages_count_peers_each_way():
    """Rows to columns moves F and E, each to n - 1 peers; whole to rows moves only E; no bytes, no message."""
    assert changed(Split.MATRIX, 0, 1, 9, 3) == Volume(Fraction(4), 4)
    assert changed(Split.MATRIX, 1, 0, 9, 3) == Volume(Fraction(6), 2)
    assert changed(Split.MATRIX, 2, 1, 9, 3) == NOTHING


@pytest.mark.parametrize(
    ("form", "amount"), [(0, WEIGHTS), (1, OUTPUT), (2, INPUT)], ids=["weights", "output", "input"]
)
def test_each_form_of_a_matrix_sums_another_tensor(form, amount):
    """AccPar Table 4: Type I sums the weight gradient, II the output, III the input gradient."""
    assert spent(Split.MATRIX, form, 2, AllReduce.PLAIN) == [Volume(amount, 1)]
    assert spent(Split.MATRIX, form, 4, AllReduce.RING) == [Volume(amount * Fraction(6, 4), 6)]


@pytest.mark.parametrize(("form", "amount"), [(3, OUTPUT), (4, INPUT)], ids=["output", "input"])
def test_sums_to_rows_and_gathered_rows_are_halves_of_a_sum_in_either_pass(form, amount):
    """Korthikanti et al. §4.2.2: what reduce-scatter and all-gather move together is what the all-reduce moved."""
    assert spent(Split.MATRIX, form, 4, AllReduce.RING) == [Volume(amount * Fraction(3, 4), 3)] * 2
    assert forms.holders(Split.MATRIX, form, 4, 2) == 2


@pytest.mark.parametrize("split", [Split.FOLLOW, Split.JOIN])
def test_other_layers_sum_their_weights_under_form_0_only(split):
    assert [spent(split, form, 2, AllReduce.RING) for form in FORMS] == [[Volume(WEIGHTS, 2)], [], []]


@pytest.mark.parametrize(
    ("split", "form", "amount", "devices"),
    [
        (Split.MATRIX, 0, 1000, 8),  # rows over all devices of all replicas
        (Split.MATRIX, 1, 250, 2),  # a shard of the matrix, over the replicas
        (Split.MATRIX, 2, 250, 2),
        (Split.JOIN, 1, 1000, 2),  # whole copies of the data: the gradient of one replica is complete
        (Split.FOLLOW, 2, 250, 2),  # columns bring their own weights
    ],
)
def test_replicas_sum_the_gradients_of_what_they_both_hold(split, form, amount, devices):
    held = forms.held(split, form, Fraction(1, 4))
    found = forms.all_reduce(held * 1000, forms.holders(split, form, 4, 2), AllReduce.RING)
    assert found == Volume(Fraction(2 * (devices - 1) * amount, devices), 2 * (devices - 1))


@pytest.mark.parametrize("kind", AllReduce)
def test_one_device_shares_nothing(kind):
    assert forms.all_reduce(WEIGHTS, 1, kind) == NOTHING
    assert changed(Split.MATRIX, 0, 1, 9, 1) == NOTHING
    one, two = Group(((0, 1),)), Group(((0, 2),))
    assert forms_on(matrix("a", allowed=(1, 2)), one) == (0,)
    assert forms_on(matrix("a", allowed=(1, 2)), two) == (1, 2)


@pytest.mark.parametrize(
    ("devices", "replicas", "expected"),
    [(2, 1, (0, 1, 2, 5)), (3, 1, (1, 5)), (4, 2, (1, 2, 5)), (6, 3, ())],
)
def test_devices_have_whole_heads_and_whole_samples(devices, replicas, expected):
    """Four heads and micro-batches of two samples: no two replicas share one, in a ring and whole neither."""
    across = Across(Axis.CONTEXT, pieces=4, samples=2)
    row = replace(join("a"), allowed_forms=(0, 1, 2, 5), across=across)
    assert forms_on(row, Group(((0, devices),), Mode(replicas))) == expected


@pytest.mark.parametrize(("replicas", "kept"), [(1, True), (2, True), (3, False), (6, False)])
def test_no_plan_has_more_replicas_than_samples_where_rows_may_be_tokens(replicas: int, kept: bool) -> None:
    """Replicas of one device, too: their form is 0 whatever the layer may take."""
    attention = replace(join("a"), across=Across(Axis.CONTEXT, pieces=6))
    whole = Constraints(tensor_parallel_degrees=(1, 2, 3, 6), splits=(Axis.SEQUENCE,))
    training = Training(global_batch=4, micro_batches=2)
    instance = build_instance(chain([matrix("b"), attention], [8]), mesh(6), training, CostModel(), whole)
    plan = Plan((Stage(Span(0, 2), Group(((0, 6),), Mode(replicas)), (0 if replicas == 6 else 1,) * 2),))
    broken = {one.rule for one in evaluate(instance, plan).violations}
    assert ("forms" not in broken) is kept
    assert (Mode(replicas) in modes(instance, 6)) is kept
    plain = replace(instance, constraints=replace(whole, splits=()))
    assert evaluate(plain, plan).feasible


@pytest.mark.parametrize("kind", AllReduce)
def test_a_ring_takes_keys_and_values_round_once_and_back_with_their_gradients(kind):
    found = forms.inside(Split.JOIN, 5, 4, sizes=(OUTPUT, INPUT), own=(GATHERED, SUMMED), kind=kind)
    assert found == (Volume(GATHERED, 3), Volume(2 * GATHERED, 6))


def test_a_loss_adds_up_three_numbers_a_token():
    ring = spent(Split.JOIN, 7, 4, AllReduce.RING)
    assert ring == [Volume(3 * SUMMED * Fraction(6, 4), 18)]
    assert changed(Split.JOIN, 2, 7, 9, 3) == NOTHING  # scores by columns stay where they are


def test_tokens_go_to_experts_and_back_in_two_all_to_alls_a_pass():
    """Of 9 bytes on 3 devices each has 3 and sends 2 of them; here the fullest device has twice its share."""
    assert changed(Split.MATRIX, 0, 6, 9, 3) == Volume(2 * 2 * Fraction(2), 2 * 2)
    assert changed(Split.JOIN, 6, 0, 9, 3) == Volume(2 * 2 * Fraction(2), 2 * 2)
    assert changed(Split.MATRIX, 6, 6, 9, 3) == NOTHING
    assert forms.held(Split.MATRIX, 6, Fraction(1, 3)) == Fraction(1, 3)
    assert forms.holders(Split.MATRIX, 6, 3, 2) == 2
    assert spent(Split.MATRIX, 6, 3, AllReduce.RING) == []


def test_ring_and_plain_agree_on_two_devices_only():
    ring = [forms.all_reduce(OUTPUT, n, AllReduce.RING).amount_bytes for n in (2, 3, 4)]
    assert ring == [100, Fraction(400, 3), 150]
    assert forms.all_reduce(OUTPUT, 4, AllReduce.PLAIN).amount_bytes == 100
