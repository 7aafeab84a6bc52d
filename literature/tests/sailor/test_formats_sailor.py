import json
import math
import os
from pathlib import Path

import pytest

from pipecut.formulation.problem.plan import Span
from pipecut.ingest.graphs.foreign import FormatError
from pipecut_literature.sailor.plan_file import read_sailor_plan
from pipecut_literature.sailor.profile import LayerSizes, LayerTimes, LinkFit, SailorMeasurement, SailorReplica
from pipecut_literature.sailor.profile_file import read_links, read_sizes, read_times
from pipecut_literature.sailor.study import read_global_batch, read_machine, read_plans
from tests.ingest.edited import edited

DATA = Path(os.environ.get("PIPECUT_DATA", Path(__file__).parents[4] / "shared" / "data"))
CARD = ["GH-96", 4, "zone"]
PLAN = {
    "zone": "zone",
    "pipeline_list": [
        {
            "num_stages": 2,
            "layers_per_stage": [[0, 1, 2], [3, 4]],
            "tmp_per_stage": [[[[CARD], 4], [[CARD], 4]], [[[CARD, CARD], 8]]],
            "dp": [2, 1],
        }
    ],
    "mbs": 8,
    "gbs": 64,
    "real": 0.65705,
    "red_grads": 0.00414,
    "max_mem": 26942111744,
    "N": 2,
}
SIZES = {
    f"{kind}_{unit}": number
    for number, kind in enumerate(("params", "act_input", "act_output", "act_mem"), 1)
    for unit in ("floats", "bytes")
}
FIT = [[-0.5, 2.0, 10.0], 12.5e9]


def written(tmp_path, data):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def public(*steps):
    path = DATA.joinpath("sailor", *steps)
    if not path.exists():
        pytest.skip(f"no {'/'.join(steps)} in the data folder")
    return path


# --- layer times ---


def test_times_by_micro_batch_and_degree_in_the_order_of_the_layers(tmp_path):
    path = written(tmp_path, {"8": {"4": {"1": [0.003, 1e-06, 0], "0": [0.00048000000000000007, 2, 0.1]}}})
    assert read_times(path) == {
        (8, 4): (LayerTimes(480_001, 2_000_000_000, 100_000_000), LayerTimes(3_000_000, 1_000, 0))
    }


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"8": {"4": {"0": [1, 2]}}}, "8.4.0"),
        ({"8": {"4": {"0": [1, 2, 3, 4]}}}, "8.4.0"),
        ({"8": {"4": {"0": [1, -2, 3]}}}, "8.4.0[1]: found -2, expected at least 0"),
        ({"8": {"4": {"0": [1, "2", 3]}}}, "8.4.0[1]: found '2', expected a number"),
        ({"8": {"4": {"0": [1, 2, 3], "2": [1, 2, 3]}}}, "8.4: found layer '2', expected 0 to 1 without a gap"),
        ({"8": {"four": {"0": [1, 2, 3]}}}, "8.four: found key 'four', expected a whole number above 0"),
        ({"0": {"4": {"0": [1, 2, 3]}}}, "0: found key '0', expected a whole number above 0"),
        ([], "expected an object"),
    ],
)
def test_bad_times_are_named(tmp_path, data, said):
    with pytest.raises(FormatError) as error:
        read_times(written(tmp_path, data))
    assert said in str(error.value)


@pytest.mark.parametrize(("card", "tables"), [("GH-96", 21), ("RTX-3090", 22)])
def test_public_times(card, tables):
    found = read_times(public("profiles", "OPT-350", f"{card}.json"))
    assert len(found) == tables
    assert {len(layers) for layers in found.values()} == {26}
    if card == "GH-96":
        assert found[8, 4][:2] == (LayerTimes(922_000, 1_000, 479_000), LayerTimes(3_021_000, 6_469_000, 479_000))


# --- layer sizes ---


