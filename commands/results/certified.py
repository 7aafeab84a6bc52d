"""``pipecut.certify``: a certificate for a plan, whose price the evaluator says."""

from __future__ import annotations

from formulation.certificates.check import Certificate
from formulation.evaluate import evaluate
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from solvers.certifying.certify import certify as certificate_of


def certify(instance: Instance, plan: Plan) -> Certificate:
    """Return a proof of how good a plan is, which ``pipecut.verify`` checks without a solver.

    Raises ValueError for a plan without a price, and where no certificate could prove anything of the instance.
    """
    found = evaluate(instance, plan)
    if found.objective is None:
        raise ValueError("; ".join(broken.message for broken in found.violations))
    return certificate_of(instance, plan, found.objective)
