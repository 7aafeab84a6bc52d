"""A certificate: labels that prove the bound, checked by a short program that knows no solver.

The labels are made from the tables of a dynamic programme, but what they prove rests on ``formulation`` alone:
plan, price and every label are recomputed. The strongest of all routes where it applies.
"""

from __future__ import annotations

from formulation.certificates.check import certifiable, verify
from formulation.certificates.labels import CertificateError
from formulation.outcome import Limits
from solvers.certifying.certify import certify
from solvers.crosscheck.claim import Answer, Claim, Verdict
from solvers.search.background import in_background


def ask(claim: Claim, limits: Limits) -> Answer:
    """Make and verify a certificate. What cannot be stopped is left to itself where time runs out."""
    plan, objective = claim.plan, claim.objective
    if plan is None or objective is None:
        return Answer(Verdict.NOT_APPLICABLE, "a certificate is about a plan, the claim is that there is none")
    reason = certifiable(claim.instance)
    if reason is not None:
        return Answer(Verdict.NOT_APPLICABLE, reason)

    def work() -> Answer:
        try:
            certificate = certify(claim.instance, plan, objective, limits.deadline, whole=True)
        except ValueError as error:
            return Answer(Verdict.NOT_APPLICABLE, str(error))
        try:
            verify(claim.instance, certificate)
        except CertificateError as error:
            return Answer(Verdict.DISAGREED, f"the certificate does not hold: {error}")
        if certificate.optimal:
            return Answer(Verdict.AGREED)
        return Answer(Verdict.INCONCLUSIVE, f"labels prove no more than {claim.words(certificate.bound)}")

    return in_background(work, limits.deadline.over) or Answer(Verdict.OUT_OF_TIME, "stopped before its end")
