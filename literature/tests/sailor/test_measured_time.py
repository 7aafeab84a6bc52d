"""Iteration times of small plans, worked out by hand."""

from dataclasses import replace

import pytest

from pipecut.formulation.problem.plan import Span
from pipecut_literature.sailor.constants import SailorRun, constants_for, constants_of
from pipecut_literature.sailor.profile import (
    LayerSizes,
    LayerTimes,
    LinkFit,
    NotProfiledError,
    ProfiledMachine,
    SailorLinks,
    SailorMeasurement,
    SailorPlan,
    SailorReplica,
    SailorStage,
)
from pipecut_literature.sailor.time import order_statistic, predict_time

MB = 10**6
MS = 1_000_000
"""Ns of a millisecond; 1 MB takes one at 1 GB/s."""
SIZES = tuple(LayerSizes(parameters * MB, 2 * MB, 2 * MB, 5 * MB) for parameters in (30, 10, 10, 20))
LINK = LinkFit(0.0, 0.0, 1.0, 1e9)
LINKS = SailorLinks({("A", 1): LINK, ("A", 4): LINK, ("B", 1): LinkFit(0.0, 0.0, 0.5, 5e8)}, {})


def table(scale=1):
    """A busy device: 10 and 20 ms for each layer and sample; an update of 7 ms for 70 MB."""
    return {
        (size, degree): tuple(
            LayerTimes(10 * MS * size * scale + layer, 20 * MS * size * scale, 7 * MS) for layer in range(4)
        )
        for size in (1, 2, 4)
        for degree in (1, 4)
    }


MACHINE = ProfiledMachine.of({"A": table(), "B": table(3)}, {1: SIZES, 4: SIZES}, LINKS)
A1, B1, A4 = (SailorReplica(((card, count, "z"),), count) for card, count in (("A", 1), ("B", 1), ("A", 4)))


def plan(*stages, batch=8, pipelines=1):
    cuts = [0, *(cut for cut, _ in stages)]
    one = tuple(
        SailorStage(Span(first, stop), tuple(replicas))
        for first, (stop, replicas) in zip(cuts, stages, strict=False)
    )
    return SailorPlan((one,) * pipelines, 1, batch, None)


def test_one_card_does_one_micro_batch_after_another():
    found = predict_time(MACHINE, plan((4, [A1])))
    assert found.pipeline_ns == 8 * (4 * 30 * MS + 6)
    assert (found.wait_ns, found.all_reduce_ns, found.update_ns) == (0, 0, 7 * MS)
    assert found.copies_ns == 6 * MS
    assert found.iteration_ns == found.pipeline_ns + 13 * MS


def test_what_hosts_need_for_a_message_is_found_in_runs_of_several_stages_and_holds_for_others():
    """Every message is waited for; a run that takes 0.4 ms more for each has hosts that need it."""
    two, three = plan((2, [A1]), (4, [A1]), batch=8), plan((1, [A1]), (2, [A1]), (4, [A1]), batch=4)
    hosts = 400_000

    def measured(plan, message_ns):
        iteration = predict_time(MACHINE, plan, message_ns=message_ns).iteration_ns
        return SailorRun.of(MACHINE, replace(plan, measured=SailorMeasurement(iteration, None, None)))

    runs = [measured(two, hosts), measured(plan((4, [A1])), hosts), measured(replace(two, global_batch=16), 0)]
    assert [run.message_ns(0.0) for run in runs] == [hosts, None, 0]
    found = constants_of(three, [runs[0], runs[1]])
    assert (found.message_ns, found.message_runs) == (hosts, 1)
    slower = predict_time(MACHINE, three, message_ns=hosts).pipeline_ns
    assert slower > predict_time(MACHINE, three).pipeline_ns + 2 * 4 * hosts
    assert constants_for(runs[0].plan, runs[:1]).message_ns == 0, "no run counts for itself"


def test_two_stages_add_their_messages():
    # The last stage is the slower one. A micro-batch takes it 91 ms and two messages of 2 ms.
    times = [predict_time(MACHINE, plan((1, [A1]), (4, [A1]), batch=batch)).pipeline_ns for batch in (20, 30)]
    assert times[1] - times[0] == 10 * (90 * MS + 6 + 2 * 2 * MS)


def test_the_slowest_chain_and_the_slowest_end_count():
    mixed = predict_time(MACHINE, plan((4, [A1, B1])))
    slow = predict_time(MACHINE, plan((4, [B1, B1])))
    assert mixed.pipeline_ns == slow.pipeline_ns > predict_time(MACHINE, plan((4, [A1, A1]))).pipeline_ns
    assert mixed.all_reduce_ns == slow.all_reduce_ns == 2 * 1 * 70 * MS
    assert predict_time(MACHINE, plan((4, [A1, A1]))).all_reduce_ns == 70 * MS


def test_replicas_that_differ_wait_for_the_slowest():
    found = predict_time(MACHINE, plan((4, [A1] * 4)), spread=0.01)
    assert found.wait_ns == pytest.approx(0.01 * 1.6651 * found.pipeline_ns, rel=1e-4)
    assert found.gradient_sync_ns == found.wait_ns + found.copies_ns + found.all_reduce_ns
    assert order_statistic(1) == 0


def test_a_stage_with_half_the_replicas_takes_twice_as_long():
    narrow = predict_time(MACHINE, plan((1, [A1, A1]), (4, [A1]), batch=40)).pipeline_ns
    even = predict_time(MACHINE, plan((1, [A1, A1]), (4, [A1, A1]), batch=40)).pipeline_ns
    assert narrow > 1.8 * even


def test_a_host_that_is_slower_than_the_device_sets_the_forward_pass():
    rows = table() | {(1, 1): tuple(LayerTimes(18 * MS, 20 * MS, 7 * MS) for _ in range(4))}
    machine = ProfiledMachine.of({"A": rows}, {1: SIZES}, LINKS)
    assert predict_time(machine, plan((4, [A1]))).pipeline_ns == 8 * 4 * (18 + 20) * MS


def test_a_group_on_several_nodes_pays_for_its_all_reduces():
    spread_out = SailorReplica((("A", 1, "z"),) * 4, 4)
    inside, across = (predict_time(MACHINE, plan((4, [one]), batch=1)).pipeline_ns for one in (A4, spread_out))
    # Three layers (not the last), two passes, two all-reduces of six steps of at least 1 MB.
    assert across - inside == 3 * 2 * 2 * 6 * MS


def test_pipelines_exchange_gradients_too():
    one, two = (predict_time(MACHINE, plan((2, [A1]), (4, [A1]), pipelines=count)) for count in (1, 2))
    assert (one.all_reduce_ns, two.all_reduce_ns) == (0, 2 * 20 * MS)


def test_what_does_not_fit_the_profile_is_named():
    with pytest.raises(NotProfiledError, match="pipeline 0 has layers 0 to 2, expected 0 to 3, as profiled"):
        predict_time(MACHINE, plan((3, [A1])))
    with pytest.raises(NotProfiledError, match="no layer sizes for tensor-parallel degree 2, only for 1, 4"):
        predict_time(MACHINE, plan((4, [SailorReplica((("A", 2, "z"),), 2)])))
    with pytest.raises(NotProfiledError, match="card C: no profile; there are profiles of A, B"):
        predict_time(MACHINE, plan((4, [SailorReplica((("C", 1, "z"),), 1)])))
    longer = replace(MACHINE, sizes={1: (*SIZES, SIZES[0])})
    with pytest.raises(NotProfiledError, match="card A: profile of 4 layers, sizes of 5"):
        predict_time(longer, plan((5, [A1])))
