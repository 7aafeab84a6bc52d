import json
import os
from pathlib import Path

import pytest

from ingest.graphs.errors import FormatError
from ingest.graphs.profiled_model import ProfiledLayer, ProfiledModel
from planners.piper.file import TimeUnit, piper_problem, read_piper
from tests.ingest.edited import edited

DATA = Path(os.environ.get("PIPECUT_DATA", Path(__file__).parents[4] / "shared" / "data"))


def alternative(name, into, out, time=0.5):
    return {
        "id": name,
        "timePerSample": time,
        "parameterSize": 100.0,
        "memoryUsageA": 7.5,
        "memoryUsageB": 200,
        "syncTimeFw": into,
        "syncTimeBw": out,
    }


GOOD = {
    "maxDevices": 4,
    "maxMemoryPerDevice": 8e9,
    "bandwidth": 25e9,
    "mbsInBatch": 6,
    "nodes": [
        {"id": 5, "name": "first", "TMPCs": {"1": [alternative("vanilla", {}, {"2": 3.0})]}},
        {
            "id": 2,
            "TMPCs": {
                "1": [
                    alternative("vanilla", {"5": 0.0}, {}),
                    alternative("activation recomp", {"5": 1.0}, {}, 0.75),
                ],
                "2": [alternative("vanilla", {"5": 4.0}, {}, 0.25)],
            },
        },
    ],
    "edges": [{"sourceId": 5, "destId": 2, "communicationCost": 64.0}],
}


def read(tmp_path, data, unit=TimeUnit.SECONDS):
    path = tmp_path / "piper.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return read_piper(path, time_unit=unit)


def changed(where, value):
    return edited(GOOD, where, value)


def test_a_small_file(tmp_path):
    problem = read(tmp_path, GOOD)
    assert [layer.name for layer in problem.layers] == ["first", "2"]
    assert problem.edges == ((0, 1, 64.0),)
    assert (problem.devices, problem.memory_bytes, problem.bytes_per_second, problem.micro_batches) == (
        4,
        8e9,
        25e9,
        6,
    )
    plain, again = problem.layers[1].alternatives[1]
    assert (plain.name, plain.time_s, plain.parameter_bytes) == ("vanilla", 0.5, 100.0)
    assert (plain.in_flight_bytes, plain.fixed_bytes) == (7.5, 200)
    assert (again.name, again.time_s, again.bytes_in, again.bytes_out) == ("activation recomp", 0.75, {0: 1.0}, {})
    assert problem.layers[0].alternatives[1][0].bytes_out == {1: 3.0}
    assert sorted(problem.layers[1].alternatives) == [1, 2]


def test_the_caller_says_what_the_times_mean(tmp_path):
    problem = read(tmp_path, GOOD, TimeUnit.MILLISECONDS)
    assert problem.layers[0].alternatives[1][0].time_s == 0.0005


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("mbsInBatch",), None, "mbsInBatch: found nothing"),
        (("maxBatchSize",), 6, "maxBatchSize: unknown key"),
        (("maxDevices",), 0, "maxDevices: found 0, expected at least 1"),
        (("bandwidth",), 0, "bandwidth: found 0, expected more than 0"),
        (("nodes", 1, "id"), 5, "nodes[0].id: found 5 again"),
        (("nodes", 1, "TMPCs", "x"), [], "nodes[1].TMPCs.x: found 'x', expected a tensor-parallel degree"),
        (("nodes", 1, "TMPCs", "02"), [], "nodes[1].TMPCs.02: found '02', expected a tensor-parallel degree"),
        (("nodes", 1, "TMPCs", "0"), [], "nodes[1].TMPCs.0: found '0', expected a tensor-parallel degree"),
        (("nodes", 1, "TMPCs", "1", 1, "id"), "vanilla", "nodes[1].TMPCs.1: two alternatives have the same id"),
        (("nodes", 1, "TMPCs", "1", 1, "id"), "", "nodes[1].TMPCs.1[1].id: found ''"),
        (
            ("nodes", 1, "TMPCs", "1", 0, "timePerSample"),
            -1,
            "TMPCs.1[0].timePerSample: found -1, expected at least 0",
        ),
        (
            ("nodes", 1, "TMPCs", "1", 0, "syncTimeFw"),
            {"9": 1.0},
            "TMPCs.1[0].syncTimeFw: found '9', expected the id",
        ),
        (("nodes", 1, "TMPCs", "1", 0, "syncTimeFw"), {"5": "x"}, "TMPCs.1[0].syncTimeFw.5: found 'x', expected"),
        (
            ("nodes", 1, "TMPCs", "1", 0, "syncTimeFw"),
            {},
            "layer 1, vanilla: expected an entry for each of its edges",
        ),
        (("nodes", 0, "TMPCs", "1", 0, "syncTimeBw"), {"5": 0.0}, "layer 0, vanilla: expected an entry for each"),
        (("edges", 0, "destId"), 8, "edges[0].destId: found 8, expected the id of a node"),
        (("edges", 0, "communicationCost"), None, "edges[0].communicationCost: found nothing"),
        (("edges", 0, "destId"), 5, "a cycle, "),
        (("edges",), [GOOD["edges"][0], GOOD["edges"][0]], "an edge appears twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, where, value, said):
    with pytest.raises(FormatError) as error:
        read(tmp_path, changed(where, value))
    assert said in str(error.value)


def test_the_public_problem(tmp_path):
    path = DATA / "piper" / "bert32a100.json"
    if not path.exists():
        pytest.skip("no public Piper problem in the data folder")
    problem = read_piper(path, time_unit=TimeUnit.SECONDS)
    assert (len(problem.layers), len(problem.edges), problem.micro_batches) == (37, 67, 1920)
    assert {tuple(layer.alternatives) for layer in problem.layers} == {(1, 2, 4, 8)}
    # A whole pass over BERT-32 takes about a second on one A100; read as ms it would be a thousandth of that.
    assert 0.5 < sum(layer.alternatives[1][0].time_s for layer in problem.layers) < 2


def test_a_profile_as_piper_makes_a_problem_of_it():
    layers = (
        ProfiledLayer("in", "Input", 7_000_000, 0, 400, 0),
        ProfiledLayer("fc", "Linear", 1_236_000, 1_442_000, 200, 40),
    )
    given = {"devices": 2, "memory_bytes": 1e9, "bytes_per_second": 25e9, "micro_batches": 8}
    problem = piper_problem(ProfiledModel(layers, ((0, 1), (0, 1))), **given)
    assert problem.edges == ((0, 1, 400.0),)
    plain, again = problem.layers[1].alternatives[1]
    assert (plain.time_s, plain.in_flight_bytes, plain.fixed_bytes) == (2.678, 200.0, 80.0)
    assert (again.time_s, again.in_flight_bytes) == (pytest.approx(3.914), 18.0)
    assert again.fixed_bytes == pytest.approx(0.91 * 200 + 80)
    assert (plain.bytes_in, plain.bytes_out) == ({0: 0.0}, {})
    meant = piper_problem(ProfiledModel(layers, ((0, 1),)), **given, time_unit=TimeUnit.MILLISECONDS)
    assert meant.layers[0].alternatives[1][0].time_s == pytest.approx(0.007)
