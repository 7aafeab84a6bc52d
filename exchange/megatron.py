"""Megatron-LM: a plan as its arguments; written, and read again as it runs.

``--pipeline-model-parallel-layout`` is a string: stages are split by ``|``, ``E`` is the embedding with all that
stands before the blocks, ``t`` a block, ``L`` the loss with all that stands behind the blocks, ``t*3`` three
blocks. Where it lists more stages than there are groups, stage s runs on group s modulo their number, as in a
plan of several chunks. A line of comment says how many ranks follow one another on which server: pipeline stages
are the outermost of its ranks, and devices of one replica neighbours.
"""

from __future__ import annotations

import json
import re
import shlex

from pipecut.exchange.whole_blocks import RuntimePlan, read_run
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Schedule
from pipecut.ingest.graphs.cut_places import Chain
from pipecut.ingest.graphs.runtimes import MEGATRON, ComputedAgain

PROGRAM = MEGATRON
FORMATS = ("bf16", "grad-reduce-in-bf16")
RECOMPUTE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
RANKS = "# ranks: "


def write(instance: Instance, run: RuntimePlan) -> str:
    """Return the arguments, one a line."""
    chain, training = Chain.of(instance.model), run.training
    blocks = [len(chain.of_blocks(span)) for span in run.spans(instance)]
    stages = [f"t*{count}" if count > 1 else "t" * count for count in blocks]
    stages[0] = "E" + stages[0]
    stages[-1] += "L"
    rows = [
        f"{RANKS}{json.dumps(run.ranks(instance))}",
        f"--pipeline-model-parallel-size {training.ranks(len(stages))}",
        f"--tensor-model-parallel-size {run.degree}",
        f"--num-layers {sum(blocks)}",
        f'--pipeline-model-parallel-layout "{"|".join(stages)}"',
        f"--micro-batch-size {run.samples}",
        f"--global-batch-size {training.global_batch}",
    ]
    rows += [f"--{name}" for name in PROGRAM.settings_of(training)]
    if run.sequence:
        rows.append("--sequence-parallel")
    if run.sharded is Sharded.OPTIMIZER:
        rows.append("--use-distributed-optimizer")
    if run.again is ComputedAgain.BLOCKS:
        rows.append(RECOMPUTE)
    if not any(_at_both_ends(chain, tie.layers) for tie in instance.model.ties):
        rows.append("--untie-embeddings-and-output-weights")
    return "\n".join(rows) + "\n"


def read(instance: Instance, text: str) -> RuntimePlan:
    """Return what arguments that were written for an instance tell Megatron-LM."""
    words = shlex.split(text, comments=True)
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word.removeprefix("--")] = "" if after.startswith("--") else after
    ranks = json.loads(next(row for row in text.splitlines() if row.startswith(RANKS)).removeprefix(RANKS))
    stages = _layout(found["pipeline-model-parallel-layout"])
    groups, degree = int(found["pipeline-model-parallel-size"]), int(found["tensor-model-parallel-size"])
    return read_run(
        instance,
        PROGRAM,
        starts=_starts(Chain.of(instance.model), stages),
        degrees=(degree, sum(count for _, count in ranks) // (groups * degree)),
        sharded=Sharded.OPTIMIZER if "use-distributed-optimizer" in found else Sharded.NONE,
        again=ComputedAgain.BLOCKS if "recompute-granularity" in found else ComputedAgain.NOTHING,
        sequence="sequence-parallel" in found,
        ranks=ranks,
        batch=(int(found["global-batch-size"]), int(found["micro-batch-size"])),
        order=(Schedule.ONE_F_ONE_B, len(stages) // groups),
        formats={name: True for name in FORMATS if name in found},
    )


def _layout(text: str) -> list[str]:
    """Return the letters of every stage."""
    return re.sub(r"(\w)\*(\d+)", lambda one: one[1] * int(one[2]), text).split("|")


def _starts(chain: Chain, stages: list[str]) -> list[int]:
    """Return the first layer of every stage from its letters: an E, so many t, an L."""
    segments = [(one, chain.is_numbered(one.first)) for one in chain.segments()]
    blocks = [one.first for one, numbered in segments if numbered]
    behind = next((one.first for one, numbered in segments if not numbered and one.first > blocks[-1]), None)
    starts, begun = [], 0
    for stage in stages:
        first = 0 if "E" in stage else blocks[begun] if "t" in stage else behind
        starts.append(len(chain.blocks) if first is None else first)
        begun += stage.count("t")
    return starts


def _at_both_ends(chain: Chain, layers: tuple[int, ...]) -> bool:
    """Tell whether these layers stand before the blocks and behind them."""
    numbered = [at for at in range(len(chain.blocks)) if chain.is_numbered(at)]
    return min(layers) < numbered[0] and max(layers) > numbered[-1]
