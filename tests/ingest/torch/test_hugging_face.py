"""Models of Hugging Face's transformers: from a configuration, and as a user's own function builds them."""

from __future__ import annotations

import importlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pipecut.ingest.errors import ModelError
from pipecut.ingest.graphs.cut_places import cut_at
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.torch.hugging_face import TASKS, Configured
from pipecut.ingest.torch.source import load_configured_graph
from pipecut.ingest.torch.trace import trace

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'pipecut[hf]'")

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "dtype": "bfloat16",
}
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50},
    "bert": {
        "model_type": "bert",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    },
    "t5": {"model_type": "t5", "num_layers": 2, "d_model": 32, "d_ff": 64, "num_heads": 2, "d_kv": 16},
    "vit": {
        "model_type": "vit",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    },
    "convnext": {"model_type": "convnext", "hidden_sizes": [8, 16, 16, 16], "depths": [2, 2, 2, 2]},
    "resnet": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 16, 16],
        "depths": [2, 2, 2, 2],
    },
}


def written(folder: Path, content: object) -> str:
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return str(folder)


def refusal(folder: Path, content: object, asked: Configured) -> str:
    with pytest.raises(ModelError) as caught:
        load_configured_graph(written(folder, content), asked, use_cache=False)
    return str(caught.value)


def test_a_configuration_is_a_model_with_its_element_format_and_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    graph = load_configured_graph(written(tmp_path, LLAMA), Configured(sequence=16), use_cache=False)
    assert graph.graph["element_bytes"] == 2
    total = sum(row["layer"].parameter_bytes for _, row in graph.nodes(data=True))
    block = 4 * 64 * 64 + 3 * 64 * 96 + 2 * 64
    assert total == 2 * (2 * 100 * 64 + 3 * block + 64)
    assert cut_at(graph, None).graph["notes"][0].startswith("5 cut points, between blocks (3 LlamaDecoderLayer)")


@pytest.mark.parametrize(
    ("name", "task", "places"),
    [
        ("gpt2", "text-generation", 6),
        ("bert", "fill-mask", 3),
        ("bert", "text-classification", 5),
        ("t5", "text2text-generation", 12),
        ("vit", "image-classification", 4),
        ("convnext", "image-classification", 16),
        ("resnet", "features", 9),
    ],
)
def test_a_task_chooses_the_class(tmp_path: Path, name: str, task: str, places: int) -> None:
    asked = Configured(task, None if name in ("vit", "convnext", "resnet") else 8)
    graph = cut_at(load_configured_graph(written(tmp_path, SMALL[name]), asked, use_cache=False), None)
    assert len(graph.graph["cuts"]) == places, graph.graph["notes"]


