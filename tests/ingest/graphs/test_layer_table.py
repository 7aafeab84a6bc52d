"""Times of layers from a table: columns, units, modules, what is refused; and a trace that is none."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.problem.layers import Layer, LayerGraph, Split
from pipecut.ingest.errors import GraphFileError
from pipecut.ingest.graphs.foreign import FormatError
from pipecut.ingest.graphs.layer_profile import read_profile
from pipecut.ingest.graphs.layer_table import _divided, with_table
from pipecut.ingest.graphs.module_calls import ModuleCall


def graph() -> nx.DiGraph:
    macs = {"a.0": 30, "a.1": 10, "pool": 0, "b": 5}
    made = LayerGraph.chain(
        "m", [Layer(name, "x", Split.MATRIX, 8, 8, 8, 8, n) for name, n in macs.items()]
    ).graph()
    made.graph["modules"] = (ModuleCall("a", "Sequential", "a.0", "a.1"),)
    return made


def timed(
    folder: Path, text: str, classes: tuple[str, ...] = ("card",), samples: tuple[int, ...] = (4,)
) -> nx.DiGraph:
    path = folder / "times.csv"
    path.write_text(text, encoding="utf-8")
    return with_table(graph(), path, classes, samples)


def rows(found: nx.DiGraph) -> dict[str, tuple[Measured, ...]]:
    return {name: row["layer"].measured for name, row in found.nodes(data=True)}


@pytest.mark.parametrize(
    "text",
    [
        "layer,forward_ms,backward_ms\na.0,0.000003,0.000006\na.1,0.000001,0.000002\nb,0.000005,0.00001\n",
        "name,fwd (ns),bwd [ns]\nb,5,10\na.1,1,2\na.0,3,6\n",
        "layer,forward,backward\na.0,3 ns,6 ns\na.1,1 ns,0.002 us\nb,5 ns,10 ns\n\n",
        "Module,Forward Time (ns),Backward_ns,samples,device\na,4,8,4,card\nb,4.5,9.01,4,card\n",
        "name;fwd (ns);bwd (ns)\nb;5;10\na.1;1;2\na.0;3;6\n",
        "name\tfwd (ns)\tbwd (ns)\nb\t5\t10\na.1\t1\t2\na.0\t3\t6\n",
    ],
)
def test_columns_units_and_modules(tmp_path: Path, text: str) -> None:
    found = timed(tmp_path, text)
    assert rows(found) == {
        "a.0": (Measured("card", 4, 3, 6),),
        "a.1": (Measured("card", 4, 1, 2),),
        "pool": (Measured("card", 4, 0, 0),),
        "b": (Measured("card", 4, 5, 10),),
    }
    assert any("no row has pool, which take no time" in note for note in found.graph["notes"])


def test_several_classes_and_sizes(tmp_path: Path) -> None:
    text = "layer,forward_ns,backward_ns,samples,device\n"
    text += "".join(f"{name},{size},1,{size},{card}\n" for name in "ab" for size in (2, 4) for card in ("x", "y"))
    found = rows(timed(tmp_path, text, ("x", "y"), (2, 4)))
    assert found["b"] == tuple(Measured(card, size, size, 1) for size in (2, 4) for card in ("x", "y"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("layer,forward_ms,backward_ms\n", ":2: no row of times below the names of the columns"),
        ("layer,forward_ms,backward_ms\n\n , ,\n", ":2: no row of times below the names of the columns"),
        (
            "",
            ":1: no column 'layer' and 'forward' and 'backward'; expected columns like layer,forward_ms",
        ),
        ("layer,forward_ms\nb,1\n", ":1: no column 'backward'"),
        (
            "layer,forward_ms,backward_ms\nb,1,1\n",
            ": no row has layer a.0 and 1 more; name each layer, or the module",
        ),
        (
            "layer,forward_ms,backward_ms\nc,1,1\n",
            ": 'c' is no layer or module of the model, which",
        ),
        ("layer,forward_ms,backward_ms\na,1,1\na.1,1,1\n", ": 'a.1' has a.1, whose time another row has already"),
        ("layer,forward_ms,backward_ms\nb,1,1\nb,1,1\n", ":3: a second row of 'b'"),
        ("layer,forward_ms,backward_ms\nb,-1,1\n", ":2: forward: expected a number of 0 or more, got '-1'"),
        ("layer,forward,backward\nb,1,1\n", ":2: expected a duration like '5 us', got '1' without a unit"),
        ("layer,forward_ms,backward_ms\n,1,1\n", ":2: no layer is named"),
        ("layer,forward_ms,backward_ms,device\na,1,1,tpu\nb,1,1,tpu\n", ": device 'tpu' is not in the cluster"),
    ],
)
def test_what_does_not_fit_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FormatError) as caught:
        timed(tmp_path, text)
    assert f"times.csv{said}" in str(caught.value)


def test_a_table_says_what_cannot_be_known(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no column 'device' and 'samples'"):
        timed(tmp_path, "layer,forward_ms,backward_ms\n", ("x", "y"), (2, 4))


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_parts_of_a_module_add_up_to_its_time(works: list[int], forward: int, backward: int) -> None:
    works = works if any(works) else [1] * len(works)
    parts = _divided([str(at) for at in range(len(works))], works, (forward, backward))
    assert [sum(row) for row in zip(*parts.values(), strict=True)] == [forward, backward]
    assert all(part >= 0 for row in parts.values() for part in row)


def test_a_trace_of_a_profiler_is_told_how_to_come_to_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}', encoding="utf-8")
    with pytest.raises(
        GraphFileError, match=r"a profiler's trace, .*'pipecut profile SCENARIO --out profile\.json'"
    ):
        read_profile(path)
