"""Plans as torchtitan and Megatron-LM take them: lists of modules, or numbers of blocks (docs/formats).

A file in YAML or JSON. Either a list of the modules of every stage, torchtitan's ``module_fqns_per_model_part``::

    [[tok_embeddings, layers.0, layers.1], [layers.2, layers.3, norm, output]]

alone or under that key; or the arguments of Megatron-LM (``pipeline_model_parallel_size``), which count the blocks
of a transformer (:mod:`exchange.block_counts`). Both may say ``tensor_model_parallel_size`` and
``data_parallel_size``: devices of one replica of a stage, and its replicas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from exchange.block_counts import BLOCK_KEYS, stages_of_blocks
from exchange.stage_runs import groups, runs
from formulation.problem.instance import Instance
from formulation.problem.options import Sharded
from formulation.problem.plan import Plan, Stage
from ingest.files import atomic_write
from ingest.graphs.errors import FormatError, quoted
from ingest.graphs.runtime_places import forms_of
from ingest.mistakes import ScenarioError, did_you_mean
from ingest.text.yaml_source import Document

__all__: list[str] = []

LIST_KEYS = ("module_fqns_per_model_part", "module_names_per_stage")
DEGREE_KEYS: Mapping[str, str] = {
    "tensor_model_parallel_size": "tensor",
    "tensor_parallel_degree": "tensor",
    "data_parallel_size": "data",
    "data_parallel_replicate_degree": "data",
}
"""Megatron's and torchtitan's names of the two degrees."""
SHARD_KEY, RESHARD_KEY = "data_parallel_shard_degree", "fsdp_reshard_after_forward"
RESHARD: Mapping[Sharded, str] = {Sharded.WEIGHTS: "always", Sharded.GRADIENTS: "never"}
"""torchtitan's word for what its fully sharded replicas let go of behind a forward pass: the gathered weights, or
nothing."""


def read_layer_lists(path: Path, instance: Instance) -> Plan:
    """Read a plan for an instance.

    A module stands for all layers below it (``layers.0`` for ``layers.0.attention.wq``). A layer that no list
    names belongs to the stage of the layer before it if it is an operation between modules: it has no weights, or
    the name of its operator. Stages take the next devices of the line, as many as both degrees multiply to; with
    more than one device for each replica, forms are Megatron's (:mod:`formulation.costs.megatron_forms`). Raises
    FormatError with everything that is wrong: unknown and missing layers, layers in two stages, stages that are
    no runs of layers, too few devices.
    """
    document = _document(path)
    settings = document.data if isinstance(document.data, dict) else {LIST_KEYS[0]: document.data}
    reading = _Reading(instance, {_plain_key(key): value for key, value in settings.items()}, [])
    stages = reading.stages()
    tensor, data = reading.degrees()
    sharded, among = reading.sharded()
    data *= among
    if reading.problems:
        raise FormatError(path, reading.problems)
    spans, problems = runs(instance, stages)
    # Copies of single devices are form 0 on all of them, unless the instance tells replicas from devices.
    known = tensor > 1 or 1 in instance.constraints.tensor_parallel_degrees
    held, few = groups(instance, [tensor * data] * len(spans), [data if known else 1] * len(spans))
    if problems or few:
        raise FormatError(path, [*problems, *few])
    held = tuple(replace(one, mode=replace(one.mode, sharded=sharded)) for one in held)
    forms = forms_of(instance, sequence=False) if tensor > 1 else (0,) * len(instance.layers)
    rows = zip(spans, held, strict=True)
    return Plan(tuple(Stage(span, group, forms[span.first : span.stop]) for span, group in rows))


def write_layer_lists(path: Path, instance: Instance, plan: Plan) -> None:
    """Write the modules of every stage as JSON under torchtitan's key. Raises OSError."""
    text = json.dumps({LIST_KEYS[0]: layer_lists(instance, plan)}, indent=1)
    atomic_write(path, text + "\n")


def layer_lists(instance: Instance, plan: Plan) -> list[list[str]]:
    """Return the modules of every stage, each as short as it can be: all layers below it are in the stage.

    A number in a name is kept with what stands before it (``layers.0``, not ``layers``), because torchtitan cuts
    between the numbered modules of a list. Which devices a stage has is not said.
    """
    below: dict[str, set[int]] = {}
    for index, stage in enumerate(plan.stages):
        for layer in stage.span.layers:
            for prefix in _prefixes(instance.layers[layer].name):
                below.setdefault(prefix, set()).add(index)
    return [
        list(dict.fromkeys(_shortest(instance.layers[layer].name, below) for layer in stage.span.layers))
        for stage in plan.stages
    ]


def _prefixes(name: str) -> list[str]:
    """Return the modules that hold a layer, outermost first, and the layer; numbers stay with their list."""
    parts = name.split(".")
    ends = (end for end in range(1, len(parts) + 1) if end == len(parts) or not parts[end].isdecimal())
    return [".".join(parts[:end]) for end in ends]


