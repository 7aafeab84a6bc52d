"""Certificates of executed times: they prove what pricing every plan finds, and forged ones prove nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.certificates.check import Certificate, certifiable, verify
from pipecut.formulation.certificates.executed import best_passes, step
from pipecut.formulation.certificates.executed.paths import WeighedPaths, busy_paths
from pipecut.formulation.certificates.labels import CertificateError
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Goal, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Samples, StageTime, Synchronisation
from pipecut.ingest.plans.certificate_file import CertificateFileError, read_certificate, write_certificate
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import exhaustive
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.certifying import certify, confirmed_bounds
from tests.formulation.certificates.test_executed import by_links
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_period import judged_by_period
from tests.solvers.step_time.test_step_dp import judged_by_step, with_much_to_synchronise

SCENARIOS = Path(__file__).parents[3] / "scenarios"
QUIET = [HealthCheck.filter_too_much, HealthCheck.too_slow]
STEP = ("training.schedule=one_f_one_b", "training.micro_batches=4", "objective=step_time")


def best_of(instance: Instance) -> tuple[Instance, Certificate]:
    """Return an instance with the certificate of its best plan, as pricing every plan finds it."""
    assume(few_plans(instance) and certifiable(instance) is None)
    truth = exhaustive.solve(instance)
    assume(truth.proof is Proof.OPTIMAL)
    assert truth.plan is not None and truth.objective is not None
    return instance, certify(instance, truth.plan, truth.objective)


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(st.one_of(judged_by_step().map(by_links), with_much_to_synchronise()))
def test_the_best_step_is_certified_and_nothing_above_it(instance: Instance):
    instance, found = best_of(instance)
    assert found.optimal
    verify(instance, found)
    worse = replace(found, objective=found.objective + 1, bound=found.bound + 1)
    with pytest.raises(CertificateError, match="the plan takes"):
        verify(instance, worse)


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=QUIET)
@given(judged_by_period())
def test_the_best_period_is_certified(instance: Instance):
    instance, found = best_of(instance)
    charged = instance.cost.synchronisation is Synchronisation.CHARGED
    assert found.optimal or (charged and instance.training.micro_batches > 1)
    verify(instance, found)


def vgg() -> Instance:
    return load_scenario(SCENARIOS / "pipepar" / "vgg13.yaml", STEP).load()


@pytest.fixture(scope="module")
def made() -> tuple[Instance, Certificate]:
    instance = vgg()
    found = find_any("step_dp").load()(instance, Limits())
    assert found.plan is not None and found.objective is not None
    return instance, certify(instance, found.plan, found.objective)


@pytest.mark.slow
def test_a_shipped_model_has_one_with_paths(made: tuple[Instance, Certificate], tmp_path: Path):
    instance, found = made
    assert found.optimal and found.paths and not found.labels
    write_certificate(tmp_path / "proof.json", instance, found)
    assert read_certificate(tmp_path / "proof.json", instance) == found
    verify(instance, found)


@pytest.mark.slow
def test_a_bound_above_the_best_plan_does_not_hold(made: tuple[Instance, Certificate]):
    """The best plan by the slowest stage takes longer, and says that nothing is faster than it."""
    instance, found = made
    slower = find_any("state_dp").load()(replace(instance, goals=(Goal.BOTTLENECK,)), Limits()).plan
    assert slower is not None
    priced = evaluate(instance, slower)
    assert priced.objective is not None and priced.objective > found.objective
    forged = replace(found, plan=slower, objective=priced.objective, bound=priced.objective)
    with pytest.raises(CertificateError, match="a plan may take"):
        verify(instance, forged)


@pytest.mark.slow
def test_paths_decide_nothing_but_the_work(made: tuple[Instance, Certificate]):
    instance, found = made
    verify(instance, replace(found, paths=()))
    verify(instance, replace(found, paths=tuple(busy_paths(instance.training, one) for one in (1, 2, 3))))


@pytest.mark.slow
def test_what_is_no_path_is_refused(made: tuple[Instance, Certificate]):
    instance, found = made
    (weight, path), *others = found.paths[1].paths
    broken = WeighedPaths(found.paths[1].stages, ((weight, path[:1] + path[2:]), *others))
    with pytest.raises(CertificateError, match="does not wait"):
        verify(instance, replace(found, paths=(broken,)))
    heavy = WeighedPaths(found.paths[1].stages, ((1 << 40, path), *others))
    with pytest.raises(CertificateError, match="too large"):
        verify(instance, replace(found, paths=(heavy,)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"weight": ', '"weight": -', "expected 1 or more"),
        ('"F"', '"G"', "'F' or 'B'"),
        ('"paths": [', '"paths": [7, ', "expected a section"),
        ('"version": 3', '"version": 4', "expected 3 or less"),
    ],
)
def test_a_spoilt_file_says_where(
    made: tuple[Instance, Certificate], tmp_path: Path, old: str, new: str, words: str
):
    instance, found = made
    file = tmp_path / "proof.json"
    write_certificate(file, instance, found)
    file.write_text(file.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(CertificateFileError, match=words):
        read_certificate(file, instance)


@pytest.mark.slow
def test_where_there_is_too_much_to_go_through_the_bound_is_lower(
    made: tuple[Instance, Certificate], monkeypatch: pytest.MonkeyPatch
):
    instance, found = made
    monkeypatch.setattr(step, "MOST_SUFFIXES", 3_000)
    with pytest.raises(CertificateError, match="too many suffixes"):
        verify(instance, found)
    less = certify(instance, found.plan, found.objective)
    assert 0 < less.bound < found.bound
    verify(instance, less)
    few = list(confirmed_bounds(instance, found.plan, found.objective, NEVER))
    assert few == sorted(set(few)) and 0 < few[-1] < found.bound
    monkeypatch.setattr(best_passes, "MOST_ROWS", 1)
    with pytest.raises(CertificateError, match="trade their passes"):
        verify(instance, found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"warm_up": "choose"}, "warm_up is 'choose'"),
        ({"global_batch": 256, "micro_batches": 128}, "up to 64 micro-batches, not 128"),
    ],
)
def test_trainings_that_no_proof_is_written_for(changes: dict[str, object], words: str):
    instance = vgg()
    reason = certifiable(replace(instance, training=replace(instance.training, **changes)))
    assert reason is not None and words in reason


def test_costs_and_goals_that_no_proof_is_written_for():
    instance = vgg()
    overlapped = replace(
        instance, cost=replace(instance.cost, stage_time=StageTime.OVERLAP, samples=Samples.FRACTIONS)
    )
    assert "stage_time is 'overlap'" in (certifiable(overlapped) or "")
    received = replace(instance, cost=replace(instance.cost, boundary_charge=BoundaryCharge.RECEIVER))
    assert "boundary_charge is 'receiver'" in (certifiable(received) or "")
    single = replace(instance.constraints, recompute=Recompute.BLOCKS, memory=True)
    assert "recompute is 'blocks'" in (certifiable(replace(instance, constraints=single)) or "")
    assert "the first goal is memory" in (certifiable(replace(instance, goals=(Goal.MEMORY,))) or "")
