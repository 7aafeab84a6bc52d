"""What a run is worth in numbers that people know: samples, FLOPs and their share of the peak, and money."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.units import NS_PER_SECOND

EMBEDDING, TOKEN_BYTES = "Embedding", 8
"""The operator that looks tokens up, and the size of the number of a token in torch."""
FLOPS_PER_MAC = 2
MILLIONTHS = 10**6
SECONDS_PER_HOUR = 3600
TERA = 10**12


def throughput_of(
    instance: Instance, groups: Iterable[Group], samples: int, time_ns: int, steps: int = 1
) -> dict[str, Any]:
    """Return what so many samples in so much time are, on the devices of these groups.

    ``samples_per_second``; ``tokens_per_second``, where a sample has tokens (:func:`tokens_of`);
    ``tflops_per_device``: FLOPs of the model, two a multiply-accumulate of the forward pass and of each product
    of the backward pass, without what is computed again; ``model_flops_utilisation``: their share of what all
    these devices do at their peaks; ``price``: what the devices cost in this time, in the scenario's currency;
    ``price_of_step``: the same of one of so many steps. None where nothing takes time, or no device has a price.
    Cost: linear in layers.
    """
    held = [(instance.servers[server], count) for group in groups for server, count in group.counts]
    seconds = time_ns / NS_PER_SECOND
    hourly = sum(server.device_class.price_per_hour * count for server, count in held)
    price = hourly / MILLIONTHS * seconds / SECONDS_PER_HOUR if hourly else None
    prices = {"price": price, "price_of_step": None if price is None else price / steps}
    if not time_ns:
        return dict.fromkeys(KEYS) | prices
    tokens = tokens_of(instance)
    rate = samples * model_flops(instance) / seconds
    devices = sum(count for _, count in held)
    peak = sum(server.device_class.flops_per_second * count for server, count in held)
    return {
        "samples_per_second": samples / seconds,
        "tokens_per_second": tokens * samples / seconds if tokens else None,
        "tflops_per_device": rate / devices / TERA,
        "model_flops_utilisation": rate / peak,
        **prices,
    }


KEYS = (
    "samples_per_second",
    "tokens_per_second",
    "tflops_per_device",
    "model_flops_utilisation",
    "price",
    "price_of_step",
)


def tokens_of(instance: Instance) -> int:
    """Return how many tokens a sample has: the most numbers that one of its embeddings looks up; 0 without one."""
    found = (layer.input_bytes for layer in instance.layers if layer.operator == EMBEDDING)
    return max(found, default=0) // TOKEN_BYTES


def model_flops(instance: Instance) -> int:
    """Return the FLOPs of one sample, forward and backward: frozen weights have no gradient to compute."""
    products = instance.predictor.products
    return FLOPS_PER_MAC * sum(layer.macs * (1 + products.get(layer.name, 2)) for layer in instance.layers)
