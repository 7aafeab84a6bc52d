"""The tables, cell by cell, against the formulas that they were built apart from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs import times
from pipecut.formulation.costs.bulk.alike import number_of_forms
from pipecut.formulation.costs.bulk.crossing import crossing_bytes
from pipecut.formulation.costs.tables import all_tables, build_tables, line_groups
from pipecut.formulation.problem.groups import Group, GroupKind, forms_on
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.layers import SINGLE_FORMS, Split
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import groups, instances, on_grids
from tests.laws import so_many


@st.composite
def priced(draw):
    """Tables over some groups of any placement, not only of the line."""
    instance = draw(instances())
    chosen = draw(st.lists(groups(instance), min_size=1, max_size=5))
    return build_tables(instance, tuple(chosen))


def check_compute(tables):
    for k, kind in enumerate(tables.kinds):
        for layer in range(len(tables.instance.layers)):
            assert tables.compute[k, layer] == times.least_compute_ns(tables.instance, layer, kind)


def check_inside(tables):
    instance = tables.instance
    for k, kind in enumerate(tables.kinds):
        for at, layer in enumerate(instance.layers):
            forms = range(number_of_forms(instance.layers))
            own = layer.split is not Split.FOLLOW or kind.tensor_parallel_degree == 1
            laid_out = forms if kind.axes else SINGLE_FORMS
            possible = forms_on(layer, kind) if own else laid_out
            for form in forms:
                if form not in possible:
                    assert tables.inside[k, at, form] >= FORBIDDEN
                    continue
                # A layer that follows another has columns of forms in which that one cannot be.
                more = max(0, times.compute_ns(instance, at, form, kind) - tables.compute[k, at])
                assert tables.inside[k, at, form] == times.inside_ns(instance, at, form, kind) + more


def check_between(tables):
    instance = tables.instance
    for k, kind in enumerate(tables.kinds):
        for at, edge in enumerate(instance.form_edges):
            every = range(number_of_forms(instance.layers))
            for source in every:
                for form in every:
                    if max(source, form) not in SINGLE_FORMS and not kind.axes:
                        continue
                    expected = times.between_ns(instance, edge, source, form, kind)
                    assert tables.between[k, at, source, form] == expected


def check_copies(tables):
    instance = tables.instance
    for at, copy in ((at, copy) for at, copy in enumerate(instance.copies) if copy is not None):
        own = tables.copies[copy.earlier, at]
        for (k, kind), form in itertools.product(enumerate(tables.kinds), range(own.shape[1])):
            if tables.inside[k, at, form] < FORBIDDEN:
                alone = times.inside_ns(instance, at, form, kind)
                assert own[k, form] == times.inside_ns(instance, at, form, kind, copy) - alone


CHECKS = (check_compute, check_inside, check_between, check_copies)


@pytest.mark.parametrize("check", CHECKS)
@given(priced())
def test_cells(check, tables):
    check(tables)


@pytest.mark.parametrize("check", CHECKS)
@settings(max_examples=so_many(25))
@given(on_grids())
def test_pairs_of_forms(check, found):
    """On a group in a grid, and on the same one that is in none."""
    check(build_tables(*found))


def test_weights_that_are_copied_over_equal_distances_are_alike():
    """As the biases of attention that all blocks of T5 share: they are priced once."""
    rows = [matrix(f"l{at}", 100, 4000) for at in range(6)]
    graph = chain(rows, [8] * 5)
    graph.graph["ties"] = ((("l0", "l2", "l4"), 400, 400),)
    tables = all_tables(instance_of(graph, mesh(2, 2)))
    assert tables.instance.alike == (0, 0, 2, 0, 2, 5)
    check_copies(tables)


@given(priced())
def test_boundaries(tables):
    instance, total = tables.instance, len(tables.instance.layers)
    for x, link in enumerate(tables.links):
        assert [*tables.activation[x, 1:total]] == [
            times.activation_ns(instance, c, link) for c in range(1, total)
        ]
        assert [*tables.gradient[x, 1:total]] == [times.gradient_ns(instance, c, link) for c in range(1, total)]
    ends = np.array([tables.activation[:, [0, total]], tables.gradient[:, [0, total]]])
    assert not ends.any()


@given(instances())
def test_what_crosses_every_cut_is_counted_in_one_pass(instance):
    cuts = range(len(instance.layers) + 1)
    assert crossing_bytes(instance) == [times.cut_bytes(instance, cut) for cut in cuts]


@given(priced())
def test_kinds_and_links_of_groups(tables):
    instance = tables.instance
    for g, group in enumerate(tables.groups):
        assert tables.kinds[tables.kind_of[g]] == GroupKind.of(instance, group)
    apart = [
        (one, other)
        for one, a in enumerate(tables.groups)
        for other, b in enumerate(tables.groups)
        if not {server for server, _ in a.counts} & {server for server, _ in b.counts}
    ]
    for one, other in apart:
        link = Group.link_between(instance, tables.groups[one], tables.groups[other])
        assert tables.links[tables.link_index(one, other)] == link


@given(instances())
def test_neighbours_on_the_line_have_a_link(instance):
    places = line_groups(instance)
    tables = build_tables(instance, tuple(places.values()))
    index = {place: at for at, place in enumerate(places)}
    for first, count in places:
        for more in range(1, instance.devices - first - count + 1):
            other = (first + count, more)
            link = tables.links[tables.link_index(index[first, count], index[other])]
            assert link == Group.link_between(instance, places[first, count], places[other])


@pytest.mark.parametrize("devices", [1, 2, 5])
def test_line_groups_are_all_runs(devices):
    instance = instance_of(chain([matrix("a")], []), mesh(*[1] * devices))
    places = line_groups(instance)
    assert len(places) == devices * (devices + 1) // 2
    assert all(places[first, count] == Group.on_line(instance, first, count) for first, count in places)
    assert all(group.devices == count for (_, count), group in places.items())


def test_kinds_are_shared():
    """Two equal servers of two devices: one, two inside, two across, three, four."""
    instance = instance_of(chain([matrix("a")], []), mesh(2, 2))
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    assert sorted(kind.devices for kind in tables.kinds) == [1, 2, 3, 4]
