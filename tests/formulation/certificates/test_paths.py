"""Paths in certificates: what is none is refused, and what they count is what the timeline waits for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.certificates.executed.paths import PathError, PathPass, WeighedPaths, busy_paths
from pipecut.formulation.certificates.executed.paths import warm_ups as of_stages
from pipecut.formulation.certificates.executed.weighed_suffixes import answers_of
from pipecut.formulation.executed import step_of_training_ns
from pipecut.formulation.problem.training import Schedule, Training
from tests.generators import warm_ups
from tests.laws import so_many
from tests.solvers.step_time.test_step_dp import pipelines

TRAINING = Training(2, 2)
FIRST, SECOND = PathPass(0, "F", 0), PathPass(0, "F", 1)
WHOLE = (FIRST, *(PathPass(1, way, at) for at in (0, 1) for way in ("F", "B")), PathPass(0, "B", 1))


def test_a_path_is_taken():
    WeighedPaths(2, ((3, WHOLE),)).check(TRAINING)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ((), "weights above 0"),
        (((0, WHOLE),), "weights above 0"),
        (((1, ()),), "first to last"),
        (((1, WHOLE[1:]),), "first to last"),
        (((1, WHOLE[:3]),), "first to last"),
        (((1, (WHOLE[0], *WHOLE[2:])),), "does not wait"),
        (((1, (WHOLE[0], WHOLE[1], *WHOLE[3:])),), "does not wait"),
        (((1, (FIRST, SECOND, PathPass(0, "B", 1))),), "does not wait"),
        (((1, (FIRST, PathPass(0, "F", 7), PathPass(0, "B", 1))),), "does not wait"),
        (((1, (FIRST, PathPass(-1, "F", 0), PathPass(0, "B", 1))),), "does not wait"),
    ],
)
def test_what_is_no_path_is_refused(paths: tuple[tuple[int, tuple[PathPass, ...]], ...], words: str):
    with pytest.raises(PathError, match=words):
        WeighedPaths(2, paths).check(TRAINING)


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    size = draw(st.integers(1, 5))
    schedule = draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.NAIVE]))
    warm_up = draw(warm_ups.filter(lambda one: one != "choose")) if schedule is Schedule.ONE_F_ONE_B else "classic"
    return Training(size, size, schedule=schedule, warm_up=warm_up)


@settings(max_examples=so_many(200), deadline=None)
@given(pipelines(), trainings())
def test_answers_of_whole_plans_are_executed_steps_and_no_path_is_longer(passes, training: Training):
    step, count = step_of_training_ns(training, passes, overlapped=False), training.micro_batches
    answers = None
    for stage in reversed(range(passes.stages)):
        rows = np.array([[passes.forward_ns[stage], passes.backward_ns[stage], passes.sync_ns[stage]]])
        last = stage == passes.stages - 1
        sent = np.array([[0, 0] if last else [passes.activation_ns[stage], passes.gradient_ns[stage]]])
        answers = answers_of(rows, sent, answers, of_stages(training, passes.stages)[stage], count)
    assert answers is not None and int(answers[:, :, count].max()) == step
    busy = busy_paths(training, passes.stages)
    busy.check(training)
    sums = zip(
        passes.forward_ns,
        passes.backward_ns,
        passes.sync_ns,
        (*passes.activation_ns, 0),
        (*passes.gradient_ns, 0),
        strict=True,
    )
    counted = (int(np.dot(often, own)) for often, own in zip(busy.often(), sums, strict=True))
    assert sum(counted) <= busy.weight * step
