"""torchtitan: a plan as the sections of its configuration, in JSON; written, and read again as it runs.

Keys are those of torchtitan 0.2. Replicas that divide nothing are its ``data_parallel_replicate_degree``, those
that divide weights or gradients its ``data_parallel_shard_degree``. With a pipeline a rank takes its part of the
whole global batch at once and cuts it into micro-batches; without one it takes a micro-batch at a time. It
divides layers over devices as Megatron-LM does, and computes blocks again each by itself. ``ranks`` is no
section of torchtitan: how many ranks follow one another on which server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipecut.exchange.whole_blocks import RuntimePlan, read_run, starts_of
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.graphs.runtimes import TORCHTITAN, ComputedAgain

PROGRAM = TORCHTITAN
MODES: Mapping[ComputedAgain, str] = {ComputedAgain.NOTHING: "none", ComputedAgain.BLOCKS: "full"}
"""Its words for what is computed again."""
RESHARD: Mapping[Sharded, str] = {Sharded.WEIGHTS: "always", Sharded.GRADIENTS: "never"}
"""Its word for what fully sharded replicas let go of behind a forward pass: the gathered weights, or nothing."""
ADAM_BYTES = 4
"""Of a parameter, for two moments in 16 bits."""


def write(instance: Instance, run: RuntimePlan) -> str:
    """Return the configuration."""
    training, copies = run.training, run.sharded is Sharded.NONE
    parallelism: dict[str, object] = {
        "pipeline_parallel_degree": training.ranks(len(run.starts)),
        "tensor_parallel_degree": run.degree,
        "enable_sequence_parallel": run.sequence,
        "data_parallel_replicate_degree": run.replicas if copies else 1,
        "data_parallel_shard_degree": 1 if copies else run.replicas,
    }
    if not copies:
        parallelism["fsdp_reshard_after_forward"] = RESHARD[run.sharded]
    local = run.samples
    if len(run.starts) > 1:
        parallelism["pipeline_parallel_schedule"] = PROGRAM.name_of(training)
        parallelism["pipeline_parallel_microbatch_size"] = run.samples
        parallelism["module_fqns_per_model_part"] = run.modules(instance)
        local *= training.micro_batches
    sections = {
        "parallelism": parallelism,
        "training": {
            "local_batch_size": local,
            "global_batch_size": training.global_batch,
            **PROGRAM.settings_of(training),
        },
        "activation_checkpoint": {"mode": MODES[run.again]},
        "ranks": run.ranks(instance),
    }
    return json.dumps(sections, indent=1) + "\n"


def read(instance: Instance, text: str) -> RuntimePlan:
    """Return what a configuration that was written for an instance tells torchtitan."""
    found = json.loads(text)
    parallelism, training = found["parallelism"], found["training"]
    shard, words = parallelism["data_parallel_shard_degree"], {word: kind for kind, word in RESHARD.items()}
    modules = parallelism.get("module_fqns_per_model_part", [[]])
    chunks = len(modules) // parallelism["pipeline_parallel_degree"]
    return read_run(
        instance,
        PROGRAM,
        starts=starts_of(instance, modules),
        degrees=(parallelism["tensor_parallel_degree"], parallelism["data_parallel_replicate_degree"] * shard),
        sharded=words[parallelism["fsdp_reshard_after_forward"]] if shard > 1 else Sharded.NONE,
        again=next(one for one, word in MODES.items() if word == found["activation_checkpoint"]["mode"]),
        sequence=parallelism["enable_sequence_parallel"],
        ranks=found["ranks"],
        batch=(
            training["global_batch_size"],
            parallelism.get("pipeline_parallel_microbatch_size", training["local_batch_size"]),
        ),
        order=PROGRAM.order_of(parallelism.get("pipeline_parallel_schedule", "1F1B"), chunks),
        formats={key: training[key] for key in ("dtype", "mixed_precision_param")},
    )


def notes(instance: Instance) -> list[str]:
    """Return what torchtitan keeps otherwise than planned, beside what a price says."""
    precision = instance.training.elements
    if precision.weights == 2 and precision.optimizer > ADAM_BYTES:
        return [
            f"the plan counts {precision.optimizer} bytes a parameter for the optimiser; torchtitan keeps its"
            " state in bfloat16 where weights are, without a copy of them in 32 bits"
        ]
    return []