def test_sizes_keep_the_bytes(tmp_path):
    path = written(tmp_path, {"OPT": {"2": {"0": SIZES}}})
    assert read_sizes(path) == {"OPT": {2: (LayerSizes(1, 2, 3, 4),)}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"params_bytes": None}, "OPT.2.0.params_bytes: found nothing"),
        ({"params_bytes": 1.5}, "OPT.2.0.params_bytes: found 1.5, expected a whole number"),
        ({"params_bits": 1}, "OPT.2.0.params_bits: unknown key"),
    ],
)
def test_bad_sizes_are_named(tmp_path, change, said):
    row = {key: value for key, value in (SIZES | change).items() if value is not None}
    with pytest.raises(FormatError) as error:
        read_sizes(written(tmp_path, {"OPT": {"2": {"0": row}}}))
    assert said in str(error.value)


def test_public_sizes():
    found = read_sizes(public("layer_sizes.json"))["OPT-350"]
    assert {degree: len(rows) for degree, rows in found.items()} == {1: 26, 2: 26, 4: 26, 8: 26}
    assert found[1][1] == LayerSizes(50384896, 8388608, 8388608, 360726528)
    assert found[1][0].input_bytes == 4227072


# --- links ---


def test_a_fit_answers_in_bytes_per_second():
    fit = LinkFit(-0.5, 2.0, 10.0, 12.5e9)
    assert fit.bytes_per_second(1_000_000) == pytest.approx(10e9)
    assert fit.bytes_per_second(4_000_000) == pytest.approx((-0.5 * 4 + 2 * 2 + 10) * 1e9)
    with pytest.raises(ValueError, match="a message of 0 bytes"):
        fit.bytes_per_second(0)
    with pytest.raises(ValueError, match="outside of its range"):
        fit.bytes_per_second(10**12)


def test_links_by_card_and_count(tmp_path):
    links = read_links(written(tmp_path, {"inter": {"A": {"1": FIT}}, "intra": {"A": {"2": FIT}}}))
    assert dict(links.inter) == {("A", 1): LinkFit(-0.5, 2.0, 10.0, 12.5e9)}
    assert list(links.intra) == [("A", 2)]


@pytest.mark.parametrize(
    ("fit", "count", "said"),
    [
        ([[1.0, 2.0], 3.0], "2", "intra.A.2[0]"),
        ([[1.0, 2.0, 3.0]], "2", "intra.A.2"),
        ([[1.0, 2.0, "3"], 3.0], "2", "intra.A.2[0][2]: found '3', expected a number"),
        ([[1.0, 2.0, 3.0], 0.0], "2", "intra.A.2[1]: found 0.0, expected more than 0"),
        (FIT, "two", "intra.A: found key 'two', expected a whole number above 0"),
    ],
)
def test_bad_links_are_named(tmp_path, fit, count, said):
    with pytest.raises(FormatError) as error:
        read_links(written(tmp_path, {"inter": {}, "intra": {"A": {count: fit}}}))
    assert said in str(error.value)


def test_public_links():
    links = read_links(public("network_coeffs_all_homo.json"))
    assert (len(links.inter), len(links.intra)) == (24, 17)
    fit = links.inter["GH-96", 4]
    log = math.log2(8.388608)
    assert fit.bytes_per_second(8388608) == pytest.approx(1e9 * (fit.c2 * log**2 + fit.c1 * log + fit.c0))
    assert 70e9 < fit.bytes_per_second(8388608) < fit.peak_bytes_per_second


# --- plans ---


def changed(where, value):
    return edited(PLAN, where, value)


def test_a_plan(tmp_path):
    plan = read_sailor_plan(written(tmp_path, PLAN))
    first, second = plan.pipelines[0]
    assert (first.span, second.span) == (Span(0, 3), Span(3, 5))
    assert first.replicas == (SailorReplica((("GH-96", 4, "zone"),), 4),) * 2
    assert second.replicas[0].tensor_parallel_degree == 8
    assert (plan.micro_batch, plan.global_batch, plan.nodes, plan.micro_batches) == (8, 64, 2, 4)
    assert plan.measured == SailorMeasurement(657_050_000, 4_140_000, 26942111744)


