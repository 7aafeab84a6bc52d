"""Paths of passes: none takes longer than the step of any plan, and the critical one takes as long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.executed import PipelinePasses, chunks_step_ns
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers.chunks.pass_chains import ChunkPath, critical_path, paths

SIZES = st.sampled_from([(2, 2), (2, 3), (3, 2), (4, 2), (3, 3)])
MOST = st.sampled_from([0, 1, 9, 1_000])
"""Of each kind of times by itself, so that each is large against all others in some plans."""


@st.composite
def passes_of(draw: st.DrawFn, stages: int) -> PipelinePasses:
    rows = []
    for length in [stages] * 3 + [stages - 1] * 2:
        most = draw(MOST)
        rows.append(tuple(draw(st.lists(st.integers(0, most), min_size=length, max_size=length))))
    return PipelinePasses(*rows)


@st.composite
def in_halves(draw: st.DrawFn, stages: int) -> PipelinePasses:
    found, most = draw(passes_of(stages)), draw(MOST)
    late = tuple(draw(st.lists(st.integers(0, most), min_size=stages, max_size=stages)))
    whole = tuple(map(sum, zip(found.backward_ns, late, strict=True)))
    return replace(found, backward_ns=whole, weight_ns=late)


def interleaved_of(micro_batches: int, chunks: int) -> Training:
    return Training(micro_batches, micro_batches, chunks=chunks)


def in_a_v(micro_batches: int) -> Training:
    return Training(micro_batches, micro_batches, schedule=Schedule.ZERO_BUBBLE_V)


def spent_ns(passes: PipelinePasses) -> tuple[int, ...]:
    """Return what everything takes that may lie on a path, in the order of ``ChunkPath.often``."""
    late = passes.weight_ns or (0,) * passes.stages
    first = (whole - own for whole, own in zip(passes.backward_ns, late, strict=True))
    return (*passes.forward_ns, *first, *late, *passes.sync_ns, *passes.activation_ns, *passes.gradient_ns)


def taken_ns(path: ChunkPath, passes: PipelinePasses) -> int:
    return sum(often * ns for often, ns in zip(path.often, spent_ns(passes), strict=True))


@given(st.data(), SIZES, st.integers(1, 3), st.booleans())
def test_no_path_takes_longer_than_any_step(
    data: st.DataObject, sizes: tuple[int, int], rounds: int, overlapped: bool
):
    ranks, chunks = sizes
    training = interleaved_of(ranks * rounds, chunks)
    one, other = (data.draw(passes_of(ranks * chunks)) for _ in range(2))
    check_paths(training, one, other, overlapped=overlapped)


@given(st.data(), st.integers(1, 4), st.integers(1, 9), st.booleans())
def test_no_path_takes_longer_than_any_step_of_a_v(
    data: st.DataObject, ranks: int, micro_batches: int, overlapped: bool
):
    one, other = (data.draw(in_halves(2 * ranks)) for _ in range(2))
    check_paths(in_a_v(micro_batches), one, other, overlapped=overlapped)


def check_paths(training: Training, one: PipelinePasses, other: PipelinePasses, *, overlapped: bool) -> None:
    critical = [critical_path(training, passes, overlapped=overlapped) for passes in (one, other)]
    known = [*paths(training, one.stages, overlapped), *critical]
    for passes, own in zip((one, other), critical, strict=True):
        step = chunks_step_ns(training, passes, overlapped=overlapped)
        assert taken_ns(own, passes) == step
        assert max(taken_ns(path, passes) for path in known) == step


def test_of_equal_stages_the_paths_that_need_no_plan_are_the_whole_step():
    ranks, chunks, micro_batches = 4, 3, 8
    training = interleaved_of(micro_batches, chunks)
    passes = PipelinePasses((10,) * 12, (20,) * 12, (0,) * 12, (0,) * 11, (0,) * 11)
    step = chunks_step_ns(training, passes, overlapped=False)
    assert step == 30 * (micro_batches * chunks + ranks - 1)
    assert max(taken_ns(path, passes) for path in paths(training, 12, False)) == step


@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_of_equal_stages_in_a_v_they_are_too(micro_batches: int):
    training = in_a_v(micro_batches)
    passes = PipelinePasses((10,) * 8, (20,) * 8, (0,) * 8, (0,) * 7, (0,) * 7, (10,) * 8)
    step = chunks_step_ns(training, passes, overlapped=False)
    assert max(taken_ns(path, passes) for path in paths(training, 8, False)) == step
