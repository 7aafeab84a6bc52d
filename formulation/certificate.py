"""Certificates: a claim about an instance that a reader can check without believing any solver.

A certificate holds a plan with its objective, and for a bound ``B`` one number for each device group of the line,
its *label*: a stage on that group cannot stop behind layer ``label`` in any plan of less than ``B``.
:func:`verify` proves the labels by induction along the line, in one pass over the groups, with T = B - 1:

* a stage on devices ``first .. stop - 1`` starts at layer 0 if ``first`` is 0, else at a cut point that some group
  before it can stop at (at or below its label) and over whose link the boundary takes at most T;
* from each such start i, the stage that reaches one layer past the label takes more than T, whatever the forms
  of its layers; longer stages take no less, as every layer adds to computation and communication.

If every label lies before the end of the model, no plan takes at most T, so every plan takes at least B. If B is
also the plan's objective, the plan is optimal. That holds for the line, where the slowest stage or boundary counts
and links pay for boundaries; memory and other limits only remove plans, so the bound holds under them too.

No OR-Tools, no numpy, no table: every number comes from ``formulation.times`` and ``formulation.evaluate``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache

from formulation.evaluate import evaluate
from formulation.groups import Group, group_kind, line_group, line_places, link_between, possible_groups
from formulation.instance import Instance
from formulation.least import StagePrices
from formulation.options import BoundaryCharge, Combine, Goal, Placement
from formulation.plan import Plan
from formulation.times import activation_ns, gradient_ns
from formulation.units import Link


class CertificateError(ValueError):
    """A certificate does not prove what it claims; the message says where it fails."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A plan with its objective, a bound, and labels by (first device, first device after it) that prove it."""

    fingerprint: str
    plan: Plan
    objective: int
    bound: int
    labels: dict[tuple[int, int], int]

    @property
    def optimal(self) -> bool:
        """Tell whether the certificate claims that its plan is optimal."""
        return self.bound == self.objective


def fingerprint(instance: Instance) -> str:
    """Return a hash of every number of an instance: certificates of one instance prove nothing about another."""
    digest = hashlib.sha256()
    for field in fields(instance):
        if field.name not in ("layer_graph", "cluster_graph"):
            digest.update(f"{field.name}={getattr(instance, field.name)!r};".encode())
    return digest.hexdigest()


def certifiable(instance: Instance) -> str | None:
    """Return None if bounds of this instance can be certified by labels, else the reason why not."""
    cost = instance.cost
    if instance.goals[0] is not Goal.BOTTLENECK:
        return f"labels bound the bottleneck, the first goal is {instance.goals[0]}"
    if instance.constraints.placement is not Placement.LINE:
        return "labels follow the line of devices, placement is free"
    if cost.combine is not Combine.MAX:
        return "labels bound the slowest stage, combine is 'sum'"
    if cost.boundary_charge is not BoundaryCharge.LINK:
        return "labels need stages whose time is their own, boundary_charge is 'receiver'"
    return None


def verify(instance: Instance, certificate: Certificate) -> None:
    """Check plan, objective and bound of a certificate; raise CertificateError at the first thing that fails.

    Cost: groups x cut points lookups, and a few exact stage times for each group.
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


def verify_labels(instance: Instance, threshold_ns: int, labels: dict[tuple[int, int], int]) -> None:
    """Check by induction that no plan of the line takes at most ``threshold_ns``; else raise CertificateError."""
    total, prices = len(instance.layers), StagePrices(instance)
    crossable = cache(lambda link: _crossable(instance, link, threshold_ns))
    for place, group in zip(line_places(instance), possible_groups(instance), strict=True):
        label = labels.get(place)
        if label is None or not 0 <= label < total:
            raise CertificateError(f"devices {place}: label {label}, expected 0 to {total - 1}")
        kind = group_kind(instance, group)
        for start in _starts(instance, crossable, labels, place, group):
            stop = max(start, label) + 1
            if not prices.exceeds(kind, start, stop, threshold_ns):
                raise CertificateError(
                    f"devices {place}: a stage of layers {start} to {stop} takes at most {threshold_ns} ns,"
                    f" so label {label} is too small"
                )


def _crossable(instance: Instance, link: Link | None, threshold_ns: int) -> list[int]:
    """Return the cut points, ascending, whose boundary a link carries within the threshold."""
    return [
        cut
        for cut in range(1, len(instance.layers))
        if activation_ns(instance, cut, link) + gradient_ns(instance, cut, link) <= threshold_ns
    ]


def _starts(
    instance: Instance,
    crossable: Callable[[Link | None], list[int]],
    labels: dict[tuple[int, int], int],
    place: tuple[int, int],
    group: Group,
) -> list[int]:
    """Return the layers at which a stage on this place may start, given the labels of the places before it."""
    if place[0] == 0:
        return [0]
    furthest: dict[Link | None, int] = {}
    for before, label in labels.items():
        if before[1] == place[0]:
            link = link_between(instance, line_group(instance, before[0], before[1] - before[0]), group)
            furthest[link] = max(label, furthest.get(link, 0))
    return sorted({cut for link, label in furthest.items() for cut in crossable(link) if cut <= label})
