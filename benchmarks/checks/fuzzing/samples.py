"""Small valid inputs of the readers, written by hand; plan, certificate and trace are made from them."""

from __future__ import annotations

import itertools
import json
from typing import Any

PLAIN_SCENARIO = """\
name: fuzzed
model: {graph: graph.json}
cluster:
  devices:
    card: {memory: 1 GiB, peak: 1 TFLOP/s, price_per_hour: 1.25}
    small: {memory: 512 MiB, peak: 500 GFLOP/s}
  servers:
    - {name: node, count: 2, device: card, devices: 2, link: {bandwidth: 100 Gbit/s, latency: 2 us}}
    - {name: odd, device: small, devices: 1}
  between_servers: {bandwidth: 10 Gbit/s, latency: 20 us}
training: {global_batch: 8, micro_batches: 2, schedule: one_f_one_b, optimizer_bytes_per_parameter: 8}
cost: {backward_factor: 2, flops_per_mac: 2}
search: paper
"""
GROUND = f"""\
{PLAIN_SCENARIO}objective: bottleneck
"""
"""The same with the goal of certificates."""
SCENARIO = f"""\
{PLAIN_SCENARIO}objective: [bottleneck, devices]
constraints:
  memory: true
  placement: line
  stages: {{at_least: 1, at_most: 4}}
  pin: [{{layers: output, stage: -1}}]
  together: [[layers.0.wq, layers.0.wo]]
  apart: [[tok_embeddings, output]]
  forms: [{{layers: output, allowed: [0, 1]}}]
  devices_per_stage: [1, 2]
  reserve: {{odd: 1 MiB}}
  at_most: {{memory: 900 MiB}}
solver: {{name: line_dp, time_limit: 60 s, workers: 1, seed: 0}}
"""
PLAN: dict[str, Any] = {
    "stages": [
        {
            "layers": {"first": "tok_embeddings", "last": "layers.0.wo"},
            "devices": {"node0": 2},
            "forms": [0, 0, 0, 1],
        },
        {"layers": {"span": [4, 7]}, "devices": {"node1": 2}, "replicas": 2},
        {"layers": ["output"], "devices": {"odd": 1}, "recompute": True, "note": "by hand"},
    ]
}
OVERRIDES = (
    "training.global_batch=16",
    "cluster.servers[0].devices=4",
    "cluster.devices.card.memory=2 GiB",
    "constraints.at_most.memory=1 GiB",
    "objective=cost",
    "cost.backward_factor=3",
)


def _layer(name: str, operator: str, split: str, parameters: int, macs: int) -> dict[str, Any]:
    sizes = {"parameter_bytes": parameters, "input_bytes": 4096, "output_bytes": 4096, "stash_bytes": 4096}
    counts = {"macs": macs, "torchstat_flops": 2 * macs, "allowed_forms": [0, 1, 2]}
    return {"name": name, "operator": operator, "split": split} | sizes | counts


def graph() -> dict[str, Any]:
    """Return the layer graph of a model of two blocks, named as in torchtitan, with measured times on a layer."""
    layers = [_layer("tok_embeddings", "Embedding", "matrix", 65_536, 1_000)]
    for block in range(2):
        layers += [
            _layer(f"layers.{block}.wq", "Linear", "matrix", 16_384, 40_000),
            _layer(f"layers.{block}.act", "gelu", "follow", 0, 0),
            _layer(f"layers.{block}.wo", "Linear", "matrix", 16_384, 40_000),
        ]
    layers.append(_layer("output", "Linear", "matrix", 65_536, 60_000))
    layers[0]["measured"] = [{"device_class": "other", "samples": 4, "forward_ns": 1000, "backward_ns": 2000}]
    names = [layer["name"] for layer in layers]
    edges = [{"producer": a, "consumer": b, "bytes": 4096} for a, b in itertools.pairwise(names)]
    edges.append({"producer": "layers.0.wq", "consumer": "output", "bytes": 4096})
    ties = [{"layers": ["tok_embeddings", "output"], "parameter_bytes": 65_536}]
    head = {"format": "pipecut layer graph", "version": 1, "name": "fuzzed", "element_bytes": 4}
    return head | {"layers": layers, "edges": edges, "ties": ties}


SCHEDULE = "0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1W0,1F1,1B1\n"
_NUMBERS = "forward_compute_time=1.500, backward_compute_time=3.000, activation_size={}, parameter_size=8.000"
PROFILE = "".join(
    (
        f"node1 -- Input0 -- {_NUMBERS.format('40.0')}\n",
        f"node2 -- Conv2d(3, 64, kernel_size=(1, 1)) -- {_NUMBERS.format('[8.0; 2.0; 2.0]')}\n",
        f"node3 -- LSTM(1, 1) -- {_NUMBERS.format('512.000')}\n",
        "\tnode1 -- node2\n\tnode2 -- node3\n\tnode1 -- node3\n",
    )
)
_FIRST = {"id": 7, "name": "a", "supportedOnFpga": 1, "cpuLatency": 20.0, "fpgaLatency": 2.0, "isBackwardNode": 0}
_SECOND = {"id": 3, "supportedOnFpga": False, "cpuLatency": 5, "fpgaLatency": 0.5, "isBackwardNode": False}
DNN_PARTITIONING: dict[str, Any] = {
    "maxSizePerFPGA": 1e9,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [_FIRST, _SECOND | {"colorClass": 4, "size": 100.0, "layerId": 2}],
    "edges": [{"sourceId": 7, "destId": 3, "cost": 2.0**20 / 2**31, "size": 2.0**20}],
}
_CARD = ["GH-96", 4, "zone"]
SAILOR_PLAN: dict[str, Any] = {
    "zone": "zone",
    "pipeline_list": [
        {
            "num_stages": 2,
            "layers_per_stage": [[0, 1, 2], [3, 4]],
            "tmp_per_stage": [[[[_CARD], 4], [[_CARD], 4]], [[[_CARD, _CARD], 8]]],
            "dp": [2, 1],
        }
    ],
    "mbs": 8,
    "gbs": 64,
    "real": 0.65705,
    "red_grads": 0.00414,
    "max_mem": 26942111744,
    "N": 2,
}
SAILOR_TIMES = {"8": {"4": {"0": [0.00048, 2, 0.1], "1": [0.003, 1e-06, 0]}}}
_SIZE_NAMES = [
    f"{kind}_{unit}" for kind in ("params", "act_input", "act_output", "act_mem") for unit in ("floats", "bytes")
]
SAILOR_SIZES = {"OPT": {"2": {str(layer): dict.fromkeys(_SIZE_NAMES, 4) for layer in range(2)}}}
_FIT = [[-0.5, 2.0, 10.0], 12.5e9]
SAILOR_LINKS = {"inter": {"A": {"1": _FIT}}, "intra": {"A": {"2": _FIT}}}


def as_json(value: object) -> bytes:
    """Return JSON as files hold it."""
    return json.dumps(value, indent=1).encode()
