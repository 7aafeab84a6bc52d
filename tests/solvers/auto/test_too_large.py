"""What is too large for a method is refused before it is allocated, and another method is asked."""

from __future__ import annotations

import random

import pytest

from pipecut.formulation import limits as size
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Training
from pipecut.solvers.auto import solve as simpler
from pipecut.solvers.auto.solve import plan, some_cuts, with_some_cuts
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.reference.algorithm_1 import StageTimes
from tests.examples import chain, instance_of, matrix, mesh


def deep(layers: int, *devices: int) -> Instance:
    """A chain of unlike layers."""
    drawn = random.Random(layers)  # noqa: S311 (no secret)
    rows = [matrix(f"l{at}", drawn.randrange(1000, 90_000), 4 * drawn.randrange(1, 2000)) for at in range(layers)]
    sizes = [4 * drawn.randrange(1, 500) for _ in range(layers - 1)]
    return instance_of(chain(rows, sizes), mesh(*devices), training=Training(global_batch=64, micro_batches=8))


def test_tables_that_would_not_fit_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = all_tables(deep(40, 2, 2))
    needed = 24 * len(tables.kinds) * 40 * 41
    monkeypatch.setattr(size, "MOST_BYTES", needed)
    StageTimes.of(tables)
    monkeypatch.setattr(size, "MOST_BYTES", needed - 1)
    message = (
        r"kinds of device groups, 40 layers\) would take about .* GiB, a method may take .* GiB; merge layers"
    )
    with pytest.raises(TooLargeError, match=message):
        StageTimes.of(tables)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["state_dp", "line_dp", "cpsat"])
def test_another_method_is_asked_and_the_notes_say_what_stopped_whom(
    solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = deep(60, 2, 2)
    best = find_any("state_dp").load()(instance, Limits()).objective
    # Too little for the times of all stages.
    monkeypatch.setattr(size, "MOST_BYTES", 170_000)
    monkeypatch.setattr(simpler, "SOME_CUTS", 12)
    found = checked(instance, plan(instance, Limits(), find_any(solver)))
    assert found.proof is Proof.FEASIBLE and found.objective is not None and found.bound is not None
    assert best is not None and found.bound <= best <= found.objective <= best * 11 // 10
    assert found.notes[0].startswith(f"{solver}: ") and "a method may take" in found.notes[0]
    assert "state_dp at 12 cuts was asked instead" in found.notes


def test_where_nobody_can_take_an_instance_all_reasons_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "MOST_BYTES", 10)
    with pytest.raises(TooLargeError, match=r"state_dp: .*; cpsat: .*; line_dp: .*; state_dp at 192 cuts: "):
        plan(deep(9, 2), Limits(), find_any("state_dp"))


def test_some_cuts_are_possible_ones_and_cover_the_model() -> None:
    instance = deep(50, 2, 2)
    cuts = some_cuts(instance, 10).places
    assert cuts[0] == 0 and cuts[-1] == 50 and 3 <= len(cuts) <= 12
    assert set(cuts) <= set(CutSpace.of(instance).places) and list(cuts) == sorted(set(cuts))
    assert (
        with_some_cuts(instance, Limits()).objective == find_any("state_dp").load()(instance, Limits()).objective
    )


@pytest.mark.slow
def test_five_thousand_layers_on_64_devices_have_a_plan() -> None:
    """``state_dp`` needs no table of all their stages; whether it ends in time is up to the machine.

    The model takes all the time that it has, and has its plan before it searches.
    """
    instance = deep(5000, *[8] * 8)
    for solver, seconds in (("cpsat", 12), ("state_dp", 40)):
        found = checked(instance, plan(instance, Limits(time_limit_s=seconds), find_any(solver)))
        assert found.proof in (Proof.FEASIBLE, Proof.OPTIMAL) and found.gap is not None and found.gap < 0.05
    with pytest.raises(TooLargeError, match=r"would take about 35\.8 GiB, a method may take 4 GiB"):
        find_any("line_dp").load()(instance, Limits())
