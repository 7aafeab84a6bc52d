"""What it takes to read a model: processor seconds from the start of the program to the layer graph.

    python -m benchmarks.size.reading [--runs N] [--json] [NAME ...]

Each model is read in processes of its own: followed, as it is by default; exported by torch, which comes to the
same graph; and a second time, from the cache. The shortest of some runs counts, as other work only adds to it.
Nothing is taken from a network: the configurations are written here. Needs ``pipecut[hf]``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.size import questions
from benchmarks.table import print_rows

CONFIGURATIONS: dict[str, dict[str, Any]] = questions.CONFIGURATIONS | {
    "DeepSeek-V3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 163840,
    },
}
"""Those of ``questions``, and DeepSeek-V3 (arXiv 2412.19437, section 4.2), under the keys of ``transformers``."""
TOKENS = 512
FOLLOWED, EXPORTED, CACHED = "followed", "exported", "from the cache"
WAYS = (FOLLOWED, EXPORTED, CACHED)


def main() -> None:
    """Print one row a model; with two more words, read one model in one way and print its layers and seconds."""
    parser = argparse.ArgumentParser(description="processor seconds to read a model")
    parser.add_argument("names", nargs="*", default=[*CONFIGURATIONS], metavar="NAME")
    parser.add_argument("--runs", type=int, default=3, help="of which the shortest counts")
    parser.add_argument("--json", action="store_true", help="write one JSON list")
    parser.add_argument("--read", nargs=2, metavar=("FILE", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps(read(Path(arguments.read[0]), arguments.read[1])))
    else:
        print_rows(rows(arguments.names, arguments.runs), as_json=arguments.json)


def rows(names: list[str], runs: int) -> Iterator[dict[str, Any]]:
    """Read each model in fresh processes."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.json"
            path.write_text(json.dumps(CONFIGURATIONS[name]), encoding="utf-8")
            _asked(path, CACHED)  # which fills it
            found = {way: [_asked(path, way) for _ in range(runs)] for way in WAYS}
            layers = {row["layers"] for each in found.values() for row in each}
            seconds = {way: round(min(row["CPU s"] for row in each), 2) for way, each in found.items()}
            yield {"model": name, "layers": ", ".join(map(str, sorted(layers))), **seconds}


def _asked(path: Path, way: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.size.reading", "--read", str(path), way]
    cache = os.environ | {"PIPECUT_CACHE": str(path.parent / "cache")}
    out = subprocess.run(words, env=cache, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(out)


def read(path: Path, way: str) -> dict[str, Any]:
    """Read a model in this process, and return its layers and the processor seconds that the process has used."""
    from pipecut.ingest.torch.hugging_face import Configured
    from pipecut.ingest.torch.source import load_configured_graph

    asked = Configured(sequence=TOKENS)
    graph = load_configured_graph(str(path), asked, use_cache=way == CACHED, follow=way != EXPORTED)
    return {"layers": len(graph), "CPU s": time.process_time()}


if __name__ == "__main__":
    main()
