"""What each choice of a plan is worth: the step with everything open, and with each choice closed in turn.

    python -m benchmarks.size.choices [--limit SECONDS] [--out FILE]

Questions that people ask first (``benchmarks.size.questions``), each answered by ``pipecut plan`` in a process of
its own. A plan of a question with a choice closed is one of the question with all open, so no row can be below the
first one; a row that is says that the first one was not answered. ``--out`` writes the document.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.size.questions import QUESTIONS, asked
from benchmarks.table import print_rows

NAMES = ("8B, 8 H100", "70B, 32 H100")
CLOSED: dict[str, tuple[str, ...]] = {
    "everything open": (),
    "several devices a replica": ("constraints.tensor_parallel_degrees=[1]",),
    "several stages": ('constraints.no_cut=["*"]',),
    "unequal stages": ("constraints.equal_stages=true",),
    "recomputation": ("constraints.recompute=never",),
    "recomputation of single blocks": ("constraints.recompute=allowed",),
    "ZeRO 1 to 3": ("constraints.sharded=[none]",),
    "ZeRO 2 and 3": ("constraints.sharded=[none, optimizer]",),
    "sequence parallelism": ("constraints.splits=[]",),
    "1F1B (GPipe in its place)": ("training.schedule=gpipe",),
    "what Megatron-LM is not told (`model.runtime: megatron`)": ("model.runtime=megatron",),
}
"""By what is closed, the settings that close it."""
INTRODUCTION = """\
The step of the best plan with everything open that people run (`search: standard`), and with each choice closed
in turn; how much longer it is; the best plain grid of the same question; and the proof. Every question had
{limit:g} s from the prompt, reading included, on two cores that other work used too.

- **proved**: no plan of the question is better. *gap*: what the search left between its plan and its bound.
"""


def rows(name: str, limit_s: float) -> Iterator[dict[str, Any]]:
    """Ask one question with each choice closed."""
    best: float | None = None
    with tempfile.TemporaryDirectory() as folder:
        for closed, settings in CLOSED.items():
            found = asked(Path(folder), QUESTIONS[name], limit_s, "step_time", settings)
            step, bound = found["step s"], found["bound s"]
            best = step if best is None else best
            longer = f"{step / best - 1:+.1%}" if step and best and settings else ""
            yield {
                "closed": closed,
                "step": f"{step:.3f} s" if step else found["proof"],
                "longer by": longer,
                "plain grid": f"{found['grid s']:.3f} s" if found["grid s"] else "",
                "proof": "**proved**" if found["proof"] == "optimal" else _gap(step, bound),
                "seconds": found["wall s"],
            }


def _gap(step: float | None, bound: float | None) -> str:
    return f"gap {1 - bound / step:.2%}" if step and bound else "-"


def main() -> None:
    """Print one table a question, and write the document."""
    parser = argparse.ArgumentParser(description="what each choice of a plan is worth")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that each may take")
    parser.add_argument("--out", type=Path, help="write the document")
    arguments = parser.parse_args()
    command = f"python -m benchmarks.size.choices --limit {arguments.limit:g} --out {arguments.out}"
    lines = ["# What each choice is worth", "", f"Written by `{command}` on {date.today().isoformat()}.", ""]
    lines += INTRODUCTION.format(limit=arguments.limit).splitlines()
    for name in NAMES:
        table = list(rows(name, arguments.limit))
        print_rows(table, as_json=False)
        lines += [
            "",
            f"## {name}",
            "",
            "| " + " | ".join(table[0]) + " |",
            "|---|" + "---:|" * (len(table[0]) - 1),
        ]
        lines += ["| " + " | ".join(map(str, row.values())) + " |" for row in table]
    if arguments.out is not None:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
