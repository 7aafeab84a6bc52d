"""Algorithm 1 against all forms one by one, and the forms that it finds for VGG16."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs import times
from pipecut.formulation.costs.tables import build_tables, line_groups
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import FORMS, Split, layer_graph
from pipecut.formulation.problem.options import AllReduce, CostModel, StageTime
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.reference.algorithm_1 import StageTimes, best_forms
from tests.examples import GIGA, TURING, chain, follow, instance_of, join, matrix, mesh, vgg16
from tests.generators import instances, layer_graphs
from tests.laws import so_many


def tables_of(instance):
    return build_tables(instance, tuple(line_groups(instance).values()))


def kind_of_all(tables):
    """The kind of the group of all devices."""
    return max(range(len(tables.kinds)), key=lambda kind: tables.kinds[kind].devices)


def spans(instance):
    total = len(instance.layers)
    return [Span(first, stop) for first in range(total) for stop in range(first + 1, total + 1)]


def communication(instance, kind, span, forms):
    """What a stage moves with these forms, and computes more than its layers do at least, by the formulas."""
    chosen = dict(zip(span.layers, forms, strict=True))
    layouts = {layer: times.layout_form(instance, span, layer) for layer in span.layers}
    form_of = {layer: 0 if source is None else chosen[source] for layer, source in layouts.items()}
    inside = sum(
        times.inside_ns(instance, layer, form, kind, instance.copied(layer, span.first))
        + times.compute_ns(instance, layer, form, kind)
        - times.least_compute_ns(instance, layer, kind)
        for layer, form in form_of.items()
    )
    return inside + sum(
        times.between_ns(instance, edge, chosen[edge.source], chosen[edge.consumer], kind)
        for edge in instance.form_edges
        if edge.source in span and edge.consumer in span
    )


def all_forms(instance, kind, span):
    choices = [
        (0,) if row.split is Split.FOLLOW else forms_on(row, kind)
        for row in instance.layers[span.first : span.stop]
    ]
    return itertools.product(*choices)


@settings(max_examples=so_many(80))
@given(instances())
def test_least_time_of_every_stage_is_the_least_over_all_forms(instance):
    tables = tables_of(instance)
    found = StageTimes.of(tables)
    overlap = instance.cost.stage_time is StageTime.OVERLAP
    for k, kind in enumerate(tables.kinds):
        for span in spans(instance):
            least = min(communication(instance, kind, span, forms) for forms in all_forms(instance, kind, span))
            compute = sum(times.least_compute_ns(instance, layer, kind) for layer in span.layers)
            assert found.communication[k, span.first, span.stop] == least
            assert found.compute(k)[span.first, span.stop] == compute
            expected = max(compute, least) if overlap else compute + least
            assert found.time[k, span.first, span.stop] == expected


@settings(max_examples=so_many(80))
@given(instances(layer_graphs(7)))
def test_best_forms_attain_the_least_communication(instance):
    tables = tables_of(instance)
    found = StageTimes.of(tables)
    for k, kind in enumerate(tables.kinds):
        for span in spans(instance):
            forms = best_forms(tables, k, span)
            assert forms in set(all_forms(instance, kind, span))
            assert communication(instance, kind, span, forms) == found.communication[k, span.first, span.stop]


@given(instances())
def test_a_stage_that_stops_later_never_takes_less(instance):
    found = StageTimes.of(tables_of(instance)).time
    assert (found[:, :, 1:-1] <= found[:, :, 2:])[:, *np.triu_indices(len(instance.layers) - 1)].all()


@given(instances(layer_graphs(splits=(Split.MATRIX, Split.JOIN), tied=False)))
def test_a_stage_that_starts_earlier_never_takes_less_without_weights_on_follow_layers_or_tied_ones(instance):
    found = StageTimes.of(tables_of(instance)).time
    assert (found[:, 1:, 2:] <= found[:, :-1, 2:])[:, *np.triu_indices(len(instance.layers) - 1)].all()


def test_a_stage_that_starts_earlier_can_take_less():
    """A norm at the head of a stage sums its weights as in form 0; behind a matrix of form 1 there is no need.

    So stage times are monotone in the end of a span, not in its start.
    """
    layers = chain([matrix("a", weights=9, taken=9, made=1), follow("norm", weights=50)], [1])
    tables = tables_of(instance_of(layers, mesh(2)))
    found = StageTimes.of(tables).time[kind_of_all(tables)]
    assert (found[0, 2], found[1, 2]) == (1, 50)


def test_spans_without_layers_are_forbidden():
    found = StageTimes.of(tables_of(instance_of(chain([matrix("a"), matrix("b")], [1]), mesh(2))))
    lower = np.tril_indices(2, 0, 3)
    assert (found.time[:, *lower] == FORBIDDEN).all()
    assert (found.communication[:, *lower] == FORBIDDEN).all()


def test_the_least_form_so_far_is_not_enough():
    """Defect f of the paper's listing: layer a alone is best in form 0, but before b in form 1.

    a: weights 4 (form 0), output 5 (form 1), input 9 (form 2). b can only take form 2: behind form 1 that is
    free, behind form 0 it fetches half of 100 bytes.
    """
    layers = chain([matrix("a", weights=4, taken=9, made=5), matrix("b", weights=8, taken=3, allowed=(2,))], [100])
    layers.nodes["a"]["layer"] = replace(layers.nodes["a"]["layer"], output_bytes=5)
    tables = tables_of(instance_of(layers, mesh(2)))
    kind = kind_of_all(tables)
    assert best_forms(tables, kind, Span(0, 1)) == (0,)
    assert best_forms(tables, kind, Span(0, 2)) == (1, 2)
    assert StageTimes.of(tables).communication[kind, 0].tolist() == [FORBIDDEN, 4, 5 + 3]


def residual():
    """A fork and a join: the sum wants the forms of both ends, the way between wants others."""
    layers = [
        matrix("fork", weights=90, taken=50, made=20),
        follow("norm", weights=6),
        matrix("left", weights=90, taken=20, made=70),
        follow("relu"),
        matrix("right", weights=80, taken=70, made=20),
        join("sum"),
        matrix("next", weights=90, taken=20, made=30),
    ]
    edges = [("fork", "norm", 20), ("norm", "left", 20), ("left", "relu", 70), ("relu", "right", 70)]
    edges += [("right", "sum", 20), ("norm", "sum", 20), ("sum", "next", 20)]
    return layer_graph("residual", layers, edges)


@pytest.mark.parametrize("devices", [2, 3])
def test_a_residual_join(devices):
    instance = instance_of(residual(), mesh(devices))
    tables = tables_of(instance)
    kind, span = kind_of_all(tables), Span(0, 7)
    prices = {
        forms: communication(instance, tables.kinds[kind], span, forms)
        for forms in all_forms(instance, tables.kinds[kind], span)
    }
    assert prices[best_forms(tables, kind, span)] == min(prices.values())
    assert StageTimes.of(tables).communication[kind, 0, 7] == min(prices.values())


def test_too_many_live_layers_are_named():
    """Nine layers that all feed the last one: nine choices to hold at once, besides its own."""
    layers = [*(matrix(f"way{at}") for at in range(9)), join("meet")]
    graph = layer_graph("wide", layers, [(f"way{at}", "meet", 1) for at in range(9)])
    tables = tables_of(instance_of(graph, mesh(2)))
    with pytest.raises(ValueError, match=r"layer way7: the forms of 8 layers .*way0, way1.*at most 7"):
        StageTimes.of(tables)
    assert StageTimes.of(tables, max_live=10).communication.min() == 0


def test_on_a_chain_two_layers_are_live_and_behind_a_skip_three():
    tables = tables_of(instance_of(chain([matrix(name) for name in "abcdef"], [1] * 5), mesh(2)))
    assert StageTimes.of(tables, max_live=2).time.shape == (2, 6, 7)
    with pytest.raises(ValueError, match="2 layers matter at once"):
        StageTimes.of(tables, max_live=1)
    with pytest.raises(ValueError, match=r"layer right: the forms of 3 .* .fork, left, right.,"):
        StageTimes.of(tables_of(instance_of(residual(), mesh(2))), max_live=2)


def test_layers_without_a_choice_do_not_count_as_live():
    layers = [*(matrix(f"way{at}", allowed=(at % 3,)) for at in range(20)), join("meet")]
    graph = layer_graph("wide", layers, [(f"way{at}", "meet", 4) for at in range(20)])
    tables = tables_of(instance_of(graph, mesh(2)))
    kind, span = kind_of_all(tables), Span(0, 21)
    forms = best_forms(tables, kind, span)
    assert StageTimes.of(tables).communication[kind, 0, 21] == communication(
        tables.instance, tables.kinds[kind], span, forms
    )


def test_times_beyond_64_bits_are_refused():
    """Where the instance is made: no table can be asked for."""
    with pytest.raises(ValueError, match="less than 36028797018963968 ns can be counted"):
        instance_of(chain([matrix("a", 1 << 54)], []), mesh(1))


def test_a_long_chain_of_forbidden_forms_stays_exact():
    """515 layers without form 0: sums of FORBIDDEN along the chain would leave 64 bits."""
    layers = [matrix(f"m{at}", weights=7, taken=3, made=3, allowed=(1, 2)) for at in range(515)]
    tables = tables_of(instance_of(chain(layers, [3] * 514), mesh(2)))
    kind = kind_of_all(tables)
    assert StageTimes.of(tables).communication[kind, 0, 515] == 3 * 515


def test_empty_spans_have_no_forms():
    tables = tables_of(instance_of(chain([matrix("a")], []), mesh(2)))
    with pytest.raises(ValueError, match="make no stage"):
        best_forms(tables, 0, Span(1, 1))


FC1, FC2, FC3 = 32, 35, 38


@pytest.mark.parametrize("all_reduce", AllReduce)
@pytest.mark.parametrize("batch", [64, 128])
@pytest.mark.parametrize("first", [0, 25, 32])
def test_vgg16_alternates_the_forms_of_its_matrices(all_reduce, batch, first):
    """Convolutions keep form 0, the three big matrices alternate between rows and columns of weights: 1, 2, 1.

    The paper's Table II prints 2, 1, 2. By its own cost tables that is dearer: form 2 of fc1 sums the
    gradient of 25,088 inputs a sample, form 1 the 4,096 outputs, at the same price for the layout before.
    """
    cost, link = CostModel(all_reduce=all_reduce), Link(10 * GIGA)
    instance = instance_of(vgg16(), mesh(2, inside=link, kind=TURING), cost, Training(batch))
    tables = tables_of(instance)
    span = Span(first, 39)
    forms = dict(zip(span.layers, best_forms(tables, kind_of_all(tables), span), strict=True))
    assert {layer: form for layer, form in forms.items() if form} == {FC1: 1, FC2: 2, FC3: 1}


def test_vgg16_price_of_the_forms_in_the_paper():
    """Both patterns by hand, in bytes at 1 ns: layout before fc1, then one sum in each layer (2 devices)."""
    instance = instance_of(vgg16(), mesh(2), training=Training(64))
    group, span = Group.on_line(instance, 0, 2), Span(0, 39)
    sample = 64 * 4
    before = sample * 25_088 // 2
    ours = before + sample * (4096 + 4096 + 1000)
    papers = before + sample * (25_088 + 4096 + 4096)
    convolutions = 4 * 14_714_688
    for pattern, expected in (((1, 2, 1), ours), ((2, 1, 2), papers)):
        forms = [0] * 39
        forms[FC1], forms[FC2], forms[FC3] = pattern
        (stage,) = evaluate(instance, Plan((Stage(span, group, tuple(forms)),))).stages
        assert stage.communication_ns == convolutions + expected


def test_vgg16_is_the_network_of_the_paper():
    instance = instance_of(vgg16(), mesh(1))
    assert len(instance.layers) == 39
    assert sum(instance.parameter_bytes) == 4 * 138_357_544
    assert sum(layer.macs for layer in instance.layers) == 15_470_264_320
    matrices = [at for at, layer in enumerate(instance.layers) if layer.split is Split.MATRIX]
    assert matrices == [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28, FC1, FC2, FC3]
    assert all(layer.allowed_forms == FORMS for layer in instance.layers)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(layer_graphs(7)), st.data())
def test_spans_between_chosen_cuts_are_those_of_the_whole_table(instance, data):
    total = len(instance.layers)
    inner = data.draw(st.sets(st.integers(1, total - 1))) if total > 1 else set()
    cuts = [0, *sorted(inner), total]
    tables = build_tables(instance, Group.possible(instance))
    whole, some = StageTimes.of(tables), StageTimes.of(tables, CutSpace(tuple(cuts)))
    assert np.array_equal(some.time, whole.time[:, cuts[:-1]][:, :, cuts])
    assert np.array_equal(some.communication, whole.communication[:, cuts[:-1]][:, :, cuts])
    assert np.array_equal(some.compute_sum, whole.compute_sum[:, cuts])


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances())
def test_stage_times_never_fall_when_a_layer_is_added(instance: Instance) -> None:
    times = StageTimes.of(build_tables(instance, tuple(line_groups(instance).values())))
    for kind in times.time:
        for first, row in enumerate(kind):
            real = row[first + 1 :]
            assert (real[1:] >= real[:-1]).all()