def test_a_second_look_is_read_from_the_cache_until_the_configuration_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPECUT_CACHE", str(tmp_path / "cache"))
    # Modules that other tests wrote and loaded are no reason to keep nothing.
    monkeypatch.setattr("pipecut.ingest.torch.cache._STARTED", time.time())
    path, asked = written(tmp_path, LLAMA | {"made_up": 1}), Configured(sequence=16)
    first = load_configured_graph(path, asked)
    assert first.graph["notes"]
    monkeypatch.setattr("pipecut.ingest.torch.source.build", None)
    assert load_configured_graph(path, asked).graph == first.graph
    for change in (lambda: written(tmp_path, LLAMA | {"num_hidden_layers": 2}), lambda: None):
        change()
        with pytest.raises(TypeError):
            load_configured_graph(path, asked if change() else Configured(sequence=17))


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
BANK = {**SIZES, "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
PICTURE = {**SIZES, "image_size": 32, "patch_size": 8}
FILM = {**PICTURE, "num_frames": 4}
SEGFORMER = {
    "model_type": "segformer",
    "architectures": ["SegformerForSemanticSegmentation"],
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 16, 16, 16],
    "decoder_hidden_size": 16,
}
LLAVA = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "text_config": {"model_type": "llama", **SIZES, "vocab_size": 50},
    "vision_config": {"model_type": "clip_vision_model", **PICTURE},
    "image_token_index": 5,
}
WHISPER = {
    "model_type": "whisper",
    "d_model": 32,
    **{f"{half}coder_{key}": 2 for half in ("en", "de") for key in ("layers", "attention_heads", "ffn_dim")},
    "vocab_size": 50,
    "pad_token_id": 0,
    "max_source_positions": 50,
}
KIMI = {
    **{key: value for key, value in LLAMA.items() if key != "dtype"},
    "model_type": "kimi_k2",
    "architectures": ["DeepseekV3ForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
    **{"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    "moe_intermediate_size": 16,
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8"},
    "scoring_func": "sigmoid",
}
MPT = {
    "model_type": "mpt",
    "architectures": ["MPTForCausalLM"],
    **{"d_model": 32, "n_heads": 2, "n_layers": 2, "vocab_size": 50},
}


@pytest.mark.parametrize(
    ("content", "task", "sequence"),
    [
        ({"model_type": "wav2vec2", **BANK, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}, 1, 4000),
        ({"model_type": "hubert", **BANK}, 1, 4000),
        (WHISPER, 2, 8),
        ({"model_type": "audio-spectrogram-transformer", **SIZES, "max_length": 128}, 1, None),
        ({"model_type": "videomae", **FILM}, 1, None),
        ({"model_type": "vivit", **FILM, "tubelet_size": [2, 8, 8]}, 1, None),
        (LLAVA, 0, 64),
        (MPT, 0, 8),
        (KIMI, 0, 8),
    ],
    ids=["wav2vec2", "hubert", "whisper", "ast", "videomae", "vivit", "llava", "mpt", "kimi"],
)
def test_models_get_the_inputs_that_their_processors_make(
    tmp_path: Path, content: dict[str, Any], task: int, sequence: int | None
) -> None:
    asked = Configured((None, "features", "speech-recognition")[task], sequence)
    graph = load_configured_graph(written(tmp_path, content), asked, use_cache=False)
    assert len(graph) > 20


def notes(folder: Path, content: object, **asked: Any) -> str:
    graph = load_configured_graph(written(folder, content), Configured(**asked), use_cache=False)
    return "\n".join(graph.graph.get("notes", ()))


def test_what_is_left_out_of_a_configuration_is_told(tmp_path: Path) -> None:
    assert notes(tmp_path, LLAMA, sequence=8) == ""
    told = notes(tmp_path, KIMI, sequence=8)
    assert "read as DeepseekV3ForCausalLM of transformers" in told and "'kimi_k2' is none of" in told
    assert "the code that comes with the model is not run" in told
    assert "quantization_config (fp8) is not counted: weights are float32" in told
    assert "num_nextn_predict_layers: 1 is left out" in told
    assert "not used, as DeepseekV3ForCausalLM does not read it: scoring_func of config.json" in told
    assert "it has no 'MPTForCausalLM'" in notes(tmp_path, MPT, sequence=8)
    for extra, said in (
        ({"made_up": 3}, "made_up of config.json"),
        ({"made_up": 0, "other": None, "third": []}, ""),  # what is off changes nothing
        ({"rope_theta": 5e5}, ""),  # read when the configuration is made
        ({"max_window_layers": 1}, "max_window_layers of config.json"),
    ):
        told = notes(tmp_path, LLAMA | extra, sequence=8)
        assert told.endswith(said) and bool(told) == bool(said)


def test_a_part_of_a_configuration_is_looked_at_too(tmp_path: Path) -> None:
    vision = LLAVA | {"vision_config": LLAVA["vision_config"] | {"made_up": 3}}  # type: ignore[operator]
    told = notes(tmp_path, vision, sequence=64)
    assert "vision_config.made_up of config.json" in told
    assert "model.sequence counts the places of pictures and sounds too (image_token_index)" in told


def sizes(folder: Path, content: object, **asked: Any) -> int:
    graph = load_configured_graph(written(folder, content), Configured(**asked), use_cache=False)
    return sum(row["layer"].macs for _, row in graph.nodes(data=True))


def test_shapes_that_are_guessed_are_told_and_a_key_sets_them(tmp_path: Path) -> None:
    assert "pictures of 3 x 224 x 224, as nothing says otherwise: model.inputs.pixel_values" in notes(
        tmp_path, SEGFORMER
    )
    large = {"inputs": (("pixel_values", (3, 448, 448)),)}
    assert "pictures of" not in notes(tmp_path, SEGFORMER, **large)
    assert sizes(tmp_path, SEGFORMER, **large) > 4 * sizes(tmp_path, SEGFORMER)
    t5 = SMALL["t5"] | {"architectures": ["T5ForConditionalGeneration"]}
    assert "decoder_input_ids of 8, as many as model.sequence" in notes(tmp_path, t5, sequence=8)
    short = {"sequence": 8, "inputs": (("decoder_input_ids", (2,)),)}
    assert notes(tmp_path, t5, **short) == "" and sizes(tmp_path, t5, **short) < sizes(tmp_path, t5, sequence=8)
    vit = SMALL["vit"] | {"architectures": ["ViTModel"]}
    assert notes(tmp_path, vit) == ""  # its pictures have one size only


def test_a_trace_that_fails_on_made_inputs_names_them(tmp_path: Path) -> None:
    told = refusal(tmp_path, SEGFORMER, Configured(inputs=(("pixel_values", (4, 32, 32)),)))
    assert "SegformerForSemanticSegmentation does not run on the inputs that were made for it" in told
    assert "pixel_values of 2 x 4 x 32 x 32" in told and "check that the model" not in told


@pytest.mark.parametrize(
    ("content", "asked", "expected"),
    [
        (SEGFORMER, {}, "model.sequence has no effect: SegformerForSemanticSegmentation is given pixel_values"),
        (
            {"model_type": "time_series_transformer", "prediction_length": 4},
            {"task": "features", "sequence": None},
            "no example input is known for 'past_values' of TimeSeriesTransformerModel; give model.inputs.",
        ),
        (LLAMA, {"inputs": (("pixels", (3,)),)}, "model.inputs.pixels: LlamaForCausalLM takes input_ids, "),
        (
            LLAMA | {"architectures": ["FooForBar"]},
            {},
            "has no model 'FooForBar'; give model.task, one of te",
        ),
        ({}, {}, "expected the config.json of a model, with its 'model_type'"),
        ({"model_type": "frobnicator"}, {}, "knows no model_type 'frobnicator'"),
        ({"model_type": "x", "auto_map": {}}, {}, "the code that comes with the model is not run"),
        (SMALL["gpt2"], {}, "names no class ('architectures'); give model.task, one of text-generation, "),
        (LLAMA | {"architectures": ["Path"]}, {}, "has no model 'Path'"),
        (LLAMA, {"task": "fill-mask"}, "no llama for fill-mask, only for text-generation, "),
        (LLAMA, {"sequence": None}, "give model.sequence, how many tokens (of raw sound: values) a sample has"),
        (SMALL["gpt2"], {"task": "text-generation", "sequence": 2000}, "positions of the model are 1024"),
        (LLAMA | {"num_attention_heads": 0}, {}, "LlamaForCausalLM cannot be built from it: "),
    ],
)
def test_mistakes_are_told(tmp_path: Path, content: object, asked: dict[str, Any], expected: str) -> None:
    given: dict[str, Any] = {"sequence": 8, **asked}
    message = refusal(tmp_path, content, Configured(**given))
    assert expected in message and message.startswith(str(tmp_path)) and "\n" not in message


def test_what_is_no_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no configuration can be read"):
        load_configured_graph("none.json", Configured(), tmp_path)
    (tmp_path / "config.json").write_text('{"a": 1, "a": 2}', encoding="utf-8")
    with pytest.raises(ModelError, match="appears twice"):
        load_configured_graph(".", Configured(), tmp_path)


def test_every_task_has_a_table() -> None:
    tables = importlib.import_module("transformers.models.auto.modeling_auto")
    assert all(isinstance(getattr(tables, table), dict) for table in TASKS.values())


def test_a_scenario_names_a_configuration(tmp_path: Path) -> None:
    written(tmp_path, LLAMA)
    path = tmp_path / "scenario.yaml"
    path.write_text(
        "name: small\nmodel: {transformers: ., sequence: 16}\ntraining: {global_batch: 4}\n"
        "cluster:\n  devices: {card: {memory: 1 GiB, peak: 1 TFLOP/s}}\n"
        "  servers: [{name: node, device: card, devices: 1}]\n",
        encoding="utf-8",
    )
    instance = load_scenario(path).load()
    assert instance.training.bytes_per_element == 2 and len(instance.model.cuts or ()) == 5
    four = load_scenario(path, ["training.bytes_per_element=4"]).load()
    assert four.parameter_bytes == tuple(2 * size for size in instance.parameter_bytes)
    assert four.model.notes[-1] == (
        "training.bytes_per_element is 4, the model's elements have 2: all bytes are scaled"
    )


@pytest.mark.parametrize("keywords", [{}, {"attention_mask": torch.ones(2, 8, dtype=torch.long, device="meta")}])
def test_the_cache_of_a_built_model_is_off_for_the_trace_only(keywords: dict[str, torch.Tensor]) -> None:
    with torch.device("meta"):
        config = transformers.LlamaConfig(**{key: value for key, value in LLAMA.items() if key != "dtype"})
        module = transformers.LlamaForCausalLM(config)
        graph = trace(module, {"input_ids": torch.zeros(2, 8, dtype=torch.long), **keywords}, "llama")
    assert config.use_cache is True and "lm_head" in graph