def test_a_plan_that_was_not_run(tmp_path):
    data = {key: value for key, value in PLAN.items() if key not in ("real", "red_grads", "max_mem", "N", "zone")}
    plan = read_sailor_plan(written(tmp_path, data))
    assert (plan.measured, plan.nodes) == (SailorMeasurement(), None)


@pytest.mark.parametrize(
    ("gone", "measured"),
    [
        (["red_grads"], SailorMeasurement(657_050_000, None, 26942111744)),
        (["real", "red_grads"], SailorMeasurement(None, None, 26942111744)),
        (["max_mem"], SailorMeasurement(657_050_000, 4_140_000, None)),
    ],
)
def test_some_of_a_run_may_be_missing(tmp_path, gone, measured):
    data = {key: value for key, value in PLAN.items() if key not in gone}
    assert read_sailor_plan(written(tmp_path, data)).measured == measured


def test_a_plan_as_a_planner_writes_it(tmp_path):
    data = {key: value for key, value in PLAN.items() if key in ("pipeline_list", "mbs")}
    data |= {"estimated_throughput": 1.5, "estimated_cost": 0.1, "iter_time": 0.7, "used_gpus": {"GH-96": 12}}
    plan = read_sailor_plan(written(tmp_path, data), 128)
    assert (plan.global_batch, plan.micro_batches) == (128, 8)
    # The plan's own number counts before any other.
    assert read_sailor_plan(written(tmp_path, PLAN), 128).global_batch == 64


def test_a_replica_may_use_a_part_of_a_node(tmp_path):
    plan = read_sailor_plan(written(tmp_path, changed((*PIPELINE, "tmp_per_stage", 1, 0), [[CARD], 2])))
    replica = plan.pipelines[0][1].replicas[0]
    assert (replica.tensor_parallel_degree, replica.cards_per_node, replica.kinds) == (2, 2, ("GH-96",))
    wide = SailorReplica((("A", 4, "z"), ("B", 4, "z")), 8)
    assert (wide.cards_per_node, wide.kinds) == (4, ("A", "B"))


PIPELINE = ("pipeline_list", 0)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ((*PIPELINE, "num_stages"), 3, "layers_per_stage: found 2 entries, expected num_stages = 3"),
        ((*PIPELINE, "dp"), [2], "pipeline_list[0].dp: found 1 entries, expected num_stages = 2"),
        ((*PIPELINE, "dp"), [1, 1], "tmp_per_stage[0]: found 2 replicas, expected dp = 1"),
        (
            (*PIPELINE, "layers_per_stage"),
            [[0, 1], [3, 4]],
            "layers_per_stage: expected layers 0, 1, ... in order",
        ),
        ((*PIPELINE, "layers_per_stage"), [[0, 1, 2], []], "layers_per_stage: expected layers 0, 1, ... in order"),
        (
            (*PIPELINE, "tmp_per_stage", 1, 0),
            [[CARD], 8],
            "tmp_per_stage[1][0]: found 4 cards, expected at least 8",
        ),
        ((*PIPELINE, "tmp_per_stage", 1, 0), [[], 8], "tmp_per_stage[1][0][0]: found a list of 0"),
        ((*PIPELINE, "tmp_per_stage", 1, 0), [[CARD[:2]], 4], "tmp_per_stage[1][0][0][0]"),
        (("pipeline_list",), [], "pipeline_list: found a list of 0"),
        (("gbs",), 60, "gbs: found 60, expected a multiple of 8 samples x 2 replicas"),
        (("mbs",), 0, "mbs: found 0, expected at least 1"),
        (("gbs",), None, "gbs: found nothing, expected this key"),
        (("reel",), 1.0, "reel: unknown key"),
    ],
)
def test_contradictions_are_named(tmp_path, where, value, said):
    with pytest.raises(FormatError) as error:
        read_sailor_plan(written(tmp_path, changed(where, value)))
    assert said in str(error.value)


