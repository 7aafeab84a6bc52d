import itertools
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from pipecut_literature.common.downsets import NothingFitsError, TooManyDownsetsError
from pipecut_literature.dnn_partitioning.dp import load, place
from pipecut_literature.dnn_partitioning.file import (
    EdgeCosts,
    PlacementNode,
    PlacementProblem,
    read_dnn_partitioning,
)
from pipecut_literature.dnn_partitioning.graph import ContiguousSets, contracted, original, prepared, with_twins

DATA = Path(os.environ.get("PIPECUT_DATA", Path(__file__).parents[4] / "shared" / "data"))


def problem(name):
    path = DATA / "dnn-partitioning" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no public graph {name} in the data folder")
    return read_dnn_partitioning(path, transfers=EdgeCosts.AS_PROGRAM)


# Graph, ideals, pairs of ideals; ms of largest load: all ideals, path, path of blocks, everything on one device.
PUBLISHED = [
    ("bert24_inference", 30, 464, 17.78990625, 17.78990625, 17.78990625, 92.406),
    ("bert24_training", 30, 464, 41.7458125, 41.7458125, 187.9138125, 217.813),
    ("resnet50_training", 242, 28971, 78.6318125, 78.6498125, 83.67440625, 462.381),
    ("resnet50_inference", 242, 28971, 33.7746660156, 33.7746660156, 39.398109375, 201.45),
    ("bert_l-3_inference", 1428, 675546, 27.9185676799, 27.9185676799, 37.4557297821, 49.3526),
]


@pytest.mark.slow
@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row[0])
def test_the_programs_own_results(row):
    name, ideals, pairs, best, line, blocks, one = row
    # The folder has ResNet-50 for training only; the published inference graph is its forward half.
    whole = problem("resnet50_training") if name == "resnet50_inference" else problem(name)
    graph = whole.forward() if name == "resnet50_inference" else whole
    plan = place(graph)
    assert (plan.ideals, plan.pairs) == (ideals, pairs)
    assert plan.max_load_s * 1000 == pytest.approx(best, abs=1e-9)
    check(graph, plan)
    for method, value in ((ContiguousSets.LINEAR, line), (ContiguousSets.PIPEDREAM, blocks)):
        plan = place(graph, method)
        assert plan.max_load_s * 1000 == pytest.approx(value, abs=1e-9)
        check(graph, plan)
    assert load(graph, range(len(graph.nodes)), accelerator=True) * 1000 == pytest.approx(one, abs=5e-5)


def check(graph, plan):
    """Every node once, colours together, capacities kept, and the loads as the definition has them."""
    listed = sorted(name for share in plan.shares for name in share.nodes)
    assert listed == sorted(node.identifier for node in graph.nodes)
    assert sum(share.accelerator for share in plan.shares) <= graph.accelerators
    assert sum(not share.accelerator for share in plan.shares) <= graph.cpus
    position = {node.identifier: index for index, node in enumerate(graph.nodes)}
    home = {}
    for number, share in enumerate(plan.shares):
        inside = [position[name] for name in share.nodes]
        assert share.load_s == pytest.approx(load(graph, inside, share.accelerator), rel=1e-12)
        for index in inside:
            colour = graph.nodes[index].colour
            assert colour is None or home.setdefault(colour, number) == number
        if share.accelerator:
            assert sum(graph.nodes[index].size_bytes for index in inside) <= graph.capacity_bytes
            assert all(graph.nodes[index].on_accelerator for index in inside)
    assert max(share.load_s for share in plan.shares) == pytest.approx(plan.max_load_s, rel=1e-12)


# --- against exhaustive search, on graphs made up here ---


