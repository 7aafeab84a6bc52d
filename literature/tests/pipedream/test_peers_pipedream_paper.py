import itertools
import os
import random
from pathlib import Path

import pytest

from pipecut_literature.pipedream.code import MachineLevel, PipeDreamStage
from pipecut_literature.pipedream.code import optimise as as_the_program
from pipecut_literature.pipedream.paper import LayerRow, optimise, price, row
from pipecut_literature.pipedream.profile import ProfiledLayer, ProfiledModel, read_profile

DATA = Path(os.environ.get("PIPECUT_DATA", Path(__file__).parents[4] / "shared" / "data"))


def made_up(seed, size):
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    return LayerRow(
        tuple(f"layer{n}" for n in range(size)),
        tuple(chance.randrange(1, 60) / 1000 for _ in range(size)),
        tuple(chance.randrange(40) * 10**6 for _ in range(size)),
        tuple(chance.randrange(1, 40) * 10**6 for _ in range(size)),
    )


def all_plans(first, stop, levels):
    """Every way to cut layers into stages at every level, machines all used."""
    if not levels:
        yield ()
        return
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(range(first + 1, stop), count) for count in range(stop - first)
    ):
        ends = (first, *cuts, stop)
        stages = list(itertools.pairwise(ends))
        for replicas in itertools.product(range(1, levels[-1].machines + 1), repeat=len(stages)):
            if sum(replicas) == levels[-1].machines:
                inner = [list(all_plans(a, b, levels[:-1])) for a, b in stages]
                for choice in itertools.product(*inner):
                    yield tuple(
                        PipeDreamStage(a, b, r, one)
                        for (a, b), r, one in zip(stages, replicas, choice, strict=True)
                    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("machines", [(3,), (4,), (2, 2)])
def test_against_every_plan(seed, machines):
    layers = made_up(seed, 5 if len(machines) == 1 else 4)
    levels = [MachineLevel(m, 1e9 / 10**level) for level, m in enumerate(machines)]
    plan = optimise(layers, levels)
    least = min(price(layers, levels, stages) for stages in all_plans(0, len(layers.names), levels))
    assert plan.period_s == pytest.approx(least, rel=1e-12)
    assert price(layers, levels, plan.stages) == pytest.approx(plan.period_s, rel=1e-12)


def test_one_stage_overlaps_compute_and_all_reduce():
    layers = LayerRow(("a",), (0.008,), (3 * 10**6,), (0,))
    # max(8 ms, 2 * 3 * 3 MB / (1 GB/s) = 18 ms) / 4
    assert optimise(layers, [MachineLevel(4, 1e9)]).period_s == pytest.approx(0.0045)
    assert optimise(layers, [MachineLevel(4, 1e12)]).period_s == pytest.approx(0.002)


def test_a_transfer_is_not_shared_by_the_replicas():
    layers = LayerRow(("a", "b"), (0.004, 0.004), (0, 10**12), (2 * 10**6, 0))
    # Replicating b would cost an all-reduce of 10^12 bytes, so it stays alone behind a transfer of 4 ms.
    plan = optimise(layers, [MachineLevel(3, 1e9)])
    assert [(s.first, s.stop, s.replicas) for s in plan.stages] == [(0, 1, 2), (1, 2, 1)]
    assert plan.period_s == pytest.approx(0.004)


def test_vgg16_as_a_row():
    path = DATA / "pipedream-profiles" / "vgg16" / "graph.txt"
    if not path.exists():
        pytest.skip("no public profile of vgg16 in the data folder")
    layers = row(read_profile(path))
    assert len(layers.names) == 40
    plan = optimise(layers, [MachineLevel(4, 1e9)])
    assert [(s.first, s.stop, s.replicas) for s in plan.stages] == [(0, 17, 3), (17, 40, 1)]
    # Here one transfer decides, 2 a / (B), in the paper as in the program, where one replica receives it.
    assert plan.period_s == as_the_program(read_profile(path), [MachineLevel(4, 1e9)]).period_s
    for levels in (
        [MachineLevel(8, 100e9), MachineLevel(2, 3.125e9)],
        [MachineLevel(4, 1.25e9), MachineLevel(4, 1.25e9)],
    ):
        plan = optimise(layers, levels)
        assert price(layers, levels, plan.stages) == pytest.approx(plan.period_s, rel=1e-12)


def test_branches_have_no_place_in_the_paper():
    layers = tuple(ProfiledLayer(name, "Made", 1, 1, 1, 1) for name in "abc")
    with pytest.raises(ValueError, match="layers b and c have no order"):
        row(ProfiledModel(layers, ((0, 1), (0, 2))))
    skipping = row(ProfiledModel(layers, ((0, 1), (1, 2), (0, 2))))
    assert skipping.crossing_bytes == (1, 2, 0)


def test_nothing_to_plan_is_an_error():
    with pytest.raises(ValueError, match="at least one layer"):
        optimise(LayerRow((), (), (), ()), [MachineLevel(1, 1.0)])
    with pytest.raises(ValueError, match="ends before layer 1, the next begins with 2"):
        price(made_up(0, 3), [MachineLevel(2, 1.0)], (PipeDreamStage(0, 1, 1), PipeDreamStage(2, 3, 1)))
