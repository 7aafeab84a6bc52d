"""Forms 3 and 4: where memory asks for rows between two split matrices, they cost less than any others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Axis
from pipecut.formulation.problem.options import Synchronisation
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.dynamic.states import state_dp as states
from tests.examples import BYTE_LINK, PLAIN, UNIT, chain, instance_of, join, matrix, mesh

ONE = Limits(workers=1)
SOLVERS = (brute_force.solve, layered.solve, states.solve)


def norm_between(memory_bytes: int, *, rows: bool) -> Instance:
    """Two matrices with a norm between them that keeps 400 bytes; two devices share one stage.

    The norm works by rows or on whole tensors. Weights with all that goes with them take 900 bytes of a device.
    """
    a, b = (matrix(name, 0, weights=300, taken=20, made=20, allowed=(1, 2)) for name in "ab")
    norm = replace(join("norm", allowed=(0, 1)), input_bytes=20, output_bytes=20, stash_bytes=400)
    cluster = mesh(2, kind=replace(UNIT, memory_bytes=memory_bytes), inside=BYTE_LINK)
    cost = replace(PLAIN, synchronisation=Synchronisation.OVERLAPPED)
    limits = Constraints(
        memory=True, devices_per_stage=(2,), tensor_parallel_degrees=(2,), splits=(Axis.SEQUENCE,) if rows else ()
    )
    graph = chain([a, norm, b], [20, 20])
    return replace(instance_of(graph, cluster, cost), constraints=limits)


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize(
    ("room", "rows", "expected", "forms"),
    [
        (10_000, False, 2 * 20, (1, 1, 2)),
        (10_000, True, 2 * 20, None),
        (1_200, False, 2 * 20 + 2 * 10, None),
        (1_200, True, 2 * 20, (3, 0, 4)),
    ],
)
def test_rows_between_a_pair_cost_what_whole_tensors_do(
    solve: Callable[..., Outcome], room: int, rows: bool, expected: int, forms: tuple[int, ...] | None
) -> None:
    """An all-reduce of 20 bytes takes 20 ns on two devices, and so do its halves; a change of layout takes 10."""
    instance = norm_between(room, rows=rows)
    found = solve(instance, ONE)
    assert (found.objective, found.proof) == (expected, Proof.OPTIMAL)
    assert found.plan is not None and evaluate(instance, found.plan).feasible
    assert forms is None or found.plan.stages[0].forms == forms


def test_forms_that_nobody_offered_break_a_rule() -> None:
    plan = brute_force.solve(norm_between(1_200, rows=True), ONE).plan
    assert plan is not None
    found = evaluate(norm_between(1_200, rows=False), plan)
    assert {one.rule for one in found.violations} == {"forms"}
