"""Models of Hugging Face's transformers: from a configuration, and as a user's own function builds them."""

from __future__ import annotations

import importlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from ingest.errors import ModelError
from ingest.graphs.cut_places import cut_at
from ingest.scenario.load import load_scenario
from ingest.torch.hugging_face import TASKS, Configured
from ingest.torch.source import load_configured_graph
from ingest.torch.trace import trace

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
    path, asked = written(tmp_path, LLAMA), Configured(sequence=16)
    first = load_configured_graph(path, asked)
    monkeypatch.setattr("ingest.torch.source.build", None)
    assert load_configured_graph(path, asked).graph == first.graph
    for change in (lambda: written(tmp_path, LLAMA | {"num_hidden_layers": 2}), lambda: None):
        change()
        with pytest.raises(TypeError):
            load_configured_graph(path, asked if change() else Configured(sequence=17))


@pytest.mark.parametrize(
    ("content", "asked", "expected"),
    [
        ({}, {}, "expected the config.json of a model, with its 'model_type'"),
        ({"model_type": "frobnicator"}, {}, "knows no model_type 'frobnicator'"),
        ({"model_type": "x", "auto_map": {}}, {}, "the code that comes with the model is not run"),
        (SMALL["gpt2"], {}, "names no class ('architectures'); give model.task, one of text-generation, "),
        (LLAMA | {"architectures": ["Path"]}, {}, "has no model 'Path'"),
        (LLAMA, {"task": "fill-mask"}, "no llama for fill-mask, only for text-generation, "),
        (LLAMA, {"sequence": None}, "give model.sequence, how many tokens (of raw sound: values) a sample has"),
        (SMALL["gpt2"], {"task": "text-generation", "sequence": 2000}, "has only 1024 positions"),
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
