import copy
import json
import os
from pathlib import Path

import pytest

from pipecut.ingest.graphs.foreign import FormatError
from pipecut_literature.common.json_source import LARGEST_FILE
from pipecut_literature.dnn_partitioning.file import LINK_BYTES_PER_SECOND, EdgeCosts, read_dnn_partitioning
from tests.ingest.edited import edited

DATA = Path(os.environ.get("PIPECUT_DATA", Path(__file__).parents[4] / "shared" / "data"))
SIZE = 2.0**20
GOOD = {
    "maxSizePerFPGA": 1e9,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {"id": 7, "name": "a", "supportedOnFpga": 1, "cpuLatency": 20.0, "fpgaLatency": 2.0, "isBackwardNode": 0},
        {
            "id": 3,
            "supportedOnFpga": False,
            "cpuLatency": 5,
            "fpgaLatency": 0.5,
            "isBackwardNode": False,
            "colorClass": 4,
            "size": 100.0,
            "layerId": 2,
        },
    ],
    "edges": [{"sourceId": 7, "destId": 3, "cost": SIZE / LINK_BYTES_PER_SECOND, "size": SIZE}],
}


def written(tmp_path, data):
    path = tmp_path / "graph.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def changed(where, value):
    return edited(GOOD, where, value)


def read(tmp_path, data, transfers=EdgeCosts.AS_PROGRAM):
    return read_dnn_partitioning(written(tmp_path, data), transfers=transfers)


def test_a_small_file(tmp_path):
    problem = read(tmp_path, GOOD)
    first, second = problem.nodes
    assert (first.identifier, first.name, first.accelerator_s, first.cpu_s) == (7, "a", 0.002, 0.02)
    assert (first.colour, first.size_bytes, first.on_accelerator, first.backward) == (None, 0.0, True, False)
    assert (second.colour, second.size_bytes, second.on_accelerator, second.cpu_s) == (4, 100.0, False, 0.005)
    assert (problem.accelerators, problem.cpus, problem.capacity_bytes) == (2, 1, 1e9)
    assert problem.edges == ((0, 1),)
    assert second.transfer_s == 0.0


def test_seconds_that_the_program_takes_for_milliseconds(tmp_path):
    # 1 MiB over 2 GiB/s is 1/2048 s, and that number stands in the file, beside latencies in ms.
    assert read(tmp_path, GOOD).nodes[0].transfer_s == pytest.approx(1 / 2048 / 1000)
    assert read(tmp_path, GOOD, EdgeCosts.FROM_SIZES).nodes[0].transfer_s == pytest.approx(1 / 2048)
    consistent = changed(("edges", 0, "cost"), 1000 / 2048)
    for reading in EdgeCosts:
        assert read(tmp_path, consistent, reading).nodes[0].transfer_s == pytest.approx(1 / 2048)


def test_a_unit_that_cannot_be_told(tmp_path):
    with pytest.raises(FormatError, match=r"edges\[0\]: cost and size do not agree"):
        read(tmp_path, changed(("edges", 0, "cost"), 0.01), EdgeCosts.FROM_SIZES)
    with pytest.raises(FormatError, match="no forward edge has a size"):
        read(tmp_path, changed(("edges", 0, "size"), None), EdgeCosts.FROM_SIZES)
    both = changed(("nodes",), [dict(GOOD["nodes"][0], id=number) for number in range(3)])
    both["edges"] = [
        {"sourceId": 0, "destId": 1, "cost": 1 / 2048, "size": SIZE},
        {"sourceId": 1, "destId": 2, "cost": 1000 / 2048, "size": SIZE},
    ]
    with pytest.raises(FormatError, match=r"s at edges\[0\], ms at edges\[1\]"):
        read(tmp_path, both, EdgeCosts.FROM_SIZES)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("maxFPGAs",), None, "maxFPGAs: found nothing, expected this key"),
        (("maxFPGAs",), -1, "maxFPGAs: found -1, expected at least 0"),
        (("maxFPGAs",), 2.5, "maxFPGAs: found 2.5, expected a whole number"),
        (("maxFPGA",), 1, "maxFPGA: unknown key"),
        (("maxSizePerFPGA",), "1 GB", "maxSizePerFPGA: found '1 GB', expected a number"),
        (("maxSizePerFPGA",), True, "maxSizePerFPGA: found True, expected a number of sensible size"),
        (("maxSizePerFPGA",), 10**400, "maxSizePerFPGA: found a number of 1329 bits, expected a number"),
        (("nodes",), [], "nodes: found a list of 0"),
        (("nodes",), {}, "nodes: found an object of 0, expected a list"),
        (("nodes", 0), 5, "nodes[0]: found 5, expected"),
        (("nodes", 1, "fpgaLatency"), -0.5, "nodes[1].fpgaLatency: found -0.5, expected at least 0"),
        (("nodes", 1, "fpgaLatency"), None, "nodes[1].fpgaLatency: found nothing"),
        (("nodes", 1, "isBackwardNode"), 2, "nodes[1].isBackwardNode: found 2, expected 0, 1, true or false"),
        (("nodes", 1, "isBackwardNode"), 1.0, "nodes[1].isBackwardNode: found 1.0, expected 0, 1"),
        (("nodes", 1, "id"), 7, "nodes[0].id: found 7 again, expected every id once"),
        (("nodes", 1, "colour"), 7, "nodes[1].colour: unknown key"),
        (("edges", 0, "destId"), 9, "edges[0].destId: found 9, expected the id of a node"),
        (("edges", 0, "cost"), "x", "edges[0].cost: found 'x', expected a number"),
        (("edges", 0, "isArtificial"), True, "edges[0].isArtificial: unknown key"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, where, value, said):
    with pytest.raises(FormatError) as error:
        read(tmp_path, changed(where, value))
    assert str(error.value).startswith(str(tmp_path / "graph.json") + ": ")
    assert said in str(error.value)


