"""``pipecut verify``: check a certificate without any solver."""

from __future__ import annotations

import argparse
import time

from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError, reading
from pipecut.formulation.certificates.check import Certificate, verify
from pipecut.formulation.certificates.labels import CertificateError
from pipecut.formulation.costs.amounts import plural
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.plans.certificate_file import CertificateFileError, read_certificate_as_made


def run(arguments: argparse.Namespace) -> int:
    """Verify and say what is proved. Exit code 0: optimal, 3: a weaker bound holds, 4: it does not hold."""
    scenario = arguments.scenario
    with reading(scenario.path):
        instance = scenario.load()
    try:
        given, (instance, certificate) = instance, read_certificate_as_made(arguments.certificate, instance)
    except CertificateFileError as error:
        raise InputError(str(error)) from error
    began = time.perf_counter()
    try:
        verify(instance, certificate)
        refuted = None
    except CertificateError as error:
        refuted = str(error)
    seconds = time.perf_counter() - began
    optimal = refuted is None and certificate.optimal
    if arguments.json:
        content = {
            "scenario": scenario.name,
            "holds": refuted is None,
            "optimal": optimal,
            "reason": refuted,
            "objective": certificate.objective,
            "bound": certificate.bound,
            "labels": len(certificate.labels),
            "paths": certificate.paths_in_all,
            "seconds": seconds,
        }
        arguments.reply.put(content, [] if refuted is None else [f"the certificate does not hold: {refuted}"])
    elif refuted is not None:
        output.write(f"the certificate does not hold: {refuted}\n")
    else:
        claim = "the plan is optimal" if optimal else f"no plan takes less than {certificate.bound:,} ns"
        output.write(
            f"verified: the plan takes {certificate.objective:,} ns, and {claim}{_chosen(given, instance)}\n"
            f"{_checked(certificate)} checked in {seconds:.2f} s, without a solver\n"
        )
    if refuted is not None:
        return ExitCode.FALSE_CLAIM
    return ExitCode.DONE if optimal else ExitCode.NOT_PROVED


def _checked(certificate: Certificate) -> str:
    """Say what was gone through."""
    if certificate.labels:
        return output.count(len(certificate.labels), "label")
    paths = certificate.paths_in_all
    return (
        f"the suffixes of all plans, by {paths} {plural(paths, 'path')}," if paths else "the suffixes of all plans"
    )


def _chosen(given: Instance, about: Instance) -> str:
    """Say which of the choices that the scenario leaves open a certificate is about."""
    parts = ["this order of the layers"] if given.layers != about.layers else []
    if about.training.micro_batch_choices:
        number = about.training.micro_batches
        parts.append(f"{number} micro-{plural(number, 'batch')}")
    return f", of plans with {' and '.join(parts)}" if parts else ""