def _shortest(name: str, below: Mapping[str, set[int]]) -> str:
    return next(prefix for prefix in _prefixes(name) if len(below[prefix]) == 1 or prefix == name)


def _document(path: Path) -> Document:
    try:
        document = Document.read(path)
    except ScenarioError as error:
        mistakes = error.mistakes
    else:
        mistakes = document.mistakes
        if not mistakes:
            return document
    places = ((f":{one.place.line}" if one.place.line else "", one) for one in mistakes)
    raise FormatError(
        path, [": ".join(filter(None, (place or "", one.path, one.message))) for place, one in places]
    )


def _plain_key(key: str) -> str:
    """Return a key as Python writes it; command lines write ``--tensor-model-parallel-size``."""
    return key.removeprefix("--").replace("-", "_")


@dataclass(slots=True)
class _Reading:
    """The settings of one file, looked up in an instance; collects what is wrong."""

    instance: Instance
    settings: dict[str, object]
    problems: list[str]

    def stages(self) -> list[int]:
        """Return the stage of every layer; empty where anything is wrong."""
        known = (*LIST_KEYS, *DEGREE_KEYS, *BLOCK_KEYS, SHARD_KEY, RESHARD_KEY)
        for key in self.settings:
            if key not in known:
                self.problems.append(f": unknown key {quoted(key)}{did_you_mean(key, known)}")
        lists = [key for key in LIST_KEYS if key in self.settings]
        counts = [key for key in BLOCK_KEYS if key in self.settings]
        if len(lists) + bool(counts) != 1:
            self.problems.append(f": expected either {LIST_KEYS[0]} or {BLOCK_KEYS[0]}")
            return []
        if not lists:
            found, problems = stages_of_blocks(self.instance, {key: self.settings[key] for key in counts})
        else:
            found, problems = self._listed(lists[0], self.settings[lists[0]])
        self.problems += problems
        return found

    def sharded(self) -> tuple[Sharded, int]:
        """Return what replicas divide, and among how many of them."""
        among, word = self.settings.get(SHARD_KEY, 1), self.settings.get(RESHARD_KEY, "always")
        found = {text: kind for kind, text in RESHARD.items()}.get(str(word))
        if type(among) is not int or among < 1:
            self.problems.append(f": {SHARD_KEY} is {quoted(among)}, expected a whole number from 1")
        elif found is None:
            self.problems.append(f": {RESHARD_KEY} is {quoted(word)}, expected {' or '.join(RESHARD.values())}")
        else:
            return (found if among > 1 else Sharded.NONE), among
        return Sharded.NONE, 1

    def degrees(self) -> tuple[int, int]:
        """Return devices of one replica and replicas."""
        found = {"tensor": 1, "data": 1}
        for key, which in DEGREE_KEYS.items():
            value = self.settings.get(key, found[which])
            if type(value) is not int or not 1 <= value < 2**31:
                self.problems.append(f": {key}: found {quoted(value)}, expected a whole number, 1 or more")
            else:
                found[which] = value
        return found["tensor"], found["data"]

    def _listed(self, key: str, raw: object) -> tuple[list[int], list[str]]:
        """Return the stage of every layer from the modules of every stage, and what is wrong."""
        if not isinstance(raw, list) or not raw or not all(isinstance(one, list) and one for one in raw):
            return [], [f": {key}: found {quoted(raw)}, expected lists of the modules of every stage, none empty"]
        stage_of: dict[int, int] = {}
        problems: list[str] = []
        for index, modules in enumerate(raw):
            for name in modules:
                below = _below(self.instance, name)
                if not below:
                    problems.append(f": stage {index}: no layer or module is called {quoted(name)} in the model")
                for layer in below:
                    if stage_of.setdefault(layer, index) != index:
                        taken = f"stages {stage_of[layer]} and {index}"
                        problems.append(f": layer {quoted(self.instance.layers[layer].name)} is in {taken}")
        return _completed(self.instance, stage_of, problems)


def _below(instance: Instance, name: object) -> Sequence[int]:
    """Return the layers that a module is or holds."""
    if not isinstance(name, str) or not name:
        return []
    rows = enumerate(layer.name for layer in instance.layers)
    return [index for index, layer in rows if layer == name or layer.startswith(f"{name}.")]


def _completed(
    instance: Instance, stage_of: Mapping[int, int], problems: list[str]
) -> tuple[list[int], list[str]]:
    """Put operations between modules into the stage of the layer before them; name other layers left out."""
    stages: list[int] = []
    for index, layer in enumerate(instance.layers):
        stage = stage_of.get(index)
        operation = layer.name.split(".")[-1].split(":")[0] == layer.operator
        if stage is None and layer.parameter_bytes and not operation:
            problems.append(f": layer {quoted(layer.name)} of the model is in no stage")
        stages.append(stage if stage is not None else stages[-1] if stages else 0)
    return ([], problems) if problems else (stages, [])
