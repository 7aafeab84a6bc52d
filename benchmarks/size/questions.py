"""What people ask first: models of today on machines of today, with everything open that they use.

    python -m benchmarks.size.questions [--limit SECONDS] [--json] [NAME ...]

Each question is a process of its own, started as a user starts it, reading included: the step of its best plan,
its bound, seconds from the prompt to the prompt and of all cores together, and the most memory. Nothing is taken
from a network: the configurations are written here. Needs ``pipecut[hf]``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.table import print_rows

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "8B": LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70B": LLAMA
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "405B": LLAMA
    | {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128},
    "GPT-3": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 2048,
        "n_embd": 12288,
        "n_layer": 96,
        "n_head": 96,
    },
    "Mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": 32000,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "Qwen2.5": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 152064,
        "num_key_value_heads": 4,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
    },
}
"""Under the keys of ``transformers``: Llama 3 (arXiv 2407.21783, table 3), GPT-3 175B (arXiv 2005.14165, table
2.1), Mixtral 8x7B (arXiv 2401.04088, table 1) and Qwen2.5-7B (arXiv 2412.15115, table 1)."""
CARDS = {"devices": 4, "count": 2, "link": {"bandwidth": "16 GB/s"}}
MIXED: dict[str, Any] = {
    "servers": [
        {"name": "a", "device": "rtx-4090", **CARDS},
        {"name": "b", "device": "rtx-3090", **CARDS},
    ],
    "switches": ["sw"],
    "links": [{"between": [name, "sw"], "bandwidth": "10 Gbit/s"} for name in ("a", "b")],
}
"""Two servers of four cards of one type and two of another, at an office switch."""
SLOW: dict[str, Any] = {
    "servers": [{"name": "a", "device": "rtx-4090", **CARDS, "devices": 8, "count": 4}],
    "switches": ["sw"],
    "links": [{"between": ["a", "sw"], "bandwidth": "10 Gbit/s"}],
}
"""Four servers of eight cards, over whose network no gradients of a whole model go in time."""
Question = tuple[str, int, dict[str, Any], int]
QUESTIONS: dict[str, Question] = {
    "8B, 8 H100": ("8B", 8192, {"machines": {"dgx-h100": 1}}, 128),
    "8B, 512 H100": ("8B", 8192, {"machines": {"dgx-h100": 64}}, 2048),
    "70B, 32 H100": ("70B", 4096, {"machines": {"dgx-h100": 4}}, 256),
    "70B, 64 H100": ("70B", 4096, {"machines": {"dgx-h100": 8}}, 512),
    "70B, 512 H100": ("70B", 8192, {"machines": {"dgx-h100": 64}}, 2048),
    "405B, 1,024 H100": ("405B", 8192, {"machines": {"dgx-h100": 128}}, 512),
    "405B, 16,384 H100": ("405B", 8192, {"machines": {"dgx-h100": 2048}}, 2048),
    "Mixtral 8x7B, 32 H100": ("Mixtral", 4096, {"machines": {"dgx-h100": 4}}, 256),
    "Qwen2.5-7B, 8 RTX 4090 and 8 RTX 3090": ("Qwen2.5", 4096, MIXED, 64),
    "8B, 32 RTX 4090": ("8B", 4096, SLOW, 128),
    "GPT-3 175B, 128 A100": ("GPT-3", 2048, {"machines": {"dgx-a100": 16}}, 1536),
    "GPT-3 175B, 1,024 A100": ("GPT-3", 2048, {"machines": {"dgx-a100": 128}}, 1536),
}
"""Model, tokens of a sequence, cluster, and sequences of a batch."""


def main() -> None:
    """Print one row a question."""
    parser = argparse.ArgumentParser(description="models of today on machines of today")
    parser.add_argument("names", nargs="*", default=[*QUESTIONS], metavar="NAME")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that each may take")
    parser.add_argument("--objective", default="step_time", help="what is minimised")
    parser.add_argument("--json", action="store_true", help="write one JSON list")
    arguments = parser.parse_args()
    print_rows(rows(arguments.names, arguments.limit, arguments.objective), as_json=arguments.json)


def rows(names: list[str], limit_s: float, objective: str) -> Iterator[dict[str, Any]]:
    """Ask each question in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            yield {"question": name, **asked(Path(folder), QUESTIONS[name], limit_s, objective)}


def asked(
    folder: Path, question: Question, limit_s: float, objective: str, settings: Iterable[str] = ()
) -> dict[str, Any]:
    """Ask a question as a user does, with some keys of its scenario set; files are written into a folder."""
    model, tokens, cluster, batch = question
    (folder / f"{model}.json").write_text(json.dumps(CONFIGURATIONS[model]), encoding="utf-8")
    scenario = {
        "name": "question",
        "model": {"transformers": f"{model}.json", "sequence": tokens},
        "cluster": cluster,
        "training": {"global_batch": batch, "precision": "bf16-mixed"},
        "objective": objective,
    }
    path = folder / "question.yaml"
    path.write_text(json.dumps(scenario), encoding="utf-8")  # all JSON is YAML
    words = [sys.executable, "-m", "pipecut", "plan", str(path), "--json", "--no-cross-check"]
    words += ["--time-limit", f"{limit_s:g}", *(word for one in settings for word in ("--set", one))]
    began_s = time.monotonic()
    with (folder / "out.json").open("w+", encoding="utf-8") as out:
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL)
        _, _, used = os.wait4(process.pid, 0)
        out.seek(0)
        found = json.loads(out.read() or "{}")
    return {
        "step s": _seconds(found.get("objective")),
        "bound s": _seconds(found.get("bound")),
        "grid s": _seconds((found.get("plain_grid") or {}).get("objective")),
        "proof": found.get("proof", found.get("error", {}).get("kind")),
        "stages": len(found.get("stages") or ()),
        "wall s": round(time.monotonic() - began_s, 1),
        "CPU s": round(used.ru_utime + used.ru_stime, 1),
        "GiB": round(used.ru_maxrss / 2**20, 1),
    }


def _seconds(value_ns: int | None) -> float | None:
    return None if value_ns is None else round(value_ns / 1e9, 3)


if __name__ == "__main__":
    main()