def made_up(seed, size=6, backward=False, density=0.4):
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    edges = [pair for pair in itertools.combinations(range(size), 2) if chance.random() < density]
    nodes = [node(n, chance, backward=False, colour=n if chance.random() < 0.8 else n // 2) for n in range(size)]
    if backward:
        mirror = {n: size + n for n in range(size)}
        nodes += [node(mirror[n], chance, backward=True, colour=nodes[n].colour) for n in range(size)]
        edges += [(mirror[b], mirror[a]) for a, b in edges] + [(n, mirror[n]) for n in range(size)]
    return PlacementProblem(tuple(nodes), tuple(edges), 2, 1, 25.0)


def node(number, chance, backward, colour):
    return PlacementNode(
        number,
        f"n{number}",
        chance.randrange(1, 20) / 1000,
        chance.randrange(20, 200) / 1000,
        float(chance.randrange(5)),
        chance.randrange(8) / 1000,
        chance.random() < 0.9,
        backward,
        colour,
    )


def closed_sets(graph, colours):
    """All downsets of the forward part that split no colour class."""
    forward = [index for index, node in enumerate(graph.nodes) if not node.backward]
    for chosen in itertools.product((False, True), repeat=len(forward)):
        mine = frozenset(index for index, one in zip(forward, chosen, strict=True) if one)
        shades = {colours[index] for index in mine}
        whole = all(index in mine for index in forward if colours[index] in shades)
        if whole and all(a in mine for a, b in graph.edges if b in mine):
            yield mine


def exhaustive(graph, inside):
    """Least largest load over all ways to hand nested downsets of the forward part to the devices."""
    colours = [node.colour for node in graph.nodes]
    closed = list(closed_sets(graph, colours))

    def cost(part, accelerator):
        shades = {colours[index] for index in part}
        members = [index for index, colour in enumerate(colours) if colour in shades]
        if accelerator and (
            sum(graph.nodes[index].size_bytes for index in members) > graph.capacity_bytes
            or not all(graph.nodes[index].on_accelerator for index in members)
        ):
            return float("inf")
        return load(graph, members, accelerator)

    best = {(0, 0, frozenset()): 0.0}
    for hosts, accelerators in itertools.product(range(graph.cpus + 1), range(graph.accelerators + 1)):
        for ideal in closed:
            options = [0.0] if not ideal else []
            for before in closed:
                if before <= ideal:
                    for kind in (0, 1):
                        earlier = (hosts - (1 - kind), accelerators - kind, before)
                        if earlier in best:
                            part = ideal - before
                            options.append(max(best[earlier], cost(part, bool(kind)) if part else 0.0))
            best[hosts, accelerators, ideal] = min(options, default=float("inf"))
    return best[graph.cpus, graph.accelerators, frozenset(inside)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("backward", [False, True])
def test_against_exhaustive_search(seed, backward):
    graph = made_up(seed, size=5 if backward else 6, backward=backward)
    forward = [index for index, node in enumerate(graph.nodes) if not node.backward]
    try:
        plan = place(graph)
    except NothingFitsError:
        assert exhaustive(graph, forward) == float("inf")
        return
    check(graph, plan)
    # Colour classes that wind around others are merged further by the program, so it can only be worse.
    least = exhaustive(graph, forward)
    assert plan.max_load_s == pytest.approx(least, rel=1e-12)
    for method in (ContiguousSets.LINEAR, ContiguousSets.PIPEDREAM):
        assert place(graph, method).max_load_s >= least - 1e-15


# --- the steps before the dynamic programme ---


def placement(size, edges, colours=None, busy=None, backward=()):
    nodes = tuple(
        PlacementNode(
            n,
            "",
            0.0 if busy and n not in busy else 0.001,
            0.0,
            0.0,
            0.0,
            True,
            n in backward,
            (colours or range(size))[n],
        )
        for n in range(size)
    )
    return PlacementProblem(nodes, tuple(edges), 2, 0, 1.0)


def parts(graph):
    return sorted(sorted(node.members) for node in graph.nodes)


def test_nodes_of_one_colour_and_of_one_cycle_of_colours_become_one():
    graph = placement(4, [(0, 1), (1, 2), (2, 3)], colours=[7, 8, 7, 9])
    assert parts(prepared(graph, ContiguousSets.IDEALS)) == [[0, 1, 2], [3]]


def test_an_idle_node_with_one_neighbour_joins_it():
    graph = placement(4, [(0, 1), (1, 2), (2, 3)], busy={1, 3})
    assert parts(prepared(graph, ContiguousSets.IDEALS)) == [[0, 1], [2], [3]]


def test_a_class_that_is_only_backward_gets_a_forward_twin():
    graph = placement(3, [(0, 1), (1, 2)], colours=[1, 2, 3], backward={1, 2})
    twinned = with_twins(contracted(original(graph)))
    assert len(twinned.nodes) == 5
    assert [node.members for node in twinned.nodes if node.number >= 100_000] == [(), ()]
    assert len(twinned.artificial) == 1


def test_blocks_merge_the_tails_of_their_edges():
    diamond = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)]
    assert parts(prepared(placement(5, diamond), ContiguousSets.PIPEDREAM)) == [[0, 1, 2], [3], [4]]
    assert parts(prepared(placement(5, diamond), ContiguousSets.LINEAR)) == [[0], [1], [2], [3], [4]]


def test_a_node_without_a_colour_is_a_class_of_its_own():
    graph = placement(3, [(0, 1), (1, 2)], colours=[None, None, 4])
    assert parts(prepared(graph, ContiguousSets.IDEALS)) == [[0], [1], [2]]


def test_one_output_is_paid_once_by_each_device():
    nodes = tuple(PlacementNode(n, "", 1.0, 9.0, 0.0, 0.5, True, False, n) for n in range(4))
    graph = PlacementProblem(nodes, ((0, 1), (0, 2), (0, 3), (1, 3), (2, 3)), 2, 0, 1.0)
    assert load(graph, [0], accelerator=True) == 1.5
    assert load(graph, [1, 2, 3], accelerator=True) == 3.5
    assert load(graph, [1, 2, 3], accelerator=False) == 27.0
    assert place(graph).max_load_s == 3.0  # {0, 1} and {2, 3}: 2 of work, 0.5 for node 0, 0.5 for node 1


def test_what_cannot_be_placed_is_an_error():
    graph = replace(placement(2, [(0, 1)]), capacity_bytes=0.0)
    too_large = replace(graph, nodes=tuple(replace(node, size_bytes=1.0) for node in graph.nodes))
    with pytest.raises(NothingFitsError):
        place(too_large)
    assert place(replace(too_large, cpus=1)).shares[0].accelerator is False
    with pytest.raises(TooManyDownsetsError):
        place(placement(12, []), limit=1000)
