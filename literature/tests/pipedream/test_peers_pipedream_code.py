import itertools
import os
import random
from pathlib import Path

import pytest

from pipecut_literature.common.downsets import NothingFitsError, TooManyDownsetsError
from pipecut_literature.pipedream.code import MachineLevel, Options, optimise, optimise_states
from pipecut_literature.pipedream.profile import ProfiledLayer, ProfiledModel, read_profile
from pipecut_literature.pipedream.states import antichain_states, downset_states

DATA = Path(os.environ.get("PIPECUT_DATA", Path(__file__).parents[4] / "shared" / "data"))
FAST, SLOW = 25e9 / 8, 10e9 / 8  # 25 and 10 Gbit/s in bytes/s
FREE = Options(compression=None)


def profile(name):
    path = DATA / "pipedream-profiles" / name / "graph.txt"
    if not path.exists():
        pytest.skip(f"no public profile of {name} in the data folder")
    return read_profile(path)


# Model, states, machines, bandwidth; then with transfers charged: replicas of the stages, seconds per minibatch,
# speed-up over one machine and over data parallelism; then with free transfers: replicas, seconds.
PUBLISHED = [
    ("alexnet", 22, 4, FAST, "3-1", 0.02824596523, 3.0206, 2.8318, "2-1-1", 0.02226628064),
    ("alexnet", 22, 4, SLOW, "3-1", 0.03246091307, 2.6284, 5.1746, "2-1-1", 0.0229012016),
    ("alexnet", 22, 8, FAST, "7-1", 0.01244949104, 6.8534, 3.6051, "4-1-1-1-1", 0.01162),
    ("alexnet", 22, 8, SLOW, "7-1", 0.0150994944, 5.6506, 6.3715, "3-1-1-1-1-1", 0.01162),
    ("vgg16", 40, 4, FAST, "3-1", 0.1733872663, 3.8788, 1.7358, "3-1", 0.1715365997),
    ("vgg16", 40, 4, SLOW, "3-1", 0.1763491659, 3.8137, 2.8364, "3-1", 0.1744984992),
    ("vgg16", 40, 8, FAST, "7-1", 0.09366112878, 7.1805, 1.7248, "6-1-1", 0.09175018302),
    ("vgg16", 40, 8, SLOW, "7-1", 0.1008413934, 6.6692, 2.7545, "4-2-1-1", 0.093357134),
    ("resnet18", 100, 4, FAST, "3-1", 0.06902318076, 3.7631, 1.1034, "2-1-1", 0.065918),
    ("resnet18", 100, 4, SLOW, "3-1", 0.0822083584, 3.1596, 1.1312, "2-1-1", 0.065918),
    ("resnet18", 100, 8, FAST, "6-2", 0.03691174192, 7.0368, 1.0570, "5-1-1-1", 0.0338367572),
    ("resnet18", 100, 8, SLOW, "5-2-1", 0.04360132538, 5.9572, 1.1200, "4-1-1-1-1", 0.033883),
    ("squeezenet1_0", 99, 4, FAST, "4", 0.07253998704, 3.9339, 1.0, "3-1", 0.07168544299),
    ("squeezenet1_0", 99, 4, SLOW, "4", 0.0743377176, 3.8388, 1.0, "3-1", 0.07213960747),
    ("squeezenet1_0", 99, 8, FAST, "5-3", 0.0362979751, 7.8618, 1.0020, "5-1-1-1", 0.035818),
    ("squeezenet1_0", 99, 8, SLOW, "8", 0.0374185436, 7.6263, 1.0, "5-1-1-1", 0.0359137289),
    ("gnmt", 99, 4, FAST, "1-1-1-1", 0.025868, 3.4566, 8.0551, "1-1-1-1", 0.025868),
    ("gnmt", 99, 4, SLOW, "1-1-1-1", 0.025868, 3.4566, 18.8415, "1-1-1-1", 0.025868),
    ("resnet50", 240, 4, FAST, "3-1", 0.1164263171, 3.8086, 1.1629, "1-1-1-1", 0.111497),
    ("resnet50", 240, 4, SLOW, "2-2", 0.1519926032, 2.9174, 1.1329, "1-1-1-1", 0.111497),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}-{row[2]}-{row[3] * 8e-9:.0f}G")
