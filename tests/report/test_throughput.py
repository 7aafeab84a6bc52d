"""Throughput of a run: numbers by hand, and the same in ``evaluate`` and ``simulate``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.report.content import content_of, summary_of
from pipecut.report.measures import KEYS, throughput_of
from pipecut.report.simulation import simulate
from tests.examples import chain, matrix

CARD = DeviceClass("card", 1 << 30, 10**9, price_per_hour=3_600_000)
CLUSTER = cluster_graph("pair", [Server("node", CARD, 2, Link(10**9))], [])
TRAINED, FROZEN = matrix("a", 1_000, weights=8), replace(matrix("b", 500, weights=8), trainable_bytes=0)


def test_by_hand() -> None:
    """16 samples in 2 ms on two cards: 6 FLOPs a multiply-accumulate, 4 of a layer with frozen weights."""
    instance = build_instance(chain([TRAINED, FROZEN], [4]), CLUSTER, Training(16), CostModel())
    flops = 16 * (6 * 1_000 + 4 * 500)
    found = throughput_of(instance, [Group(((0, 1),)), Group(((0, 1),))], 16, 2_000_000)
    assert found == pytest.approx(
        {
            "samples_per_second": 8_000,
            "tokens_per_second": None,
            "tflops_per_device": flops / 0.002 / 2 / 10**12,
            "model_flops_utilisation": flops / 0.002 / (2 * 10**9),
            "price": 2 * 3.6 * 0.002 / 3600,
            "price_of_step": 2 * 3.6 * 0.002 / 3600,
        }
    )


def test_tokens_are_what_an_embedding_looks_up() -> None:
    """Two embeddings of 16 numbers of eight bytes, as of words and positions, are 16 tokens a sample."""
    words = replace(matrix("words", 0, weights=8), operator="Embedding", input_bytes=128)
    layers = [words, replace(words, name="places"), TRAINED]
    instance = build_instance(chain(layers, [4, 4]), CLUSTER, Training(16), CostModel())
    found = throughput_of(instance, [Group(((0, 1),))], 16, 2_000_000, steps=4)
    assert found["tokens_per_second"] == pytest.approx(16 * 8_000)
    assert found["price_of_step"] == pytest.approx(found["price"] / 4)


def test_nothing_is_said_where_nothing_takes_time_or_costs() -> None:
    free = cluster_graph("free", [Server("node", replace(CARD, price_per_hour=0), 2, Link(10**9))], [])
    instance = build_instance(chain([matrix("a", 1)], []), free, Training(16), CostModel())
    assert throughput_of(instance, [Group(((0, 2),))], 16, 0) == dict.fromkeys(KEYS)
    assert throughput_of(instance, [Group(((0, 2),))], 16, 5)["price"] is None


def test_a_run_says_it_of_its_whole_time_and_the_devices_that_it_uses() -> None:
    instance = build_instance(chain([TRAINED, FROZEN], [4]), CLUSTER, Training(16, 4), CostModel())
    plan = Plan((Stage(Span(0, 2), Group(((0, 1),)), (0, 0)),))
    found = simulate(instance, plan)
    said = summary_of(found)["throughput"]
    assert said == content_of(found, scenario="it")["throughput"]
    assert said == throughput_of(instance, [Group(((0, 1),))], 16, found.timeline.makespan_ns)
