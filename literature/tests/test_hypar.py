from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings

from literature.tests.accpar.alexnet import alexnet, typed
from pipecut.formulation.outcome import Proof, checked
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import ceil_fraction
from pipecut.solvers.reference import line_dp
from pipecut_literature.accpar.code import HYPAR, MatrixLayer, between, optimise
from pipecut_literature.accpar.published import ALEXNET
from pipecut_literature.common.one_stage import sum_of_costs, tables_of
from pipecut_literature.hypar import planner as hypar
from tests.examples import chain, instance_of, matrix, mesh, vgg16
from tests.generators import instances
from tests.laws import so_many

SLOW_DRAWS = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))


def test_level_by_level_it_is_the_authors_program():
    """The types that the AccPar program prints for HyPar on AlexNet, 7 levels, and the elements that it moves."""
    instance = alexnet(128)
    types, total = hypar.by_level(instance, tables_of(instance, typed(instance, HYPAR)))
    program = optimise(ALEXNET, types=HYPAR)
    assert types == program.types
    assert total == sum(2**level * 2 * moved for level, moved in enumerate(program.elements))


def bytes_of(sizes, weights, forms, levels):
    """All pairs' bytes of a chain with one form a layer, written down once more: forms 0 and 1 only."""
    total = Fraction(0)
    for level in range(levels):
        left = Fraction(1, 2**level)
        for at, form in enumerate(forms):
            # Form 0 sums the weights, whole at every level; form 1 the output, whole at every level.
            total += 2**level * (weights[at] if form == 0 else sizes[at + 1])
            if at:
                # The input of a layer of either form is halved at every level.
                total += 2**level * between(forms[at - 1], form, sizes[at] * left)
    return total


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_one_type_a_layer_against_every_choice(seed, devices):
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    # Multiples of 32 split evenly at every level, so nothing is rounded.
    sizes = [32 * chance.randrange(1, 60) for _ in range(6)]
    weights = [32 * chance.randrange(1, 60) for _ in range(5)]
    layers = [matrix(f"m{at}", 1, weights[at], taken=sizes[at], made=sizes[at + 1]) for at in range(5)]
    instance = instance_of(chain(layers, sizes[1:5]), mesh(devices))
    outcome = checked(instance, hypar.solve(instance))
    levels = hypar.levels_of(instance)
    least = min(bytes_of(sizes, weights, forms, levels) for forms in itertools.product((0, 1), repeat=5))
    assert outcome.plan is not None
    (stage,) = outcome.plan.stages
    assert bytes_of(sizes, weights, stage.forms, levels) == least
    assert f"({int(least):,} bytes) sent in a step with one type" in outcome.notes[0]
    assert sum_of_costs(instance, stage.forms, *hypar.uniform_costs(instance)) == least


def test_it_knows_neither_form_2_nor_bandwidth():
    instance = instance_of(vgg16(), mesh(2, 2), training=Training(global_batch=64))
    outcome = checked(instance, hypar.solve(instance))
    assert outcome.plan is not None
    forms = [
        form
        for form, layer in zip(outcome.plan.stages[0].forms, instance.layers, strict=True)
        if layer.split is Split.MATRIX
    ]
    assert forms == [0] * 13 + [1] * 3


def test_levels_are_those_of_the_next_power_of_two():
    work = chain([matrix("one", 1, 4, taken=4, made=4)], [])
    assert [hypar.levels_of(instance_of(work, mesh(n))) for n in (1, 2, 3, 4, 5, 8, 9)] == [0, 1, 2, 2, 3, 3, 4]


def test_a_layer_that_may_take_neither_type_takes_what_it_may():
    work = chain([matrix("one", 1, 4, taken=4, made=4, allowed=(2,))], [])
    outcome = checked(instance_of(work, mesh(2)), hypar.solve(instance_of(work, mesh(2))))
    assert outcome.plan is not None
    assert outcome.plan.stages[0].forms == (2,)


@SLOW_DRAWS
@given(instances())
def test_its_plan_keeps_the_rules_and_is_never_better_than_the_optimum(instance):
    outcome = checked(instance, hypar.solve(instance))
    assert outcome.proof is Proof.FEASIBLE
    best = line_dp.solve(instance)
    assert best.proof is Proof.OPTIMAL
    assert outcome.objective is not None and best.objective is not None
    assert outcome.objective >= best.objective


def test_program_layers_are_those_of_the_instance():
    instance = alexnet(2)
    first = ALEXNET[0]
    assert isinstance(first, MatrixLayer)
    assert instance.parameter_bytes[0] == 2 * first.inputs * first.outputs * first.kernel
    assert instance.input_bytes[0] == ceil_fraction(Fraction(2 * 512 * first.inputs * first.inputs_map))