def test_the_programs_own_results(row):
    name, states, machines, bandwidth, config, seconds, speedup, over_data_parallel, free, free_seconds = row
    found = antichain_states(profile(name))
    assert len(found) == states
    plan = optimise_states(found, [MachineLevel(machines, bandwidth)])
    assert plan.period_s == pytest.approx(seconds, rel=1e-9, abs=1e-11)
    assert plan.configuration == config
    assert plan.one_machine_s / plan.period_s == pytest.approx(speedup, abs=5.1e-5)
    assert plan.data_parallel_s / plan.period_s == pytest.approx(over_data_parallel, abs=5.1e-5)
    plan = optimise_states(found, [MachineLevel(machines, bandwidth)], FREE)
    assert plan.period_s == pytest.approx(free_seconds, rel=1e-9, abs=1e-11)
    assert plan.configuration == free


# Model, machines, bandwidth, what the program answers, the least period of its own model.
LOST = [
    ("resnet18", 4, FAST, 0.0690231808, 0.065918),
    ("resnet18", 8, FAST, 0.0369117419, 0.0347394463),
    ("resnet18", 16, SLOW, 0.0244254971, 0.0243168499),
    ("resnet50", 8, FAST, 0.0641300796, 0.0630803006),
    ("gnmt", 16, FAST, 0.011081, 0.010687),
]


