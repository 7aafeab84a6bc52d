import os
import pickle
from pathlib import Path

import pytest

from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.problem.layers import Split, layers_of
from pipecut.ingest.graphs.foreign import SHOWN, FormatError
from pipecut_literature.pipedream.profile import (
    LARGEST_FILE,
    ProfiledLayer,
    ProfiledModel,
    measured_layers,
    read_profile,
)

DATA = Path(os.environ.get("PIPECUT_DATA", Path(__file__).parents[4] / "shared" / "data"))
NUMBERS = "forward_compute_time=0.361, backward_compute_time=1.5, activation_size=512.000, parameter_size=40.0"
LSTM = "forward_compute_time=3.190, backward_compute_time=5e-3, activation_size=[8.0; 2.0; 2.0], parameter_size=0"


def written(tmp_path, text):
    path = tmp_path / "graph.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_small_profile(tmp_path):
    conv, lstm = f"node1 -- Conv2d(3, 64, kernel_size=(1, 1)) -- {NUMBERS}", f"node2 -- LSTM(1, 1) -- {LSTM}"
    model = read_profile(written(tmp_path, f"{conv}\n{lstm}\n\tnode1 -- node2\n"))
    assert model.layers == (
        ProfiledLayer("node1", "Conv2d(3, 64, kernel_size=(1, 1))", 361_000, 1_500_000, 512, 40),
        ProfiledLayer("node2", "LSTM(1, 1)", 3_190_000, 5_000, 12, 0),
    )
    assert model.edges == ((0, 1),)


def test_stages_of_the_optimiser_and_repeated_edges(tmp_path):
    text = f"a -- Size(0) -- {NUMBERS} -- stage_id=3\nb -- View(-1) -- {NUMBERS}\n\ta -- b\n\ta -- b"
    model = read_profile(written(tmp_path, text))
    assert [layer.stage for layer in model.layers] == [3, None]
    assert model.edges == ((0, 1), (0, 1))


