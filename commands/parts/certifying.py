"""``pipecut plan --certificate``: write a proof beside the plan, and say how much it proves."""

from __future__ import annotations

from pathlib import Path

from commands.parts.task import Task
from commands.terminal import output
from commands.terminal.failures import InputError
from formulation.certificates.check import Certificate, certifiable
from formulation.outcome import Outcome, Proof


def refuse_uncertifiable(task: Task, path: Path | None) -> None:
    """Raise InputError before a search whose bound no certificate could carry."""
    reason = certifiable(task.instance) if path is not None else None
    if reason is not None:
        raise InputError(f"{task.scenario.path}: no certificate for this scenario: {reason}")


def save_certificate(task: Task, outcome: Outcome, path: Path | None) -> InputError | None:
    """Write the certificate if one was asked for; return what went wrong, as the plan is shown all the same."""
    if path is None:
        return None
    if outcome.plan is None or outcome.objective is None or outcome.proof is Proof.UNKNOWN:
        output.remark(f"{path}: not written, as there is no plan that keeps every rule")
        return None
    from ingest.plans.certificate_file import write_certificate
    from solvers.certifying.certify import certify

    try:
        certificate = certify(task.instance, outcome.plan, outcome.objective)
    except ValueError as error:
        return InputError(f"{path}: not written: {error}")
    try:
        write_certificate(path, task.instance, certificate)
    except OSError as error:
        return InputError(f"{path}: not written: {error.strerror}")
    output.remark(f"{path}: {_proves(certificate)}; check it with pipecut verify")
    return None


def _proves(certificate: Certificate) -> str:
    if certificate.optimal:
        return "proves that the plan is optimal"
    return f"proves that no plan takes less than {certificate.bound} ns, not that the plan is optimal"
