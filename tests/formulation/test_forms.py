"""The volumes of the three forms, against the tables of PipePar's and AccPar's papers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from formulation import forms
from formulation.layers import FORMS, Split
from formulation.options import AllReduce
from formulation.units import NOTHING, Volume

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)

# AccPar Table 5 with alpha = beta = 1/2 and E as large as F: shares of |F|, producer's form by consumer's.
ACCPAR_BETWEEN = (
    (0, 2 * QUARTER, HALF),
    (HALF, HALF, 0),
    (2 * QUARTER, 0, HALF),
)
WEIGHTS, OUTPUT, INPUT = Fraction(1000), Fraction(100), Fraction(10)


@pytest.mark.parametrize("source", FORMS)
@pytest.mark.parametrize("form", FORMS)
def test_between_on_two_devices_is_accpars_table(source, form):
    found = forms.between(Split.MATRIX, source, form, 1000, 2)
    assert found.amount_bytes == 1000 * ACCPAR_BETWEEN[source][form]


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_between_on_n_devices(n):
    """The formulas of papers.md §1.11, in whole tensors."""
    beta, mixed = Fraction(n - 1, n), Fraction(2 * (n - 1), n * n)
    expected = ((0, mixed, beta), (beta, beta, 0), (mixed, 0, beta))
    for source in FORMS:
        for form in FORMS:
            assert forms.between(Split.MATRIX, source, form, 7, n).amount_bytes == 7 * expected[source][form]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_join_keeps_one_layout_for_everything(n):
    """Whole to split is free forward, so it is paid backward only; the producer's own form changes nothing."""
    beta, mixed = Fraction(n - 1, n), Fraction(2 * (n - 1), n * n)
    expected = ((0, beta, mixed), (beta, 0, beta), (mixed, beta, 0))
    for source in FORMS:
        for form in FORMS:
            assert forms.between(Split.JOIN, source, form, 7, n).amount_bytes == 7 * expected[source][form]


def test_messages_count_peers_each_way():
    """Rows to columns moves F and E, each to n - 1 peers; whole to rows moves only E; no bytes, no message."""
    assert forms.between(Split.MATRIX, 0, 1, 9, 3) == Volume(Fraction(4), 4)
    assert forms.between(Split.MATRIX, 1, 0, 9, 3) == Volume(Fraction(6), 2)
    assert forms.between(Split.MATRIX, 2, 1, 9, 3) == NOTHING


@pytest.mark.parametrize(
    ("form", "amount"), [(0, WEIGHTS), (1, OUTPUT), (2, INPUT)], ids=["weights", "output", "input"]
)
def test_each_form_of_a_matrix_sums_another_tensor(form, amount):
    """AccPar Table 4: Type I sums the weight gradient, II the output, III the input gradient."""
    sizes = (WEIGHTS, OUTPUT, INPUT)
    plain = forms.inside(Split.MATRIX, form, 2, sizes=sizes, kind=AllReduce.PLAIN)
    assert plain == Volume(amount, 1)
    ring = forms.inside(Split.MATRIX, form, 4, sizes=sizes, kind=AllReduce.RING)
    assert ring == Volume(amount * Fraction(6, 4), 6)


@pytest.mark.parametrize("split", [Split.FOLLOW, Split.JOIN])
def test_other_layers_sum_their_weights_under_form_0_only(split):
    volumes = [forms.inside(split, form, 2, sizes=(WEIGHTS, OUTPUT, INPUT), kind=AllReduce.RING) for form in FORMS]
    assert volumes == [Volume(WEIGHTS, 2), NOTHING, NOTHING]


@pytest.mark.parametrize("kind", AllReduce)
def test_one_device_shares_nothing(kind):
    assert forms.all_reduce(WEIGHTS, 1, kind) == NOTHING
    assert forms.between(Split.MATRIX, 0, 1, 9, 1) == NOTHING
    assert forms.forms_on((1, 2), 1) == (0,)
    assert forms.forms_on((1, 2), 2) == (1, 2)


def test_ring_and_plain_agree_on_two_devices_only():
    ring = [forms.all_reduce(OUTPUT, n, AllReduce.RING).amount_bytes for n in (2, 3, 4)]
    assert ring == [100, Fraction(400, 3), 150]
    assert forms.all_reduce(OUTPUT, 4, AllReduce.PLAIN).amount_bytes == 100