def test_times_finer_than_a_nanosecond_are_rounded_up(tmp_path):
    numbers = NUMBERS.replace("0.361", "0.0000001")
    assert read_profile(written(tmp_path, f"a -- X -- {numbers}")).layers[0].forward_ns == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x", "found 'x', expected 'node -- description -- forward_compute_time=..., ...'"),
        ("", "found '', expected"),
        (f"a -- one -- two -- {NUMBERS}", "expected 'stage_id=' and a number"),
        (f"a -- X -- {NUMBERS} -- stage=1", "found 'stage=1', expected 'stage_id=' and a number"),
        (f"a -- X -- {NUMBERS} -- stage_id=1 -- b", "expected 'node -- description"),
        (f"a -- X -- {NUMBERS.replace('forward_', 'foreward_')}", "expected forward_compute_time=..."),
        (f"a -- X -- {NUMBERS.removesuffix(', parameter_size=40.0')}", "parameter_size=..."),
        (f"a -- X -- {NUMBERS}, more=1", "expected forward_compute_time=..."),
        (f"a -- X -- {NUMBERS.replace('1.5', '-1.5')}", "backward_compute_time: found '-1.5', expected a decimal"),
        (f"a -- X -- {NUMBERS.replace('1.5', 'nan')}", "found 'nan', expected a decimal number, 0 or more"),
        (f"a -- X -- {NUMBERS.replace('1.5', '1e999')}", "found '1e999', expected a decimal number"),
        (f"a -- X -- {NUMBERS.replace('1.5', '1' * 99)}", "expected a decimal number"),
        (f"a -- X -- {NUMBERS.replace('1.5', '٣')}", "expected a decimal number"),
        (
            f"a -- X -- {NUMBERS.replace('512.000', '512.5')}",
            "activation_size: found '512.5', expected whole bytes",
        ),
        (f"a -- X -- {NUMBERS.replace('512.000', '[1.0, 2.0]')}", "expected forward_compute_time"),
        (f"a -- X -- {NUMBERS.replace('512.000', '[1.0; x]')}", "activation_size: found 'x', expected a decimal"),
        ("\tgood", "expected a tab and 'nodeA -- nodeB'"),
        ("\tgood -- good -- good", "expected a tab and 'nodeA -- nodeB'"),
        (f"good -- X -- {NUMBERS}", "layer 'good' appears twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, said):
    path = written(tmp_path, f"good -- X -- {NUMBERS}\n{line}\nlast -- X -- {NUMBERS}")
    with pytest.raises(FormatError) as error:
        read_profile(path)
    assert len(error.value.problems) == 1
    assert str(error.value).startswith(f"{path}:2: ")
    assert said in str(error.value)


def test_edges_need_two_layers(tmp_path):
    path = written(tmp_path, f"a -- X -- {NUMBERS}\n\ta -- b\n\tc -- a")
    with pytest.raises(FormatError) as error:
        read_profile(path)
    assert error.value.problems == (":2: no layer is called 'b'", ":3: no layer is called 'c'")


def test_a_cycle_is_named(tmp_path):
    path = written(tmp_path, f"a -- X -- {NUMBERS}\nb -- X -- {NUMBERS}\n\ta -- b\n\tb -- a")
    with pytest.raises(FormatError, match="a cycle, a -> b -> a"):
        read_profile(path)


def test_all_problems_come_at_once_and_not_too_many_of_them(tmp_path):
    path = written(tmp_path, "\n".join(["x"] * (SHOWN + 5)))
    with pytest.raises(FormatError) as error:
        read_profile(path)
    assert len(error.value.problems) == SHOWN + 5
    assert len(str(error.value).splitlines()) == SHOWN + 1
    assert "... and 5 more" in str(error.value)
    assert pickle.loads(pickle.dumps(error.value)).problems == error.value.problems  # noqa: S301 - our own


def test_a_file_has_a_largest_size_and_is_text(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_bytes(b"x" * (LARGEST_FILE + 1))
    with pytest.raises(FormatError, match="larger than"):
        read_profile(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="not UTF-8"):
        read_profile(path)
    with pytest.raises(OSError, match="missing"):
        read_profile(tmp_path / "missing")


# Nodes, edges, ms forward and backward, bytes of parameters, from the reference; GNMT's edges are its 58 lines.
PUBLISHED = [
    ("alexnet", 23, 23, 680.703, 40.520, 244403360),
    ("vgg16", 41, 41, 251.874, 438.633, 553430176),
    ("squeezenet1_0", 68, 76, 587.884, 172.119, 4993696),
    ("resnet18", 71, 79, 581.071, 152.296, 46758048),
    ("resnet50", 177, 193, 201.450, 260.931, 102228128),
    ("gnmt", 48, 58, 33.533, 55.883, 775063808),
    ("nasnetamobile", 921, 1078, 338.481, 261.363, 34343816),
]


def public(name):
    path = DATA / "pipedream-profiles" / name / "graph.txt"
    if not path.exists():
        pytest.skip(f"no public profile of {name} in the data folder")
    return read_profile(path)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row[0])
def test_public_profiles(row):
    name, nodes, edges, forward, backward, parameters = row
    model = public(name)
    assert (len(model.layers), len(model.edges)) == (nodes, edges)
    assert sum(layer.forward_ns for layer in model.layers) == round(forward * 1e6)
    assert sum(layer.backward_ns for layer in model.layers) == round(backward * 1e6)
    assert sum(layer.parameter_bytes for layer in model.layers) == parameters


# --- as a layer graph ---


def profiled(name, description, activation, parameters=0):
    return ProfiledLayer(name, description, 2_000, 3_000, activation, parameters)


def test_a_layer_graph_is_per_sample_and_its_times_are_not():
    layers = (
        profiled("sum", "Add", 9),
        profiled("in", "Input0", 64),
        profiled("left", "Linear(in_features=4)", 64, 400),
        profiled("right", "ReLU(inplace)", 65),
        profiled("spare", "__getitem__(1)", 4),
    )
    edges = ((1, 2), (2, 3), (2, 0), (3, 0), (3, 0), (3, 4))
    found = measured_layers(ProfiledModel(layers, edges), 32, "made", "V100")
    rows = layers_of(found)
    assert [row.name for row in rows] == ["left", "right", "sum"]
    assert [row.split for row in rows] == [Split.MATRIX, Split.FOLLOW, Split.JOIN]
    assert [row.allowed_forms for row in rows] == [(0,)] * 3
    assert [row.operator for row in rows] == ["Linear", "ReLU", "Add"]
    assert [row.output_bytes for row in rows] == [2, 3, 1]
    assert [row.stash_bytes for row in rows] == [2, 3, 1]
    assert [row.input_bytes for row in rows] == [0, 2, 5]
    assert [row.parameter_bytes for row in rows] == [400, 0, 0]
    assert dict(found.edges) == {
        ("left", "right"): {"bytes": 2},
        ("left", "sum"): {"bytes": 2},
        ("right", "sum"): {"bytes": 3},
    }
    assert [row.measured for row in rows] == [(Measured("V100", 32, 2_000, 3_000),)] * 3


def test_a_minibatch_is_needed_and_a_layer():
    model = ProfiledModel((profiled("a", "Input", 1),), ())
    with pytest.raises(ValueError, match="0 samples"):
        measured_layers(model, 0, "made", "V100")
    with pytest.raises(ValueError, match="the graph has no layer"):
        measured_layers(model, 1, "made", "V100")


@pytest.mark.parametrize(
    ("name", "samples"), [("vgg16", 128), ("resnet50", 128), ("gnmt", 64), ("nasnetamobile", 128)]
)
def test_public_profiles_as_layer_graphs(name, samples):
    model = public(name).planned()
    found = measured_layers(model, samples, name, "V100")
    assert len(found) == len(model.layers)
    times = [time for row in layers_of(found) for time in row.measured_on("V100")]
    assert sum(row.forward_ns for row in times) == sum(layer.forward_ns for layer in model.layers)
    assert sum(layer.parameter_bytes for layer in layers_of(found)) == sum(
        layer.parameter_bytes for layer in model.layers
    )
