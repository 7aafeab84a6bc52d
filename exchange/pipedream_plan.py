"""PipeDream's plans: a profile with a stage for every layer, and the replicas of the stages (docs/formats).

The program writes the profile that it planned to ``gpus=N.txt``, each layer with `` -- stage_id=S``. How many
machines a stage has is not in that file; the program prints it, and the papers write it as ``3-1``.
Replicas share the micro-batches of their stage: form 0 on several devices.
"""

from __future__ import annotations

import re
from pathlib import Path

from exchange.stage_runs import groups, runs
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan, Stage
from formulation.problem.units import NS_PER_SECOND
from ingest.files import atomic_write
from ingest.graphs.errors import FormatError, quoted
from ingest.graphs.pipedream_profile import read_profile
from ingest.graphs.profiled_model import ProfiledLayer, ProfiledModel

__all__: list[str] = []

_CONFIGURATION = re.compile(r"[1-9][0-9]{0,5}(-[1-9][0-9]{0,5})*", re.ASCII)
_PRINTED = re.compile(r"\(([0-9]+), ([0-9]+)\)\s+\S+\s+([0-9]+)", re.ASCII)


def read_pipedream_plan(path: Path, instance: Instance, replicas: str | None = None) -> Plan:
    """Read a plan for an instance whose layers are those of the profile (see ``measured_layers``), by name.

    ``replicas`` is the configuration, such as ``3-1``; without it every stage has one device. Inputs and unused
    outputs, which PipeDream does not plan, are left out. Raises FormatError naming layers without a stage, layers
    that only one side knows, stages that are no runs of layers, a configuration that does not fit the stages, and
    too few devices; OSError if the file cannot be read.
    """
    model = read_profile(path).planned()
    stages, problems = _stages(instance, model)
    if problems:
        raise FormatError(path, problems)
    spans, problems = runs(instance, stages)
    counts = [1] * len(spans)
    if replicas is not None and not problems:
        counts, problems = _counts(replicas, len(spans))
    if problems:
        raise FormatError(path, problems)
    # Replicas of single devices where the instance tells replicas from devices, else form 0 on all of them.
    copies = counts if 1 in instance.constraints.tensor_parallel_degrees else [1] * len(counts)
    held, problems = groups(instance, counts, copies)
    if problems:
        raise FormatError(path, problems)
    return Plan(tuple(Stage(span, group, (0,) * len(span)) for span, group in zip(spans, held, strict=True)))


def printed_configuration(text: str) -> str:
    """Return the configuration, ``3-1``, out of what the program prints for one level of machines.

    It prints a line ``(first, stop) seconds replicas`` for every stage. Raises ValueError unless there are such
    lines and each begins where the one before it stops, which also refuses several levels in one text.
    """
    lines = [match for line in text.splitlines() if (match := _PRINTED.fullmatch(line.strip()))]
    if not lines:
        raise ValueError("found no line '(first, stop) seconds replicas' of PipeDream's optimiser")
    ends = [0]
    for match in lines:
        first, stop = int(match[1]), int(match[2])
        if first != ends[-1] or stop <= first:
            raise ValueError(f"found a stage ({first}, {stop}), expected one that starts with state {ends[-1]}")
        ends.append(stop)
    return "-".join(match[3] for match in lines)


def write_pipedream_plan(path: Path, profile: ProfiledModel, instance: Instance, plan: Plan) -> str:
    """Write a plan as the program does, every layer with its stage, and return its configuration.

    ``profile`` is what the instance was made from; inputs are put into stage 0, as in the program, unused outputs
    are left out. Raises ValueError for a layer that the plan has no stage for, or a stage that splits layers
    (forms other than 0), which PipeDream cannot do; OSError.
    """
    stage_of: dict[str, int] = {}
    for index, stage in enumerate(plan.stages):
        split = [layer for layer in stage.span.layers if stage.form(layer)]
        if split:
            name, form = instance.layers[split[0]].name, stage.form(split[0])
            raise ValueError(f"stage {index}, layer '{name}': form {form}, expected 0: PipeDream splits no layer")
        stage_of |= {instance.layers[layer].name: index for layer in stage.span.layers}
    planned = {layer.name for layer in profile.planned().layers}
    consumed = {consumer for _, consumer in profile.edges}
    lines: list[str] = []
    kept: set[int] = set()
    for at, layer in enumerate(profile.layers):
        if layer.name in planned and layer.name not in stage_of:
            raise ValueError(f"layer '{layer.name}' of the profile is in no stage of the plan")
        if layer.name in planned or at not in consumed:
            kept.add(at)
            lines.append(_line(layer, stage_of.get(layer.name, 0)))
    lines += [
        f"\t{profile.layers[a].name} -- {profile.layers[b].name}" for a, b in profile.edges if {a, b} <= kept
    ]
    atomic_write(path, "\n".join(lines) + "\n")
    return "-".join(str(stage.group.devices) for stage in plan.stages)


def _stages(instance: Instance, model: ProfiledModel) -> tuple[list[int], list[str]]:
    """Return the stage of every layer of the instance, and what is wrong with the names and stages."""
    stages = {layer.name: layer.stage for layer in model.layers}
    names = [layer.name for layer in instance.layers]
    problems = [
        f": layer {quoted(name)} has no stage_id; expected the output of PipeDream's optimiser"
        for name, stage in stages.items()
        if stage is None
    ]
    problems += [f": no layer is called {quoted(name)} in the model" for name in stages.keys() - set(names)]
    problems += [f": layer {quoted(name)} of the model is missing" for name in names if name not in stages]
    found = [stage for name in names if (stage := stages.get(name)) is not None]
    return found, sorted(problems)


def _counts(replicas: str, stages: int) -> tuple[list[int], list[str]]:
    """Return the replicas of each stage, and what is wrong with the configuration."""
    if not _CONFIGURATION.fullmatch(replicas):
        return [], [f": replicas: found {quoted(replicas)}, expected numbers like '3-1'"]
    counts = [int(count) for count in replicas.split("-")]
    if len(counts) != stages:
        return [], [f": replicas: found {len(counts)} numbers in {quoted(replicas)} for {stages} stages"]
    return counts, []


def _line(layer: ProfiledLayer, stage: int) -> str:
    """Return the line of a layer; numbers are exact, with three decimals or as many more as they need."""
    fields = (
        f"forward_compute_time={_milliseconds(layer.forward_ns)}",
        f"backward_compute_time={_milliseconds(layer.backward_ns)}",
        f"activation_size={layer.activation_bytes}.000",
        f"parameter_size={layer.parameter_bytes}.000",
    )
    return " -- ".join((layer.name, layer.description, ", ".join(fields), f"stage_id={stage}"))


def _milliseconds(time_ns: int) -> str:
    whole, part = divmod(time_ns, NS_PER_SECOND // 1000)
    decimals = f"{part:06d}"
    while len(decimals) > 3 and decimals.endswith("0"):
        decimals = decimals[:-1]
    return f"{whole}.{decimals}"
