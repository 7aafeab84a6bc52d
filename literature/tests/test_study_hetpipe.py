"""The study of HetPipe: its orders, its two calibrations, and the time of waves against a simulation of them."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.options import BoundaryCharge, CostModel
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.ingest.errors import ModelError
from pipecut_literature.hetpipe.model import (
    PricedWorker,
    horovod,
    images_per_second,
    link_efficiency,
    priced_worker,
    sync_ns,
    wave_ns,
)
from pipecut_literature.hetpipe.planner import global_staleness
from pipecut_literature.hetpipe.published import HOROVOD, ONE_V, PublishedRun
from pipecut_literature.hetpipe.study import case_of, run, same_order
from pipecut_literature.studies.catalogue import STUDIES
from pipecut_literature.studies.study import StudyInputError, StudyInputs, to_markdown
from tests.commands.fakes import ROOT
from tests.examples import GIGA, chain, matrix

BYTE_NS = Link(8 * GIGA)
"""One byte takes 1 ns."""
SLOW = Link(2 * GIGA)
"""One byte takes 4 ns."""


@pytest.fixture(scope="module")
def study():
    return run(StudyInputs())


def simulated_wave_ns(in_flight, period, sync, distance, waves):
    """Time of one wave in the long run, by finishing minibatch after minibatch of equal virtual workers."""
    finished = [0] * (1 + in_flight * waves)
    stale = global_staleness(in_flight, distance)
    for p in range(1, len(finished)):
        start = finished[p - in_flight] if p > in_flight else 0
        # Whole waves whose updates must be in: minibatches 1 .. p - (s_global + 1).
        asked = max(0, (p - (stale + 1)) // in_flight)
        if asked:
            start = max(start, finished[asked * in_flight] + sync)
        finished[p] = max(start + in_flight * period, finished[p - 1] + period)
    half = waves // 2
    return Fraction(finished[-1] - finished[half * in_flight], waves - half)


@given(st.integers(1, 6), st.integers(1, 50), st.integers(0, 2000), st.integers(0, 4))
def test_waves_take_as_long_as_when_they_are_simulated(in_flight, period, sync, distance):
    # Delays come round every D + 2 waves, so as many times that are looked at.
    waves = 24 * (distance + 2)
    simulated = simulated_wave_ns(in_flight, period, sync, distance, waves)
    assert float(simulated) == pytest.approx(float(wave_ns(in_flight, period, sync, distance)), rel=0.05)


def small(*counts):
    """Two layers with weights of 1000 and 3000 bytes on servers A, B, ... of unit devices, each faster."""
    layers = [matrix("a", 400, weights=1000, taken=8, made=8), matrix("b", 400, weights=3000, taken=8, made=8)]
    servers = [
        Server("ABCD"[at], DeviceClass("ABCD"[at], 1 << 40, (at + 1) * GIGA), count, BYTE_NS)
        for at, count in enumerate(counts)
    ]
    pairs = [(one.name, other.name, SLOW) for one, other in itertools.combinations(servers, 2)]
    cost = CostModel(flops_per_mac=1, boundary_charge=BoundaryCharge.RECEIVER)
    return build_instance(
        chain(layers, [8]), cluster_graph("small", servers, pairs), Training(global_batch=1), cost
    )


def priced(instance, devices, in_flight=1):
    worker = priced_worker(instance, devices, in_flight)
    assert isinstance(worker, PricedWorker)
    return worker


def test_the_way_of_one_minibatch_through_a_virtual_worker():
    worker = priced(small(2), "AA")
    # Each layer computes 3 x 400 ns and receives 8 bytes, forward or backward.
    assert worker.partition.bottleneck_ns == 1208
    assert worker.latency_ns == 2 * 1208
    assert [worker.period_ns(n) for n in (1, 2, 3)] == [2416, 1208, 1208]


def test_parameter_servers_take_in_what_comes_from_elsewhere():
    instance = small(2, 2)
    workers = [priced(instance, "AB")] * 2
    (first, second) = workers[0].weights_bytes
    assert sorted((first, second)) == [1000, 3000]
    held = max(first, second)
    # Pushed to a server: half of the other layers' updates; pulled by it: the half of its own that is elsewhere.
    expected = max((2 * (4000 - one) + 2 * one) // 2 * 4 for one in (first, second))
    assert sync_ns(instance, workers, local=False, part=Fraction(1)) == expected == 16_000
    assert sync_ns(instance, workers, local=False, part=Fraction(1, 2)) == 2 * expected
    assert sync_ns(instance, workers, local=True, part=Fraction(1)) == 2 * held
    assert sync_ns(instance, workers[:1], local=False, part=Fraction(1)) == 0


def test_node_partition_pushes_most_to_others():
    instance = small(2, 2)
    workers = [priced(instance, "AA"), priced(instance, "BB")]
    # Each server takes in half of the other's 4000 bytes and pulls half of its own.
    assert sync_ns(instance, workers, local=False, part=Fraction(1)) == (2000 + 2000) * 4


def test_the_slowest_virtual_worker_sets_the_pace():
    instance = small(2, 2)
    slow, fast = (
        images_per_second(instance, PublishedRun("", (one,), 2, True, 0), Fraction(1)) for one in ("AA", "BB")
    )
    both = images_per_second(instance, PublishedRun("", ("AA", "BB"), 2, True, 0), Fraction(10**6))
    assert slow is not None and fast is not None and both is not None
    assert slow < fast
    assert both == pytest.approx(2 * slow, rel=0.01)


def test_horovod_gives_back_what_its_links_were_read_from():
    instance = small(4)
    rate = 50_000_000
    part = link_efficiency(instance, "AAAA", rate)
    assert horovod(instance, "AAAA", part) == pytest.approx(rate, rel=1e-4)
    with pytest.raises(ValueError, match="leave no time to sum weights"):
        link_efficiency(instance, "AAAA", 10**9)


def test_pairs_in_order():
    assert same_order([1, 2, 3], [10, 20, 30]) == (3, 3)
    assert same_order([1, 2, 3], [20, 10, 30]) == (2, 3)
    assert same_order([1, 1, 3], [20, 10, 5]) == (0, 2)


def test_a_model_that_cannot_be_traced_is_a_matter_of_input(monkeypatch):
    def refuse(_self):
        raise ModelError("model x: tracing needs PyTorch")

    monkeypatch.setattr("pipecut.ingest.scenario.load.Scenario.load", refuse)
    with pytest.raises(StudyInputError, match="needs PyTorch"):
        case_of("VGG-19")


@pytest.mark.slow
def test_one_v_is_what_its_efficiency_was_read_from():
    for model, rate in ONE_V.items():
        case = case_of(model)
        worker = priced(case.instance, "V")
        assert 32 * GIGA / worker.latency_ns == pytest.approx(rate, rel=1e-5)
        assert horovod(case.instance, "VVVV", case.link) == pytest.approx(HOROVOD[model][0][1], rel=1e-5)


@pytest.mark.slow
def test_its_document_is_what_it_writes(study):
    written = (ROOT / STUDIES["hetpipe"].document).read_text(encoding="utf-8").splitlines()
    again = to_markdown(study, "", "").splitlines()
    assert written[:2] + written[3:] == again[:2] + again[3:], "written again by pipecut study hetpipe"


@pytest.mark.slow
def test_orders(study):
    assert study.figures["Fig. 5, VGG-19, pairs in order"] == "6 of 6"
    assert study.figures["Fig. 5, ResNet-152, pairs in order"] == "6 of 6"
    assert study.figures["Table 4, HetPipe, ResNet-152, pairs in order"] == "6 of 6"
    assert study.figures["Table 4, HetPipe, VGG-19, pairs in order"] == "5 of 6"


@pytest.mark.slow
def test_what_the_remarks_say(study):
    calibration, _, allocation = study.tables[:3]
    fits = [float(row[-1].split()[0]) <= 6 for row in calibration.rows]
    assert fits == [True, False]
    ratios = [float(row[4]) / float(row[3]) for row in allocation.rows]
    assert round(min(ratios), 1) == 1.0 and round(max(ratios), 1) == 2.7