@pytest.mark.parametrize("row", LOST, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_program_loses_against_the_exact_answer_in_its_own_model(row):
    name, machines, bandwidth, program, exact = row
    model = profile(name)
    assert optimise(model, [MachineLevel(machines, bandwidth)]).period_s == pytest.approx(program, abs=1e-10)
    best = optimise_states(downset_states(model), [MachineLevel(machines, bandwidth)])
    assert best.period_s == pytest.approx(exact, abs=1e-10)
    assert priced(best, downset_states(model), MachineLevel(machines, bandwidth), Options()) == pytest.approx(
        exact, abs=1e-10
    )


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet18", "squeezenet1_0", "resnet50"])
@pytest.mark.parametrize("machines", [4, 8])
@pytest.mark.parametrize("bandwidth", [FAST, SLOW])
def test_the_exact_answer_is_never_above_the_programs(name, machines, bandwidth):
    model = profile(name)
    exact = optimise_states(downset_states(model), [MachineLevel(machines, bandwidth)])
    assert exact.period_s <= optimise(model, [MachineLevel(machines, bandwidth)]).period_s + 1e-15


@pytest.mark.parametrize(
    ("name", "counted_too_high", "worst"),
    [("resnet18", 30, 2.0), ("squeezenet1_0", 32, 1.125), ("resnet50", 64, 2.6), ("gnmt", 16, 3.0458984375)],
)
def test_bytes_that_the_program_counts_at_a_cut(name, counted_too_high, worst):
    # The reference counts one state more in each model: the whole model, whose output crosses no cut.
    model = profile(name)
    exact = downset_states(model)
    true = dict(zip(exact.layers, exact.output_bytes, strict=True))
    found = antichain_states(model)
    ratios = [
        bytes_ / true[one] for one, bytes_ in zip(found.layers, found.output_bytes, strict=True) if true[one]
    ]
    assert len(ratios) == len(found) - 1
    assert sum(ratio > 1 for ratio in ratios) == counted_too_high
    assert max(ratios) == pytest.approx(worst, abs=0.005)
    assert min(ratios) == 1


def test_the_program_misses_most_downsets_of_a_graph_with_three_sources():
    model = profile("gnmt")
    assert (len(antichain_states(model)), len(downset_states(model))) == (99, 561)


def test_plans_and_speedups_at_one_gigabyte_per_second():
    states = antichain_states(profile("vgg16"))
    four = optimise_states(states, [MachineLevel(4, 1e9)])
    assert [(s.first, s.stop, s.replicas) for s in four.stages] == [(0, 17, 3), (17, 40, 1)]
    assert four.period_s == pytest.approx(0.205521, abs=5e-7)
    assert four.one_machine_s / four.period_s == pytest.approx(3.272, abs=5e-4)
    assert four.one_machine_s / four.data_parallel_s == pytest.approx(1.153, abs=5e-4)
    eight = optimise_states(states, [MachineLevel(8, 1e9)])
    assert [(s.first, s.stop, s.replicas) for s in eight.stages] == [(0, 24, 7), (24, 40, 1)]
    assert eight.period_s == pytest.approx(0.103833, abs=5e-7)
    assert eight.one_machine_s / eight.data_parallel_s == pytest.approx(2.062, abs=5e-4)
    assert eight.one_machine_s == pytest.approx(0.672535, abs=1e-12)
    # Many straight pipelines have this period; which of them the program prints depends on its hash seed.
    straight = optimise_states(states, [MachineLevel(8, 1e9)], Options(straight=True))
    assert straight.period_s == pytest.approx(0.411042, abs=5e-7)
    assert straight.configuration == "1-1-1-1-1-1-1-1"


def test_two_levels():
    states = antichain_states(profile("vgg16"))
    plan = optimise_states(states, [MachineLevel(8, 100e9), MachineLevel(2, 3.125e9)])
    assert plan.period_s == pytest.approx(0.065010, abs=5e-7)
    assert plan.configuration == "2"
    assert [(s.first, s.stop, s.replicas) for s in plan.stages[0].inner] == [(0, 17, 6), (17, 40, 2)]
    assert plan.one_machine_s / plan.period_s == pytest.approx(10.35, abs=0.005)
    assert plan.one_machine_s / plan.data_parallel_s == pytest.approx(10.29, abs=0.005)


def test_a_graph_with_too_many_antichains_is_refused():
    with pytest.raises(TooManyDownsetsError, match="more than 300 antichains"):
        antichain_states(profile("nasnetamobile"), limit=300)


# --- the recurrence against exhaustive search, on profiles made up here ---


def made_up(seed, size=6, density=0.4):
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    layers = tuple(
        ProfiledLayer(
            f"layer{n}",
            "Made",
            chance.randrange(1, 50) * 1_000_000,
            chance.randrange(50) * 1_000_000,
            chance.randrange(1, 40) * 10**6,
            chance.randrange(40) * 10**6,
        )
        for n in range(size)
    )
    edges = tuple(pair for pair in itertools.combinations(range(size), 2) if chance.random() < density)
    return ProfiledModel(layers, edges)


def stage_period(states, level, before, last, replicas, options):
    """T_first and T_later, written down once more."""
    speed = level.bytes_per_second * replicas
    compute, weights = states.compute_s[last], states.weight_bytes[last]
    if before is not None:
        compute, weights = compute - states.compute_s[before], weights - states.weight_bytes[before]
    times = [(compute + 4 * (replicas - 1) * weights / speed) / replicas]
    if options.compression is not None and before is not None:
        times.append(2 * states.output_bytes[before] / speed / options.compression)
        if last != len(states) - 1:
            times.append(2 * states.output_bytes[last] / speed / options.compression)
    return max(times)


def priced(plan, states, level, options=FREE):
    return max(
        stage_period(
            states, level, stage.first - 1 if stage.first else None, stage.stop - 1, stage.replicas, options
        )
        for stage in plan.stages
    )


def exhaustive(states, level, options):
    def best(before, machines):
        found = []
        for last in range(len(states)):
            if before is not None and not states.before[before, last]:
                continue
            for replicas in range(1, machines + 1):
                mine = stage_period(states, level, before, last, replicas, options)
                if last == len(states) - 1:
                    found += [mine] if replicas == machines else []
                elif replicas < machines:
                    found.append(max(mine, best(last, machines - replicas)))
        return min(found, default=float("inf"))

    return best(None, level.machines)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("find", [antichain_states, downset_states])
def test_one_level_against_exhaustive_search(seed, find):
    states = find(made_up(seed))
    for machines, options in ((3, Options()), (3, FREE), (2, Options(compression=2.0))):
        level = MachineLevel(machines, 1e9)
        plan = optimise_states(states, [level], options)
        assert plan.period_s == pytest.approx(exhaustive(states, level, options), rel=1e-12)
        assert priced(plan, states, level, options) == pytest.approx(plan.period_s, rel=1e-12)
        assert sum(stage.replicas for stage in plan.stages) == machines


def two_levels(states, inside, between):
    """Both levels by exhaustive search on a chain: the period of the level below takes the place of compute."""
    end = len(states) - 1

    def total(sums, before, last):
        return sums[last] - (sums[before] if before is not None else 0)

    def cost(compute, level, below, start, before, last, replicas):
        """One stage of a pipeline that starts behind ``start``; only its first stage receives nothing."""
        speed = level.bytes_per_second * replicas
        reduce = 4 * (replicas - 1) * total(states.weight_bytes, before, last) / speed
        if before == start:
            return (compute(before, last) + reduce / below) / replicas
        sent = 2 * states.output_bytes[last] / speed if last != end else 0
        received = 2 * states.output_bytes[before] / speed
        return max((compute(before, last) + reduce) / replicas, received, sent)

    def best(compute, level, below, start, stop):
        def rest(before, machines):
            found = [cost(compute, level, below, start, before, stop, machines)]
            for last in range(0 if before is None else before + 1, stop):
                for replicas in range(1, machines):
                    mine = cost(compute, level, below, start, before, last, replicas)
                    found.append(max(mine, rest(last, machines - replicas)))
            return min(found)

        return rest(start, level.machines)

    def work(before, last):
        return total(states.compute_s, before, last)

    return best(lambda before, last: best(work, inside, 1, before, last), between, inside.machines, None, end)


@pytest.mark.parametrize("seed", range(6))
def test_two_levels_against_exhaustive_search(seed):
    chain = made_up(seed, size=4, density=0.0)
    states = downset_states(ProfiledModel(chain.layers, ((0, 1), (1, 2), (2, 3))))
    inside, between = MachineLevel(2, 2e9), MachineLevel(2, 1e9)
    plan = optimise_states(states, [inside, between])
    assert plan.period_s == pytest.approx(two_levels(states, inside, between), rel=1e-12)
    one = optimise_states(states, [inside])
    assert optimise_states(states, [inside, MachineLevel(1, 1e9)]).period_s == pytest.approx(
        one.period_s, rel=1e-12
    )


@pytest.mark.parametrize("seed", range(8))
def test_no_better_bandwidth_or_cheaper_transfer_hurts(seed):
    states = downset_states(made_up(seed))
    periods = [optimise_states(states, [MachineLevel(3, speed)]).period_s for speed in (1e8, 1e9, 1e10)]
    assert periods == sorted(periods, reverse=True)
    assert optimise_states(states, [MachineLevel(3, 1e9)], FREE).period_s <= periods[1]


def test_stages_of_a_branch_name_their_layers():
    layers = tuple(ProfiledLayer(name, "Made", 1_000_000, 0, 10**6, 0) for name in "abcd")
    states = downset_states(ProfiledModel(layers, ((0, 1), (0, 2), (1, 3), (2, 3))))
    assert len(states) == 5
    plan = optimise_states(states, [MachineLevel(4, 1e12)])
    assert sorted(name for stage in plan.stages for name in states.names(stage.first, stage.stop)) == list("abcd")
    assert states.names(0, len(states)) == ("a", "b", "c", "d")


def test_inputs_are_not_planned():
    layers = (
        ProfiledLayer("in", "Input0", 500_000_000, 0, 10**6, 0),
        ProfiledLayer("a", "Linear(1, 1)", 1_000_000, 0, 10**6, 0),
        ProfiledLayer("b", "__getitem__(0)", 1_000_000, 0, 10**6, 0),
    )
    plan = optimise(ProfiledModel(layers, ((0, 1), (1, 2))), [MachineLevel(1, 1e9)])
    assert plan.one_machine_s == 0.001
    assert plan.states == 1


def test_memory_limits_all_but_the_last_stage():
    layers = tuple(ProfiledLayer(name, "Made", 1_000_000, 0, 10**7, 0) for name in "abcd")
    model = ProfiledModel(layers, ((0, 1), (1, 2), (2, 3)))
    level = MachineLevel(4, 1e15)
    assert optimise(model, [level], FREE).configuration == "4"
    # A first stage of one machine keeps ceil((4 - 1) / 1) = 3 times 10 MB a layer.
    tight = Options(compression=None, straight=True, memory_bytes=30e6)
    assert optimise(model, [level], tight).configuration == "1-1-1-1"
    with pytest.raises(NothingFitsError):
        optimise(model, [level], Options(compression=None, straight=True, memory_bytes=29e6))


def test_nothing_to_plan_is_an_error():
    with pytest.raises(ValueError, match="no layer"):
        antichain_states(ProfiledModel((ProfiledLayer("in", "Input", 1, 1, 1, 1),), ()))
    with pytest.raises(ValueError, match="at least one level"):
        optimise(made_up(0), [])
    with pytest.raises(ValueError, match="bandwidth above 0"):
        MachineLevel(2, 0.0)
