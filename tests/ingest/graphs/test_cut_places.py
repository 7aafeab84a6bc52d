"""Where a model may be cut: what counts as a block, what the words mean, and what globs match."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn import functional

from pipecut.ingest.errors import ModelError
from pipecut.ingest.graphs.cut_places import blocks_of, cut_at
from pipecut.ingest.graphs.graph_file import graph_document, graph_from_document
from tests.ingest.torch.tiny_models import Calls, traced

X = (2, 8)


class Residual(nn.Module):
    """A block as a transformer has it: what it adds to stands before and behind its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.relu(self.up(self.norm(x))))


class Plain(nn.Sequential):
    """A block without a residual: two products, one behind the other."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def many(make: Callable[[], nn.Module], number: int = 3) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(make() for _ in range(number)))


def cuts_of(graph: nx.DiGraph) -> list[str]:
    return list(cut_at(graph, None).graph["cuts"])


def looped(m: Calls, x: torch.Tensor) -> torch.Tensor:
    x = m.embed(x)
    for block in m.blocks:
        x = block(x)
    return m.head(m.norm(x))


def ends() -> dict[str, Callable[[], nn.Module]]:
    return {"embed": lambda: nn.Linear(8, 8), "norm": lambda: nn.LayerNorm(8), "head": lambda: nn.Linear(8, 8)}


@pytest.fixture(scope="module")
def stack() -> nx.DiGraph:
    return traced(looped, X, blocks=lambda: nn.ModuleList(Residual() for _ in range(3)), **ends())


def test_a_model_is_cut_between_its_blocks_and_beside_them(stack: nx.DiGraph) -> None:
    assert cuts_of(stack) == ["blocks.0.norm", "blocks.1.norm", "blocks.2.norm", "norm", "head"]
    assert cut_at(stack, None).graph["notes"] == (
        "5 cut points, between blocks (3 Residual); model.cuts: operators would allow 17",
    )


def test_blocks_may_have_names_with_numbers_or_be_one_module_called_again() -> None:
    named = traced(lambda m, x: m.b3(m.b2(m.b1(x))), X, b1=Residual, b2=Residual, b3=Residual)
    assert cuts_of(named) == ["b2.norm", "b3.norm"]
    again = traced(lambda m, x: m.block(m.block(m.block(x))), X, block=Residual)
    assert cuts_of(again) == ["block.norm:1", "block.norm:2"]


def test_a_stage_of_blocks_is_opened_and_what_stands_between_stages_is_a_part() -> None:
    graph = traced(
        lambda m, x: m.layer2(m.down(m.layer1(x))),
        X,
        layer1=many(Residual, 2),
        down=lambda: nn.Linear(8, 8),
        layer2=many(Residual, 2),
    )
    assert cuts_of(graph) == ["layer1.1.norm", "down", "layer2.0.norm", "layer2.1.norm"]


def test_a_block_around_blocks_is_not_opened_where_more_than_its_input_crosses() -> None:
    def outer() -> nn.Module:
        return Calls(lambda m, x: x + m.inner(x), inner=many(Plain, 2)())

    graph = traced(lambda m, x: m.blocks(x), X, blocks=many(outer, 2))
    assert cuts_of(graph) == ["blocks.1.inner.0.0"]
    assert [block.name for block in blocks_of(graph)[0]] == ["blocks.0", "blocks.1"]


def test_branches_and_experts_are_no_blocks() -> None:
    def branches(m: Calls, x: torch.Tensor) -> torch.Tensor:
        return m.two(torch.cat([part(m.one(x)) for part in m.parts], 1))

    wide = lambda: nn.Linear(24, 8)  # noqa: E731
    graph = traced(branches, X, one=lambda: nn.Linear(8, 8), parts=many(Plain), two=wide)
    assert not blocks_of(graph)[0]
    found = cut_at(graph, None)
    assert "cuts" not in found.graph
    assert "repeats no block, so a stage may start at any layer" in found.graph["notes"][0]

    def expert_block() -> nn.Module:
        def mixed(m: Calls, x: torch.Tensor) -> torch.Tensor:
            gate = m.gate(x).softmax(-1)
            parts = [expert(x) * gate[:, at : at + 1] for at, expert in enumerate(m.experts)]
            return x + parts[0] + parts[1]

        return Calls(mixed, gate=nn.Linear(8, 2), experts=many(Plain, 2)())

    graph = traced(lambda m, x: m.layers(x), X, layers=many(expert_block, 2))
    assert cuts_of(graph) == ["layers.1.gate"]


def test_a_u_net_is_cut_between_its_parts() -> None:
    def net(m: Calls, x: torch.Tensor) -> torch.Tensor:
        one = m.enc1(x)
        two = m.enc2(one)
        return m.dec2(m.dec1(m.mid(two) + two) + one)

    graph = traced(net, X, enc1=Plain, enc2=Plain, mid=Plain, dec1=Plain, dec2=Plain)
    assert cuts_of(graph) == ["enc2.0", "mid.0", "dec1.0", "dec2.0"]


def test_a_head_that_is_a_product_of_the_model_itself_starts_a_part() -> None:
    def tied(m: Calls, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(functional.relu(m.blocks(m.embed(x))), m.embed.weight)

    graph = traced(tied, X, embed=lambda: nn.Linear(8, 8), blocks=many(Residual, 2))
    assert cuts_of(graph) == ["blocks.0.norm", "blocks.1.norm", "linear"]


@pytest.mark.parametrize(
    ("cuts", "expected"),
    [
        (("blocks.*",), ["blocks.0.norm", "blocks.1.norm", "blocks.2.norm"]),
        (("blocks.[12]", "head"), ["blocks.1.norm", "blocks.2.norm", "head"]),
        (("*.down", "norm"), ["blocks.0.down", "blocks.1.down", "blocks.2.down", "norm"]),
        (("blocks.1.add",), ["blocks.1.add"]),
        (("embed",), []),
    ],
)
def test_globs_cut_where_the_outermost_that_they_match_starts(
    stack: nx.DiGraph, cuts: Sequence[str], expected: list[str]
) -> None:
    found = cut_at(stack, cuts)
    assert list(found.graph["cuts"]) == expected and "notes" not in found.graph


def test_words_say_how_fine(stack: nx.DiGraph) -> None:
    assert "cuts" not in cut_at(stack, "operators").graph
    modules = cut_at(stack, "modules").graph["cuts"]
    assert "blocks.1.up" in modules and "blocks.1.add" not in modules
    assert cut_at(stack, "blocks").graph["cuts"] == cut_at(stack, None).graph["cuts"]


def test_a_glob_that_matches_nothing_is_refused(stack: nx.DiGraph) -> None:
    with pytest.raises(ModelError) as caught:
        cut_at(stack, ("head", "block.*", "zzz"))
    assert str(caught.value).startswith(
        "model.cuts[1]: no layer or module matches 'block.*'; the closest is 'blocks."
    )
    assert "; model.cuts[2]: no layer or module matches 'zzz'" in str(caught.value)


def test_a_file_keeps_modules_and_places(stack: nx.DiGraph) -> None:
    chosen = cut_at(stack, ("blocks.*",))
    again = graph_from_document(graph_document(chosen), "file")
    assert again.graph == chosen.graph
    assert cut_at(again, None).graph["cuts"] == chosen.graph["cuts"], "its own places come before blocks"
    assert cut_at(again, "blocks").graph["cuts"] == cut_at(stack, None).graph["cuts"]
    assert cut_at(again, "operators").graph.get("cuts") is None
    bare = stack.copy()
    del bare.graph["modules"]
    assert cut_at(bare, None).graph == bare.graph, "a graph that says nothing of modules is cut at any layer"