def test_public_plans_and_what_their_profile_says_of_them():
    folder = public("measured", "OPT-350-GH200")
    times = read_times(public("profiles", "OPT-350", "GH-96.json"))
    plans = [read_sailor_plan(path) for path in sorted(folder.glob("*.json"))]
    assert len(plans) == 15
    for plan in plans:
        assert plan.measured.iteration_ns is not None
        assert len(plan.pipelines) == 1
        assert plan.pipelines[0][-1].span.stop == 26
        rows = times[plan.micro_batch, 4]
        work = [
            sum(rows[layer].forward_ns + rows[layer].backward_ns for layer in stage.span.layers)
            for stage in plan.pipelines[0]
        ]
        # 1F1B without communication and update: fill once, then the slowest stage for every further micro-batch.
        ideal = sum(work) + (plan.micro_batches - 1) * max(work)
        if plan.micro_batch > 1:
            assert 0.81 < ideal / plan.measured.iteration_ns < 1
        else:
            # The profile of single samples is slower than the real runs: it was measured with more overhead.
            assert 1.19 < ideal / plan.measured.iteration_ns < 1.46


# --- folders ---

TIMES = {"8": {"4": {str(layer): [0.001, 0.002, 0.003] for layer in range(5)}}}


@pytest.fixture
def folder(tmp_path):
    files = {
        "layer_sizes.json": {"OPT": {"4": {str(layer): SIZES for layer in range(5)}}},
        "network_coeffs_x.json": {"inter": {"GH-96": {"1": FIT}}, "intra": {}},
        "training_config_x.json": {"global_batch_size": 1024, "heads": 16},
        "profiles/OPT/GH-96.json": TIMES,
        "measured/x/plan_10.json": PLAN,
        "measured/x/plan_9.json": PLAN,
    }
    for name, data in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data), encoding="utf-8")
    return tmp_path


def test_a_folder(folder):
    machine = read_machine(folder)
    assert list(machine.profiles) == [("GH-96", 4)]
    assert list(machine.sizes) == [4]
    assert read_global_batch(folder) == 1024
    assert list(read_plans(folder / "measured", None)) == ["x/plan_9", "x/plan_10"]


def test_a_folder_without_a_training_set_up_has_no_global_batch(folder):
    (folder / "training_config_x.json").unlink()
    assert read_global_batch(folder) is None


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("layer_sizes.json", "layer_sizes.json: found no such file, expected one file"),
        ("network_coeffs_x.json", "network_coeffs_*.json: found no such file, expected one file"),
        ("profiles/OPT/GH-96.json", "found no profile, expected <card>.json"),
    ],
)
def test_missing_files_are_named(folder, gone, said):
    (folder / gone).unlink()
    with pytest.raises(FormatError) as error:
        read_machine(folder)
    assert said in str(error.value)


def test_models_without_sizes_are_named(folder):
    (folder / "profiles" / "OPT").rename(folder / "profiles" / "BERT")
    with pytest.raises(
        FormatError, match=r"found BERT, expected one folder named like a model of layer_sizes\.json"
    ):
        read_machine(folder)


def test_a_profile_without_entries_is_named(folder):
    (folder / "profiles" / "OPT" / "GH-96.json").write_text("{}", encoding="utf-8")
    with pytest.raises(FormatError, match=r"GH-96\.json: found no layer times"):
        read_machine(folder)


def test_profiles_of_other_layers_are_named(folder):
    shorter = {"8": {"4": TIMES["8"]["4"], "2": {"0": [1, 2, 3]}}}
    (folder / "profiles" / "OPT" / "GH-96.json").write_text(json.dumps(shorter), encoding="utf-8")
    with pytest.raises(FormatError, match=r"GH-96\.json: 8\.2: found 1 layers, expected 5, as in layer_sizes"):
        read_machine(folder)


def test_plans_are_read_with_all_their_problems(folder):
    for name in ("plan_9", "plan_10"):
        (folder / "measured" / "x" / f"{name}.json").write_text('{"mbs": 1}', encoding="utf-8")
    with pytest.raises(FormatError) as error:
        read_plans(folder / "measured", None)
    assert "x/plan_9.json: pipeline_list: found nothing" in str(error.value)
    assert "x/plan_10.json: pipeline_list: found nothing" in str(error.value)
    with pytest.raises(FormatError, match="found no plan"):
        read_plans(folder / "profiles" / "nothing", None)
