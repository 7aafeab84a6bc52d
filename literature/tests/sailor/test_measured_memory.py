"""Peak memory of small plans, worked out by hand, and the constants of a machine."""

from dataclasses import replace

import pytest

from pipecut.formulation.problem.plan import Span
from pipecut_literature.sailor.constants import (
    GROUP_BYTES,
    MIB,
    SailorRun,
    constants_for,
    constants_of,
    predict_memory,
)
from pipecut_literature.sailor.profile import (
    LayerSizes,
    LayerTimes,
    LinkFit,
    ProfiledMachine,
    SailorLinks,
    SailorMeasurement,
    SailorPlan,
    SailorReplica,
    SailorStage,
)

SIZES = tuple(
    LayerSizes(parameters, 1, output, stash)
    for parameters, output, stash in ((30, 10, 20), (10, 10, 50), (10, 10, 50), (20, 40, 90))
)
TIMES = tuple(LayerTimes(1_000_000, 2_000_000, 70) for _ in SIZES)
FIT = LinkFit(0.0, 0.0, 1.0, 1e9)
LINKS = SailorLinks({(card, 1): FIT for card in "AB"}, {})
MACHINE = ProfiledMachine.of({"A": {(1, 1): TIMES}, "B": {(1, 1): TIMES}}, {1: SIZES, 2: SIZES}, LINKS)


UNMEASURED = SailorMeasurement()


def plan(*cuts, batch=8, replicas=1, card="A", measured=UNMEASURED, micro_batch=1):
    one = SailorReplica(((card, 1, "z"),), 1)
    stages = tuple(
        SailorStage(Span(first, stop), (one,) * replicas) for first, stop in zip([0, *cuts], cuts, strict=False)
    )
    return SailorPlan((stages,), micro_batch, batch, None, measured)


def test_one_stage_keeps_two_outputs_their_gradient_and_a_temporary():
    found = predict_memory(MACHINE, plan(4), 1000)
    assert (found.parameter_bytes, found.stash_bytes) == (5 * 70, 210)
    # 2 x 50 and 80 of outputs, less the output layer's 90: 90. Four outputs: 160.
    assert found.working_bytes == 160
    assert found.plan_bytes == 5 * 70 + 210 + 160
    assert found.peak_bytes == MIB


def test_a_single_micro_batch_leaves_one_output():
    assert predict_memory(MACHINE, plan(4, batch=1)).working_bytes == 40 + 80


@pytest.mark.parametrize(("batch", "in_flight"), [(8, 3), (2, 2), (1, 1)])
def test_the_first_stage_holds_what_is_in_flight(batch, in_flight):
    found = predict_memory(MACHINE, plan(2, 3, 4, batch=batch))
    assert found.stage == 0
    assert found.parameter_bytes == 5 * 40
    assert (found.stash_bytes, found.working_bytes) == (in_flight * 70, 100)


def test_activations_grow_with_the_micro_batch_and_parameters_do_not():
    one, four = (predict_memory(MACHINE, plan(2, 4, batch=32, micro_batch=size)) for size in (1, 4))
    assert four.parameter_bytes == one.parameter_bytes
    assert (four.stash_bytes, four.working_bytes) == (4 * one.stash_bytes, 4 * one.working_bytes)


def test_the_copy_of_the_gradients_comes_on_top_of_what_activations_took():
    sizes = tuple(LayerSizes(1000, 1, 1, 1) for _ in SIZES)
    machine = ProfiledMachine.of({"A": {(1, 1): TIMES}}, {1: sizes}, LINKS)
    found = predict_memory(machine, plan(4))
    assert (found.parameter_bytes, found.stash_bytes) == (5 * 4000, 4)
    assert found.plan_bytes == 5 * 4000 + 4 + found.working_bytes


def test_the_machine_adds_its_own_and_a_share_of_the_stash():
    found = predict_memory(MACHINE, plan(4), 1000, 0.1)
    assert found.machine_bytes == 1000 + 21
    assert predict_memory(MACHINE, plan(4)).plan_bytes == found.plan_bytes