def test_all_problems_of_a_phase_come_at_once(tmp_path):
    data = changed(("maxFPGAs",), -1)
    data["nodes"][0]["cpuLatency"] = "slow"
    data["edges"][0]["more"] = 1
    with pytest.raises(FormatError) as error:
        read(tmp_path, data)
    assert len(error.value.problems) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", ":1:2: not JSON"),
        ('{\n"a": tru\n}', ":2:6: not JSON"),
        ('{"maxFPGAs": 1, "maxFPGAs": 2}', "key 'maxFPGAs' appears twice in one object"),
        ('{"maxFPGAs": NaN}', "NaN is not a number of JSON"),
        ('{"maxFPGAs": -Infinity}', "-Infinity is not a number of JSON"),
        ('{"maxFPGAs": ' + "9" * 5000 + "}", "4300"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "expected an object"),
    ],
)
def test_what_is_not_strict_json_is_refused(tmp_path, text, said):
    with pytest.raises(FormatError) as error:
        read(tmp_path, text)
    assert said in str(error.value)


def test_infinity_by_a_large_exponent_is_refused(tmp_path):
    with pytest.raises(FormatError, match="maxSizePerFPGA: found inf, expected"):
        read(tmp_path, json.dumps(GOOD).replace("1000000000.0", "1e999"))


def test_one_output_has_one_cost(tmp_path):
    data = changed(("nodes",), [dict(GOOD["nodes"][0], id=number) for number in range(3)])
    data["edges"] = [{"sourceId": 0, "destId": to, "cost": 0.5 + to} for to in (1, 2)]
    with pytest.raises(FormatError, match=r"edges\[1\].cost: found 2.5, expected 1.5"):
        read(tmp_path, data)


def test_cycles_and_edges_back_to_the_forward_part_are_refused(tmp_path):
    data = copy.deepcopy(GOOD)
    data["edges"].append({"sourceId": 3, "destId": 7, "cost": 0.0})
    with pytest.raises(FormatError, match="a cycle, "):
        read(tmp_path, data)
    with pytest.raises(FormatError, match="from a backward to a forward node"):
        read(tmp_path, changed(("nodes", 0, "isBackwardNode"), 1))


def test_a_file_has_a_largest_size(tmp_path):
    with pytest.raises(FormatError, match="larger than"):
        read(tmp_path, " " * (LARGEST_FILE + 1))


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "unit"),
    [
        ("bert24_inference", 32, 55, 1000),
        ("bert24_training", 64, 110, 1000),
        ("resnet50_training", 354, 386, 1000),
        ("bert_l-3_inference", 235, 250, 1),
    ],
)
def test_public_graphs(name, nodes, edges, unit):
    path = DATA / "dnn-partitioning" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no public graph {name} in the data folder")
    read = read_dnn_partitioning(path, transfers=EdgeCosts.AS_PROGRAM)
    meant = read_dnn_partitioning(path, transfers=EdgeCosts.FROM_SIZES)
    assert (len(read.nodes), len(read.edges)) == (nodes, edges)
    # Transfers of the layer graphs weigh a thousandth of what was meant; those of operator graphs are right.
    for one, other in zip(read.nodes, meant.nodes, strict=True):
        assert other.transfer_s == pytest.approx(one.transfer_s * unit)
