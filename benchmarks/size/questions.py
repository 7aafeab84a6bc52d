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
from collections.abc import Iterator
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
}
"""Llama 3 (arXiv 2407.21783, table 3), under the keys of ``transformers``."""
QUESTIONS: dict[str, tuple[str, int, int, int]] = {
    "8B, 8 H100": ("8B", 8192, 1, 128),
    "8B, 512 H100": ("8B", 8192, 64, 2048),
    "70B, 32 H100": ("70B", 4096, 4, 256),
    "70B, 64 H100": ("70B", 4096, 8, 512),
    "70B, 512 H100": ("70B", 8192, 64, 2048),
    "405B, 1,024 H100": ("405B", 8192, 128, 512),
    "405B, 16,384 H100": ("405B", 8192, 2048, 2048),
}
"""Model, tokens of a sequence, servers of eight H100 (``dgx-h100``), and sequences of a batch."""


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
            yield {"question": name, **_asked(Path(folder), QUESTIONS[name], limit_s, objective)}


def _asked(folder: Path, question: tuple[str, int, int, int], limit_s: float, objective: str) -> dict[str, Any]:
    model, tokens, servers, batch = question
    (folder / f"{model}.json").write_text(json.dumps(CONFIGURATIONS[model]), encoding="utf-8")
    scenario = {
        "name": "question",
        "model": {"transformers": f"{model}.json", "sequence": tokens},
        "cluster": {"machines": {"dgx-h100": servers}},
        "training": {"global_batch": batch, "precision": "bf16-mixed"},
        "objective": objective,
    }
    path = folder / "question.yaml"
    path.write_text(json.dumps(scenario), encoding="utf-8")  # all JSON is YAML
    words = [sys.executable, "-m", "pipecut", "plan", str(path), "--json", "--time-limit", f"{limit_s:g}"]
    began_s = time.monotonic()
    with (folder / "out.json").open("w+", encoding="utf-8") as out:
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL)
        _, _, used = os.wait4(process.pid, 0)
        out.seek(0)
        found = json.loads(out.read() or "{}")
    return {
        "step s": _seconds(found.get("objective")),
        "bound s": _seconds(found.get("bound")),
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
