"""Certificates: a claim about an instance that a reader can check without believing any solver.

A certificate holds a plan with its objective, and for a bound ``B`` *labels*: for every way in which the last
stages of a plan can lie on devices, the layers at which they may start in a plan of less than ``B``.
:func:`verify` evaluates the plan and proves the labels by induction (``formulation.certificates.labels``). If no
label allows a whole plan, every plan takes at least ``B``; if ``B`` is also the plan's objective, the plan is
optimal. Stages start at places to cut alone. Other demands and limits on goals only remove plans, so the bound
holds under them too.

No OR-Tools, no numpy, no table: every number comes from ``formulation.costs.times``, ``formulation.costs.memory``
and ``formulation.evaluate``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

from formulation.certificates.labels import CertificateError, Labels, verify_labels
from formulation.certificates.states import suffixes
from formulation.evaluate import evaluate
from formulation.problem.instance import Instance
from formulation.problem.options import BoundaryCharge, Combine, Goal
from formulation.problem.plan import Plan

__all__ = ["Certificate", "CertificateError", "certifiable", "fingerprint", "verify", "verify_labels"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A plan with its objective, a bound, and the labels that prove it."""

    fingerprint: str
    plan: Plan
    objective: int
    bound: int
    labels: Labels

    @property
    def optimal(self) -> bool:
        """Tell whether the certificate claims that its plan is optimal."""
        return self.bound == self.objective


def fingerprint(instance: Instance) -> str:
    """Return a hash of every number of an instance: certificates of one instance prove nothing about another.

    Model and cluster enter by the numbers that are derived from them.
    """
    digest = hashlib.sha256()
    for field in fields(instance):
        if field.name not in ("model", "cluster"):
            digest.update(f"{field.name}={getattr(instance, field.name)!r};".encode())
    return digest.hexdigest()


def certifiable(instance: Instance) -> str | None:
    """Return None if bounds of this instance can be certified by labels, else the reason why not."""
    cost, training = instance.cost, instance.training
    if training.chunks > 1:
        return f"labels are about stages on devices of their own, training.chunks is {training.chunks}"
    if training.schedule.in_halves and training.micro_batches > 1 and instance.constraints.memory:
        kept = "what a stage keeps follows from the number of all stages, which no label knows"
        return f"under {training.schedule} {kept}; set constraints.memory: false, or another schedule"
    if instance.goals[0] is not Goal.BOTTLENECK:
        return f"labels bound the bottleneck, the first goal is {instance.goals[0]}; set objective: bottleneck"
    if cost.combine is not Combine.MAX:
        return "labels bound the slowest stage, combine is 'sum'"
    if cost.boundary_charge is not BoundaryCharge.LINK:
        return "labels need stages whose time is their own, boundary_charge is 'receiver'"
    try:
        suffixes(instance)
    except ValueError as error:
        return str(error)
    return None


def verify(instance: Instance, certificate: Certificate) -> None:
    """Check plan, objective and bound of a certificate; raise CertificateError at the first thing that fails.

    Cost: that of :func:`formulation.certificates.labels.verify_labels`.
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
    verify_labels(instance, certificate.bound - 1, certificate.labels)