def test_what_grows_with_the_stash_is_told_from_what_does_not():
    """Runs that hold 100 bytes and a tenth of their stash beyond the plan, and one that holds anything."""
    works = [plan(4, batch=64, micro_batch=size) for size in (1, 2, 4, 8)]
    runs = []
    for at, one in enumerate(works):
        bare = predict_memory(MACHINE, one)
        peak = 9_999 if at == 1 else bare.plan_bytes + 100 + bare.stash_bytes // 10
        runs.append(SailorRun.of(MACHINE, replace(one, measured=SailorMeasurement(None, None, peak))))
    found = constants_of(works[0], [runs[at] for at in (0, 2, 3)])
    assert (found.machine_bytes, found.unused) == (100, pytest.approx(0.1))
    assert constants_for(works[1], runs) == found
    assert constants_of(works[0], runs[:1]).unused == 0


# --- constants ---


def run(replicas=2, sync_ns=None, peak_bytes=None, iteration_ns=10**9, batch=8, card="A"):
    measured = SailorMeasurement(iteration_ns, sync_ns, peak_bytes)
    return SailorRun.of(MACHINE, plan(4, batch=batch, replicas=replicas, card=card, measured=measured))


def test_the_machine_s_share_is_what_the_plan_does_not_explain():
    assert run(peak_bytes=5000).machine_bytes == 5000 - 720
    assert run().machine_bytes is None


def test_the_spread_is_the_wait_over_the_pipeline():
    bare = run()
    fixed = bare.time.copies_ns + bare.time.all_reduce_ns
    found = run(sync_ns=fixed + bare.time.pipeline_ns // 100)
    assert found.spread == pytest.approx(0.01 / 1.17741, rel=1e-4)
    assert run(sync_ns=0).spread == 0
    assert run(replicas=1, sync_ns=10**6).spread is None
    assert run().spread is None


def test_a_synchronisation_that_leaves_no_room_is_not_believed():
    # The pipeline takes 48 ms, so an iteration of 48 ms leaves a quarter of that, 12 ms, to doubt.
    assert run(sync_ns=12_000_000, iteration_ns=48_000_000).sync_is_plausible
    doubtful = run(sync_ns=13_000_000, iteration_ns=48_000_000)
    assert not doubtful.sync_is_plausible
    assert doubtful.spread is None


def test_no_run_counts_for_itself():
    runs = [run(peak_bytes=720 + share, batch=batch) for share, batch in ((100, 4), (200, 8), (900, 16))]
    assert constants_of(runs[0].plan, runs).machine_bytes == 200
    assert [constants_for(one.plan, runs).machine_bytes for one in runs] == [550, 500, 150]
    # The same work with another measurement is the same run.
    twin = run(peak_bytes=99_999, batch=16)
    assert constants_for(twin.plan, runs) == constants_for(runs[2].plan, runs)


def test_cards_that_were_never_run_get_what_the_planner_reserves():
    runs = [run(peak_bytes=5000)]
    found = constants_for(plan(4, card="B"), runs)
    assert (found.spread, found.machine_bytes, found.memory_runs) == (0.0, 2_000_000_000, 0)
    group = SailorReplica((("B", 2, "z"),), 2)
    paired = SailorPlan(((SailorStage(Span(0, 4), (group,)),),), 1, 8, None)
    assert constants_for(paired, runs).machine_bytes == GROUP_BYTES


def test_runs_on_some_of_the_cards_serve_where_none_has_all():
    both = SailorPlan(
        ((SailorStage(Span(0, 4), tuple(SailorReplica(((card, 1, "z"),), 1) for card in "AB")),),),
        1,
        8,
        None,
    )
    runs = [run(peak_bytes=5000), run(peak_bytes=9000, card="B", batch=16)]
    assert constants_for(both, runs).machine_bytes == (5000 + 9000) // 2 - 720
    assert constants_for(both, runs).memory_runs == 2
