"""Certificates: a claim about an instance that a reader can check without believing any solver.

A certificate holds a plan with its objective, and for a bound ``B`` *labels*: for every way in which the last
stages of a plan can lie on devices, the layers at which they may start in a plan of less than ``B``.
:func:`verify` evaluates the plan and proves the labels by induction (``formulation.certificates.labels``). If no
label allows a whole plan, every plan takes at least ``B``; if ``B`` is also the plan's objective, the plan is
optimal. Stages start at places to cut alone. Other demands and limits on goals only remove plans, so the bound
holds under them too.

Bounds of executed times need no labels: the last stages of all plans are gone through by what stages before them
see (``formulation.certificates.executed``). For a step the certificate brings *paths* of passes with weights,
which decide how much there is to go through.

No OR-Tools, no table of a solver: every number comes from ``formulation.costs`` and ``formulation.evaluate``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

from pipecut.formulation.certificates.executed.paths import PathError, WeighedPaths
from pipecut.formulation.certificates.executed.period import keeps_to_period
from pipecut.formulation.certificates.executed.step import keeps_to_step
from pipecut.formulation.certificates.labels import CertificateError, Labels, verify_labels
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.constraints import Goal, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.suffixes import suffixes

CERTIFIED = (Goal.BOTTLENECK, Goal.STEP_TIME, Goal.PERIOD)
STEPS = (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.NAIVE)
MOST_MICRO_BATCHES = 64
"""What is known of a suffix are as many numbers as the square of these."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A plan with its objective, a bound, and the labels or paths that prove it."""

    fingerprint: str
    plan: Plan
    objective: int
    bound: int
    labels: Labels
    paths: tuple[WeighedPaths, ...] = ()

    @property
    def optimal(self) -> bool:
        """Tell whether the certificate claims that its plan is optimal."""
        return self.bound == self.objective

    @property
    def paths_in_all(self) -> int:
        """How many paths it brings."""
        return sum(len(one.paths) for one in self.paths)


def fingerprint(instance: Instance) -> str:
    """Return a hash of every number of an instance: certificates of one instance prove nothing about another.

    Model and cluster enter by the numbers that are derived from them.
    """
    digest = hashlib.sha256()
    for field in fields(instance):
        if field.name not in ("model", "cluster", "others", "priced"):
            digest.update(f"{field.name}={getattr(instance, field.name)!r};".encode())
    return digest.hexdigest()


def certifiable(instance: Instance) -> str | None:
    """Return None if bounds of this instance can be certified, else the reason why not."""
    cost, training = instance.cost, instance.training
    if training.chunks > 1:
        return f"certificates are about stages on devices of their own, training.chunks is {training.chunks}"
    again = instance.constraints.recompute
    if again is Recompute.EVERY_BLOCK or (again.by_blocks and instance.constraints.memory):
        return f"certificates know stages that compute all again or nothing, recompute is '{again}'; set 'allowed'"
    if training.schedule.in_halves and training.micro_batches > 1 and instance.constraints.memory:
        kept = "what a stage keeps follows from the number of all stages, which no label knows"
        return f"under {training.schedule} {kept}; set constraints.memory: false, or another schedule"
    if instance.goals[0] not in CERTIFIED:
        known = ", ".join(CERTIFIED)
        return f"certificates bound {known}, the first goal is {instance.goals[0]}; set objective: bottleneck"
    if cost.boundary_charge is not BoundaryCharge.LINK:
        return "certificates need stages whose time is their own, boundary_charge is 'receiver'"
    reason = _unseen_of_executed(instance) if instance.goals[0].executed else None
    if reason is None and not instance.goals[0].executed and cost.combine is not Combine.MAX:
        reason = "labels bound the slowest stage, combine is 'sum'"
    if reason is not None:
        return reason
    try:
        suffixes(instance)
    except ValueError as error:
        return str(error)
    return None


def _unseen_of_executed(instance: Instance) -> str | None:
    """Return what proofs about executed times do not see, if anything."""
    cost, training = instance.cost, instance.training
    if cost.stage_time is not StageTime.ADD:
        return "proofs about executed times add passes up layer by layer, stage_time is 'overlap'"
    if instance.goals[0] is Goal.PERIOD:
        return None
    if training.schedule not in STEPS:
        return f"proofs about a step know the schedules {', '.join(STEPS)}, the schedule is {training.schedule}"
    if training.chooses_warm_ups:
        return "proofs about a step take the warm-ups as given, training.warm_up is 'choose'"
    if training.micro_batches > MOST_MICRO_BATCHES:
        return (
            f"proofs about a step are for up to {MOST_MICRO_BATCHES} micro-batches, not {training.micro_batches}"
        )
    return None


def verify(instance: Instance, certificate: Certificate) -> None:
    """Check plan, objective and bound of a certificate; raise CertificateError at the first thing that fails.

    Cost: that of :func:`formulation.certificates.labels.verify_labels`, or for executed times of
    :func:`formulation.certificates.executed.step.keeps_to_step` or its neighbour for periods.
    """
    if certificate.fingerprint != fingerprint(instance):
        raise CertificateError("the certificate is about another instance: its fingerprint differs")
    found = evaluate(instance, certificate.plan)
    if not found.feasible:
        raise CertificateError("the plan breaks a rule: " + found.violations[0].message)
    if found.objective != certificate.objective:
        raise CertificateError(
            f"the plan takes {found.objective} ns, the certificate says {certificate.objective} ns"
        )
    if certificate.bound > certificate.objective:
        raise CertificateError(f"bound {certificate.bound} ns above objective {certificate.objective} ns")
    reason = certifiable(instance)
    if reason is not None:
        raise CertificateError(reason)
    if instance.goals[0].executed:
        _verify_executed(instance, certificate)
    else:
        verify_labels(instance, certificate.bound - 1, certificate.labels)


def _verify_executed(instance: Instance, certificate: Certificate) -> None:
    most_ns = certificate.bound - 1
    try:
        if instance.goals[0] is Goal.PERIOD:
            kept = keeps_to_period(instance, most_ns)
        else:
            kept = keeps_to_step(instance, most_ns, certificate.paths)
    except (PathError, TooLargeError) as error:
        raise CertificateError(str(error)) from error
    if kept:
        raise CertificateError(
            f"a plan may take {most_ns} ns, the certificate says {certificate.bound} ns or more"
        )
