"""Lists of modules and counts of blocks: read over an instance, written back, and what is wrong with them."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exchange.layer_lists import layer_lists, read_layer_lists, write_layer_lists
from formulation.costs.megatron_forms import megatron_forms
from formulation.evaluate import evaluate
from formulation.problem.cluster import Server, cluster_graph
from formulation.problem.constraints import Constraints
from formulation.problem.groups import Group
from formulation.problem.instance import build_instance
from formulation.problem.layers import Layer, Split, layer_graph
from formulation.problem.options import CostModel, Training
from formulation.problem.plan import Plan, Span, Stage
from ingest.graphs.errors import FormatError
from tests.examples import BYTE_LINK, UNIT


def transformer(blocks=4):
    """An embedding, blocks of norm, wq, wk, attention, wo, add, a norm and a head, named as in torchtitan."""
    layers = [_matrix("tok_embeddings")]
    edges = []
    stream = "tok_embeddings"
    for block in range(blocks):
        at = f"layers.{block}"
        rows = [
            Layer(f"{at}.norm", "LayerNorm", Split.JOIN, 8, 8, 8, 8, 0, allowed_forms=(0, 1)),
            _matrix(f"{at}.attention.wq"),
            _matrix(f"{at}.attention.wk"),
            Layer(f"{at}.attention.sdpa", "attention", Split.JOIN, 0, 8, 8, 8, 0),
            _matrix(f"{at}.attention.wo"),
            Layer(f"{at}.add", "add", Split.JOIN, 0, 8, 8, 8, 0),
        ]
        norm, wq, wk, sdpa, wo, add = (row.name for row in rows)
        layers += rows
        edges += [
            (stream, norm),
            (norm, wq),
            (norm, wk),
            (wq, sdpa),
            (wk, sdpa),
            (sdpa, wo),
            (wo, add),
            (stream, add),
        ]
        stream = add
    layers += [Layer("norm", "LayerNorm", Split.JOIN, 8, 8, 8, 8, 0, allowed_forms=(0, 1)), _matrix("output")]
    edges += [(stream, "norm"), ("norm", "output")]
    return layer_graph("made", layers, [(a, b, 8) for a, b in edges])


def _matrix(name):
    return Layer(name, "Linear", Split.MATRIX, 80, 8, 8, 8, 1000)


def instance_of(graph, devices=8, degrees=()):
    cluster = cluster_graph("one", [Server("s", UNIT, devices, BYTE_LINK)], [])
    return build_instance(graph, cluster, Training(4), CostModel(), Constraints(tensor_parallel_degrees=degrees))


FOUR = instance_of(transformer())
TITAN = [["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["layers.3", "norm", "output"]]
SPANS = [Span(0, 7), Span(7, 19), Span(19, 27)]


def read(folder, text, instance=FOUR):
    path = folder / "plan.yaml"
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return read_layer_lists(path, instance)


def problems(folder, text, instance=FOUR):
    with pytest.raises(FormatError) as caught:
        read(folder, text, instance)
    return caught.value.problems


def spans(plan):
    return [stage.span for stage in plan.stages]


# --- lists of modules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        TITAN,
        {"module_fqns_per_model_part": TITAN},
        {"module_names_per_stage": TITAN},
        "- [tok_embeddings, layers.0]\n- [layers.1, layers.2]\n- [layers.3, norm, output]\n",
        "[[tok_embeddings, layers.0.norm, layers.0.attention], [layers.1, layers.2], [layers.3, norm, output]]",
    ],
)
def test_a_module_stands_for_the_layers_below_it(tmp_path, text):
    """In the last one ``layers.0.add`` is named nowhere: an operation, which stays with the layer before it."""
    plan = read(tmp_path, text)
    assert spans(plan) == SPANS
    assert [stage.group for stage in plan.stages] == [Group.on_line(FOUR, place, 1) for place in range(3)]
    assert evaluate(FOUR, plan).feasible


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(st.sets(st.integers(1, 26), max_size=7))
def test_any_plan_comes_back(tmp_path, cuts):
    ends = [0, *sorted(cuts), 27]
    stages = [
        Stage(Span(*span), Group.on_line(FOUR, place, 1), (0,) * (span[1] - span[0]))
        for place, span in enumerate(itertools.pairwise(ends))
    ]
    path = tmp_path / "plan.json"
    write_layer_lists(path, FOUR, Plan(tuple(stages)))
    assert read_layer_lists(path, FOUR) == Plan(tuple(stages))


def test_an_operation_that_took_weights_in_need_not_be_named(tmp_path):
    """A position embedding folded into the addition behind it, as the tracer does; a module must be named."""
    names = [("tokens", "Embedding"), ("add", "add"), ("blocks.0.add:1", "add"), ("head", "Linear")]
    rows = [Layer(name, operator, Split.MATRIX, 80, 8, 8, 8, 1000) for name, operator in names]
    edges = [(a.name, b.name, 8) for a, b in itertools.pairwise(rows)]
    instance = instance_of(layer_graph("folded", rows, edges))
    assert spans(read(tmp_path, [["tokens"], ["head"]], instance)) == [Span(0, 3), Span(3, 4)]
    assert problems(tmp_path, [["tokens"], ["blocks"]], instance) == (
        ": layer 'head' of the model is in no stage",
    )


def test_modules_are_written_as_short_as_they_can_be():
    plan = Plan(tuple(Stage(span, Group.on_line(FOUR, 0, 1), (0,) * len(span)) for span in SPANS))
    assert layer_lists(FOUR, plan) == TITAN
    inside = (Span(0, 4), Span(4, 27))
    split = Plan(tuple(Stage(span, Group.on_line(FOUR, 0, 1), (0,) * len(span)) for span in inside))
    assert layer_lists(FOUR, split) == [
        ["tok_embeddings", "layers.0.norm", "layers.0.attention.wq", "layers.0.attention.wk"],
        [
            *("layers.0.attention.sdpa", "layers.0.attention.wo", "layers.0.add"),
            *("layers.1", "layers.2", "layers.3", "norm", "output"),
        ],
    ]


def test_unknown_missing_and_repeated_layers_are_all_named(tmp_path):
    wrong = [
        ["tok_embeddings", "layers.0", "layers.9"],
        ["layers.0.norm", "layers.1", "layers.2", "layers.3", "norm"],
    ]
    assert problems(tmp_path, wrong) == (
        ": stage 0: no layer or module is called 'layers.9' in the model",
        ": layer 'layers.0.norm' is in stages 0 and 1",
        ": layer 'output' of the model is in no stage",
    )


def test_stages_that_are_no_runs_of_layers(tmp_path):
    found = problems(
        tmp_path, [["tok_embeddings", "layers.1"], ["layers.0", "layers.2", "layers.3", "norm", "output"]]
    )
    assert found == (
        ": layer 'layers.1.norm' of stage 0 comes after layer 'layers.0.add' of stage 1;"
        " expected stages that follow one another in execution order",
    )


def test_files_that_are_no_lists(tmp_path):
    assert problems(tmp_path, "[[a], []]") == (
        ": module_fqns_per_model_part: found a list of 2,"
        " expected lists of the modules of every stage, none empty",
    )
    assert problems(tmp_path, "{}") == (
        ": expected either module_fqns_per_model_part or pipeline_model_parallel_size",
    )
    both = {"module_fqns_per_model_part": TITAN, "pipeline_model_parallel_size": 2}
    assert "expected either" in problems(tmp_path, both)[0]
    assert problems(tmp_path, "pipeline_model_paralel_size: 2")[0] == (
        ": unknown key 'pipeline_model_paralel_size'; did you mean 'pipeline_model_parallel_size'?"
    )
    assert problems(tmp_path, "a: 1\na: 2\n")[0].startswith(":2: a: repeated key")
    assert problems(tmp_path, "[[a]")[0].startswith(":2: ") or "not valid YAML" in problems(tmp_path, "[[a]")[0]


# --- counts of blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("pipeline_model_parallel_size: 2", [2, 2]),
        ("--pipeline-model-parallel-size: 4\n--num-layers: 4", [1, 1, 1, 1]),
        ("pipeline_model_parallel_size: 1", [4]),
        ("pipeline_model_parallel_size: 3\ndecoder_first_pipeline_num_layers: 2", [2, 1, 1]),
        ("pipeline_model_parallel_size: 3\ndecoder_last_pipeline_num_layers: 2", [1, 1, 2]),
        (
            "pipeline_model_parallel_size: 2\ndecoder_first_pipeline_num_layers: 1\n"
            "decoder_last_pipeline_num_layers: 3",
            [1, 3],
        ),
        ("num_layers_per_stage: [1, 2, 1]", [1, 2, 1]),
        ("num_layers_per_stage: [3, 1]\npipeline_model_parallel_size: 2\nblocks: layers", [3, 1]),
    ],
)
def test_blocks_are_shared_as_megatron_shares_them(tmp_path, text, counts):
    """The embedding goes with the first block, the norm and head with the last; a block has six layers."""
    ends = [0, *(1 + 6 * done for done in itertools.accumulate(counts[:-1])), 27]
    assert spans(read(tmp_path, text)) == [Span(*span) for span in itertools.pairwise(ends)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pipeline_model_parallel_size: 3", "found 3 stages for 4 blocks; 4 blocks cannot be shared evenly by 3"),
        ("pipeline_model_parallel_size: 8", "4 blocks cannot be shared evenly by 8 stages"),
        (
            "pipeline_model_parallel_size: 2\ndecoder_first_pipeline_num_layers: 4",
            "4 blocks beside 4 in the first or last; 0 blocks cannot be shared evenly by 1 stages",
        ),
        ("pipeline_model_parallel_size: 0", "pipeline_model_parallel_size: found 0, expected a whole number"),
        ("pipeline_model_parallel_size: 2\nnum_layers: 6", "num_layers: found 6, expected the model's 4 blocks"),
        ("num_layers: 4", "expected pipeline_model_parallel_size or num_layers_per_stage"),
        ("num_layers_per_stage: [1, 2]", "num_layers_per_stage: found 3 blocks in all, expected the model's 4"),
        ("num_layers_per_stage: [4, 0]", "num_layers_per_stage: found a list of 2, expected whole numbers, 1 or"),
        (
            "num_layers_per_stage: [2, 2]\npipeline_model_parallel_size: 4",
            "found 2 numbers, expected pipeline_model_parallel_size = 4",
        ),
        (
            "num_layers_per_stage: [2, 2]\ndecoder_last_pipeline_num_layers: 2",
            "found decoder_last_pipeline_num_layers beside num_layers_per_stage",
        ),
        (
            "pipeline_model_parallel_size: 2\nblocks: h",
            "blocks: found 'h', expected a module with numbered blocks",
        ),
        ("pipeline_model_parallel_size: 2\ntensor_model_parallel_size: 0", "tensor_model_parallel_size: found 0"),
    ],
)
def test_counts_that_do_not_add_up(tmp_path, text, expected):
    (found,) = problems(tmp_path, text)
    assert expected in found


def test_which_module_holds_the_blocks_must_be_clear(tmp_path):
    names = ["encoder.0.a", "encoder.1.a", "decoder.0.a", "decoder.1.a"]
    graph = layer_graph(
        "two", [_matrix(name) for name in names], [(a, b, 8) for a, b in itertools.pairwise(names)]
    )
    two = instance_of(graph)
    (found,) = problems(tmp_path, "pipeline_model_parallel_size: 2", two)
    assert "decoder, encoder; name one with the key 'blocks'" in found
    assert spans(read(tmp_path, "pipeline_model_parallel_size: 2\nblocks: decoder", two)) == [
        Span(0, 3),
        Span(3, 4),
    ]
    (none,) = problems(
        tmp_path, "pipeline_model_parallel_size: 2", instance_of(layer_graph("x", [_matrix("a")], []))
    )
    assert "numbered blocks in the model: none" in none


# --- degrees ------------------------------------------------------------------------------------------------


def test_tensor_parallel_stages_take_megatrons_forms(tmp_path):
    plan = read(tmp_path, "pipeline_model_parallel_size: 2\ntensor_model_parallel_size: 4")
    assert [stage.group.devices for stage in plan.stages] == [4, 4]
    # Embedding; norm, wq, wk, attention, wo, add: whole, columns, columns, columns, rows, whole.
    assert plan.stages[0].forms == (1, *(1, 2, 2, 2, 1, 1) * 2)
    assert plan.stages[1].forms == (*(1, 2, 2, 2, 1, 1) * 2, 1, 2)
    found = evaluate(FOUR, plan)
    assert found.feasible
    # The layouts fit: no change between layers costs anything.
    assert [stage.between_ns for stage in found.stages] == [0, 0]


def test_replicas_of_stages(tmp_path):
    """Without tensor parallelism they are form 0; with it they are replicas, which the constraints must allow."""
    text = "pipeline_model_parallel_size: 2\ntensor_model_parallel_size: {}\ndata_parallel_size: {}"
    plan = read(tmp_path, text.format(1, 4))
    assert [(stage.group.devices, stage.group.replicas, set(stage.forms)) for stage in plan.stages] == [
        (4, 1, {0})
    ] * 2
    assert evaluate(FOUR, plan).feasible
    both = instance_of(transformer(), degrees=(1, 2))
    plan = read(tmp_path, text.format(2, 2), both)
    assert [(stage.group.devices, stage.group.replicas) for stage in plan.stages] == [(4, 2)] * 2
    assert plan.stages[0].forms[:5] == (1, 1, 2, 2, 2)
    assert evaluate(both, plan).feasible
    copies = read(tmp_path, text.format(1, 4), both)
    assert [(stage.group.devices, stage.group.replicas) for stage in copies.stages] == [(4, 4)] * 2
    assert evaluate(both, copies).feasible


def test_too_few_devices(tmp_path):
    text = "pipeline_model_parallel_size: 4\ntensor_model_parallel_size: 4"
    assert problems(tmp_path, text) == (
        ": found stages on 16 devices (4 + 4 + 4 + 4), expected at most 8, the cluster's",
    )


def test_forms_that_a_layer_may_not_take():
    only = [Layer(name, "Linear", Split.MATRIX, 8, 8, 8, 8, 1, allowed_forms=forms) for name, forms in ONLY]
    edges = [(a[0], b[0], 8) for a, b in itertools.pairwise(ONLY)]
    instance = instance_of(layer_graph("only", only, edges))
    # a wants 2 and takes 0; b wants 2 and takes 1, which leaves its output whole; so c takes 2, and d then 1.
    assert megatron_forms(instance, Span(0, 4)) == (0, 1, 2, 1)


ONLY = [("a", (0,)), ("b", (1,)), ("c", (0, 1, 2)), ("d", (0, 1))]
