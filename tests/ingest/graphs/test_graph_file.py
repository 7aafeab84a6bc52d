"""Layer graphs as files: exact round trips, and refusals that say what is wrong."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.problem.layers import Layer, Split, layer_graph, layers_of
from pipecut.ingest.errors import GraphFileError, ModelError
from pipecut.ingest.graphs import graph_file
from pipecut.ingest.graphs.graph_file import graph_document, graph_from_document, read_graph, write_graph
from pipecut.ingest.graphs.module_calls import ModuleCall

COUNTS = st.integers(0, 2**63 - 1)
TEXT = st.text(string.printable + "äß层:.", min_size=1, max_size=20)


@st.composite
def layers(draw: st.DrawFn, name: str) -> Layer:
    split = draw(st.sampled_from([Split.MATRIX, Split.JOIN]))
    forms = draw(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=3, unique=True))
    counts = (draw(COUNTS) for _ in range(6))
    return Layer(name, draw(TEXT), split, *counts, allowed_forms=tuple(forms), backward=draw(st.booleans()))


@st.composite
def graphs(draw: st.DrawFn) -> nx.DiGraph:
    names = draw(st.lists(TEXT, min_size=1, max_size=6, unique=True))
    pairs = [(start, end) for index, end in enumerate(names) for start in names[:index]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    edges = [(start, end, draw(COUNTS)) for start, end in chosen]
    graph = layer_graph(draw(TEXT), [draw(layers(name)) for name in names], edges, draw(st.integers(1, 16)))
    rows = layers_of(graph)
    if len(names) > 1 and draw(st.booleans()):
        users = tuple(draw(st.lists(st.sampled_from(names), min_size=2, unique=True)))
        size = draw(st.integers(0, min(row.parameter_bytes for row in rows)))
        graph.graph["ties"] = ((users, size, size),)
    if draw(st.booleans()):
        graph.graph["cuts"] = tuple(draw(st.lists(st.sampled_from(names), unique=True)))
    ends = draw(st.lists(st.integers(0, len(names) - 1), max_size=3))
    if ends:
        calls = [ModuleCall(draw(TEXT), draw(TEXT), names[0], names[end]) for end in sorted(ends, reverse=True)]
        graph.graph["modules"] = tuple(calls)
    return graph


def content(graph: nx.DiGraph) -> tuple[Any, ...]:
    return graph.graph, list(graph.nodes(data="layer")), {(a, b): size for a, b, size in graph.edges(data="bytes")}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@given(graph=graphs())
def test_a_graph_comes_back_exactly(folder: Path, graph: nx.DiGraph) -> None:
    path = folder / "graph.json"
    write_graph(graph, path)
    again = read_graph(path)
    assert content(again) == content(graph)
    first = path.read_bytes()
    write_graph(again, path)
    assert path.read_bytes() == first
    assert [entry.name for entry in folder.iterdir()] == ["graph.json"]


def chain() -> nx.DiGraph:
    made = [Layer(name, "Linear", Split.MATRIX, 4, 4, 4, 4, 1) for name in ("a", "b", "c")]
    return layer_graph("chain", made, [("a", "b", 4), ("b", "c", 4)])


def document() -> dict[str, Any]:
    return json.loads(json.dumps(graph_document(chain())))


def refusal(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GraphFileError) as caught:
        read_graph(path)
    assert isinstance(caught.value, ModelError)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.update(extra=1), "extra: unknown key"),
        (lambda d: d["layers"][1].update(weight=1), "layers[1].weight: unknown key"),
        (lambda d: d["layers"][1].pop("macs"), "layers[1].macs: missing"),
        (lambda d: d["layers"][0].update(macs=1.0), "layers[0].macs: expected a whole number, got 1.0"),
        (lambda d: d["layers"][0].update(macs="1"), "layers[0].macs: expected a whole number, got '1'"),
        (lambda d: d["layers"][0].update(macs=True), "layers[0].macs: expected a whole number, got true"),
        (lambda d: d["layers"][0].update(macs=-1), "layers[0].macs: expected 0 or more, got -1"),
        (lambda d: d["layers"][0].update(macs=2**63), "layers[0].macs"),
        (
            lambda d: d["layers"][0].update(split="sum"),
            "layers[0].split: expected 'matrix', 'follow' or 'join', got",
        ),
        (lambda d: d["layers"][0].update(allowed_forms=[]), "layers[0].allowed_forms"),
        (lambda d: d["layers"][0].update(allowed_forms=[8]), "layers[0].allowed_forms[0]"),
        (lambda d: d["layers"][0].update(name=""), "layers[0].name"),
        (lambda d: d["layers"][1].update(name="a"), "layer a appears twice"),
        (lambda d: d["edges"].append({"producer": "a", "consumer": "z", "bytes": 1}), "no layer z"),
        (
            lambda d: d["edges"].append({"producer": "c", "consumer": "a", "bytes": 1}),
            "against the execution order",
        ),
        (lambda d: d["edges"].append(d["edges"][0]), "appears twice"),
        (
            lambda d: d.update(ties=[{"layers": ["a", "z"], "parameter_bytes": 1}]),
            "ties: layer graph: weights are tied to layers that it does not have (z)",
        ),
        (
            lambda d: d.update(ties=[{"layers": ["b", "c"], "parameter_bytes": 5}]),
            "layer b has weights of 4 bytes, 4 of them trained, and shares 5 and 5 with later layers",
        ),
        (lambda d: d.update(ties=[{"layers": ["a"], "parameter_bytes": 1}]), "ties[0].layers"),
        (
            lambda d: d.update(ties=[{"layers": ["a", "a"], "parameter_bytes": 1}]),
            "expected two or more, each once",
        ),
        (
            lambda d: d.update(ties=[{"layers": ["a", "b"], "parameter_bytes": 1, "trainable_bytes": 2}]),
            "tied weights with trainable_bytes 2, expected 0 to 1",
        ),
        (lambda d: d.update(layers=[], edges=[]), "no layer"),
        (lambda d: d.update(version=3), "version: expected 1 or 2, got 3"),
        (lambda d: d.update(format="other"), "format: expected 'pipecut layer graph', got 'other'"),
        (lambda d: d.update(element_bytes=0), "element_bytes"),
    ],
)
def test_a_wrong_document_is_refused_with_the_place(tmp_path: Path, change: Any, expected: str) -> None:
    wrong = document()
    change(wrong)
    assert expected in refusal(tmp_path / "graph.json", json.dumps(wrong))


def test_all_problems_are_named_up_to_ten(tmp_path: Path) -> None:
    wrong = document()
    for entry in wrong["layers"]:
        for field in ("macs", "input_bytes", "output_bytes", "stash_bytes"):
            entry[field] = -1
    message = refusal(tmp_path / "graph.json", json.dumps(wrong))
    assert message.count("expected 0 or more") == 10
    assert message.endswith("and 2 more")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1, 2]", "the file: expected a section (keys with values), got a list"),
        ("null", "the file"),
        ('{"format": "x", "format": "y"}', "key 'format' appears twice"),
        ('{"version": NaN}', "NaN is not a number"),
        ("[" * 100_000, "nested too deeply"),
        ('{"version": ' + "9" * 10_000 + "}", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b'"\xff"', "not JSON"),
    ],
)
def test_what_is_no_document_is_refused(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert expected in refusal(tmp_path / "graph.json", text)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_file, "SIZE_LIMIT", 10)
    assert "larger than 10 bytes" in refusal(tmp_path / "graph.json", "[" + " " * 20 + "]")


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(GraphFileError, match=r"none\.json: cannot be read \(No such file or directory\)"):
        read_graph(tmp_path / "none.json")
    with pytest.raises(GraphFileError, match="cannot be read"):
        read_graph(tmp_path)


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    write_graph(chain(), path)
    before = path.read_bytes()
    too_large = chain()
    too_large.edges["a", "b"]["bytes"] = 2**63
    with pytest.raises(GraphFileError, match=r"edges\[0\]\.bytes"):
        write_graph(too_large, path)
    with pytest.raises(GraphFileError, match="cannot be written"):
        write_graph(chain(), tmp_path / "no such folder" / "graph.json")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_documented_example_is_a_graph() -> None:
    page = Path(__file__).parents[3] / "docs" / "formats" / "layer-graph.md"
    example = page.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    graph = graph_from_document(json.loads(example), "example")
    assert list(graph) == ["features.0", "features.1", "flatten", "classifier.0"]
    assert graph.graph["name"] == "tiny"


def of_version_1(*shared: dict[str, Any]) -> dict[str, Any]:
    """A document as the version before this one wrote it: weights of ``a``, of which others use some."""
    rows = [Layer(name, "Op", Split.MATRIX, size, 1, 1, 1, 1) for name, size in (("a", 9), ("b", 1), ("c", 1))]
    document = graph_document(layer_graph("old", rows, [("a", "b", 1), ("b", "c", 1)], 4))
    return document | {"version": 1, "shared_parameters": list(shared)}


def test_the_version_before_is_read_and_written_anew_as_this_one() -> None:
    pairs = [("b", 4), ("c", 4), ("c", 5)]
    shared = [{"first": "a", "other": other, "bytes": size} for other, size in pairs]
    graph = graph_from_document(of_version_1(*shared), "old.json")
    assert graph.graph["ties"] == ((("a", "b", "c"), 4, 4), (("a", "c"), 5, 5))
    again = graph_document(graph)
    assert again["version"] == graph_file.VERSION == 2 and "shared_parameters" not in again
    assert content(graph_from_document(again, "new.json")) == content(graph)
    assert "ties" not in graph_from_document(of_version_1(), "old.json").graph


def test_version_2_has_ties_alone() -> None:
    shared = {"first": "a", "other": "b", "bytes": 4}
    with pytest.raises(GraphFileError, match=r"x.json: shared_parameters: unknown key"):
        graph_from_document(of_version_1(shared) | {"version": 2}, "x.json")
