"""Make certificates: labels that prove a bound (``formulation.certificates.check``).

The labels come from the tables of the dynamic programme over device states (``dynamic.states``); what they prove
does not depend on them, as the checker reads no table. Where it is enough, a label takes every layer behind the
first possible one for possible; where it is not, the labels list exactly the layers that are reached.

Paths for proofs about a step: those that the search weighs against all plans of so many stages.

What they prove does not depend on where they come from: whoever checks them counts what they go through
(``formulation.certificates.executed.paths``).

Make certificates of executed times: the largest bound that a proof of reasonable size gives.

A period is asked for in whole nanoseconds, so is a step. Where too many suffixes of plans would have to be gone
through up to the plan itself, the bound is one nearer to what weighed paths alone prove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.certificates.check import Certificate, certifiable, fingerprint, verify
from pipecut.formulation.certificates.executed.paths import PathPass, WeighedPaths
from pipecut.formulation.certificates.executed.period import keeps_to_period
from pipecut.formulation.certificates.executed.step import StepProof
from pipecut.formulation.certificates.labels import Labels, Runs
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.limits import NEVER, Deadline, StoppedError, TooLargeError
from pipecut.formulation.outcome import Limits
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.suffixes import slots_matter
from pipecut.solvers.dynamic.states.reach import StateReach, reach_at
from pipecut.solvers.dynamic.states.state_dp import StateSearch, sizes_are_narrowed
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.dynamic.tables.stage_table import StageTable
from pipecut.solvers.reference.line_dp import atom_tables
from pipecut.solvers.search.incumbent import Incumbent
from pipecut.solvers.step_time.asking import Search
from pipecut.solvers.step_time.bounds.game import Weights
from pipecut.solvers.step_time.bounds.pass_sums import least_passes
from pipecut.solvers.step_time.bounds.pass_tables import stage_parts
from pipecut.solvers.step_time.bounds.paths import FORWARD, PassPath
from pipecut.solvers.step_time.bounds.spans import spans_of
from pipecut.solvers.step_time.bounds.ways import ways_of

# Paths are weighed against the plans up to so many times a limit: what is best near it is not best for all.
NEARBY = (1, 4)
# So many means of paths are taken that were tried last: what one leaves out the next one does not see.
LAST = 2


def weighed_paths(
    instance: Instance, step_ns: int, deadline: Deadline = NEVER, *, few: bool = False
) -> tuple[WeighedPaths, ...]:
    """Return weighed paths for numbers of stages, of which plans of about such a step may be; or only a ``few``.

    Raises ValueError as ``solvers.step_time.step_dp.accepts`` does, StoppedError after the deadline. Cost: some
    tens of sums over all plans for each number of stages.
    """
    tables = all_tables(instance, deadline)
    parts, space = stage_parts(tables, CutSpace.of(instance)), state_space(tables)
    spans, least = spans_of(tables, parts.passes, parts.space), least_passes(parts.passes, parts.space)
    ways, found = ways_of(tables, space), list[WeighedPaths]()
    for times in NEARBY[:1] if few else NEARBY:
        most = times * step_ns
        limits = Limits(end_s=deadline.end_s, stopped=deadline.stopped)
        known = Incumbent("certify", instance, limits, most + 1)
        search = Search(known, parts, spans, ways, space, least)
        for stages, tried in search.tried(most):
            found += [_of(stages, weights) for weights in tried[-1 if few else -LAST :]]
    return tuple(sorted(found, key=lambda one: one.stages))


def _of(stages: int, weights: Weights) -> WeighedPaths:
    def passes(path: PassPath) -> tuple[PathPass, ...]:
        return tuple(PathPass(stage, "F" if row == FORWARD else "B", at) for row, stage, at in path.passes)

    return WeighedPaths(stages, tuple((weight, passes(path)) for weight, path in weights))


# The bound of paths alone is told to one part of the objective in so many where the plan itself is not proved.
NEARLY = 200
# Between it and the objective so many parts are tried, the largest bound first.
PARTS = 4


def certify_executed(instance: Instance, plan: Plan, objective: int, deadline: Deadline = NEVER) -> Certificate:
    """Return the certificate with about the largest bound that a proof gives for a plan of this objective.

    Raises ValueError, with the reason, where no proof is written for the instance, or none is small enough, and
    StoppedError after the deadline. Cost: about 10 proofs.
    """
    reason = certifiable(instance)
    if reason is not None:
        raise ValueError(reason)
    paths = () if instance.goals[0] is Goal.PERIOD else weighed_paths(instance, objective, deadline)
    *_, bound = (0, *_bounds(instance, objective, paths, deadline))
    return Certificate(fingerprint(instance), plan, objective, bound, {}, paths)


def confirmed_bounds(instance: Instance, plan: Plan, objective: int, deadline: Deadline) -> Iterator[int]:
    """Yield bounds that the checker of certificates confirms for a plan of this objective, each one larger.

    Raises CertificateError where a certificate does not hold, and else as :func:`certify`.
    """
    if instance.goals[0].executed:
        few = () if instance.goals[0] is Goal.PERIOD else weighed_paths(instance, objective, deadline, few=True)
        yield from _bounds(instance, objective, few, deadline)
        return
    certificate = certify(instance, plan, objective, deadline)
    verify(instance, certificate)
    yield certificate.bound


def _bounds(
    instance: Instance, objective: int, paths: tuple[WeighedPaths, ...], deadline: Deadline
) -> Iterator[int]:
    """Yield bounds of an executed time, each larger than those before, as the checker comes to them."""
    if instance.goals[0] is Goal.PERIOD:
        keeps = quick = partial(keeps_to_period, instance, deadline=deadline)
    else:
        proof = StepProof(instance, paths, deadline)
        keeps, quick = proof.keeps, proof.may_keep
    low, high = 0, objective
    while high - low > max(1, objective // NEARLY):
        middle = (low + high) // 2
        if _ruled_out(quick, middle - 1):
            low = middle
            yield low
        else:
            high = middle
    for part in range(PARTS, 0, -1):
        middle = low + (objective - low) * part // PARTS
        if middle > low and _ruled_out(keeps, middle - 1):
            yield middle
            return


def _ruled_out(keeps: Callable[[int], bool], most_ns: int) -> bool:
    """Tell whether nothing keeps to a limit, by a proof that is small enough."""
    try:
        return not keeps(most_ns)
    except TooLargeError:
        return False


def certify(instance: Instance, plan: Plan, objective: int, deadline: Deadline = NEVER) -> Certificate:
    """Return the certificate with the largest bound that time and memory alone give for a plan of this objective.

    That is the least time of any plan that is cut where it may be, whatever other demands and limits on goals
    there are: the objective itself where there is none of these and the plan is optimal. Raises ValueError, with
    the reason, where labels prove nothing about the instance, and as ``solvers.dynamic.states.states.state_space``
    does. Raises StoppedError after the deadline.
    Cost: one question of the dynamic programme over device states, some 40 where the plan is not optimal; for
    executed times as ``solvers.certifying.certify_executed``.
    """
    if instance.goals[0].executed:
        return certify_executed(instance, plan, objective, deadline)
    search = search_of(instance, deadline)
    bound = objective
    if search.ask(objective - 1) is not False:
        search.run()
        bound = search.known.upper
    return Certificate(fingerprint(instance), plan, objective, bound, labels_below(search, bound - 1))


def search_of(instance: Instance, deadline: Deadline = NEVER) -> StateSearch:
    """Return a search that sees times and memory only. Raises ValueError as :func:`certify`."""
    reason = certifiable(instance)
    if reason is not None:
        raise ValueError(reason)
    sizes = instance.constraints.devices_per_stage if sizes_are_narrowed(instance) else ()
    seen = Constraints(one for one in instance.constraints.values if one.asked)
    rest = replace(seen, devices_per_stage=sizes)
    tables = all_tables(replace(instance, constraints=rest), deadline)
    limits = Limits(end_s=deadline.end_s, stopped=deadline.stopped)
    known = Incumbent("certify", tables.instance, limits, FORBIDDEN)
    return StateSearch(state_space(tables), StageTable(atom_tables(tables, CutSpace.of(instance))), known)


def labels_below(search: StateSearch, threshold_ns: int, *, closed: bool = True) -> Labels:
    """Return the labels for a threshold that the search has answered with no."""
    reach = reach_at(search.space, search.table, threshold_ns, thorough=True, closed=closed)
    if reach is None:
        raise StoppedError
    if closed and reach.depth is not None:
        return labels_below(search, threshold_ns, closed=False)
    slots = range(len(reach.reached))
    places = search.table.atoms.space.places
    if slots_matter(search.tables.instance):
        return {
            key: runs for slot in slots for key, runs in _labels(reach, slot, reach.bits(slot), places).items()
        }
    return _labels(reach, 0, np.logical_or.reduce([reach.bits(slot) for slot in slots]), places)


def _labels(reach: StateReach, slot: int, bits: NDArray[np.bool_], places: Sequence[int]) -> Labels:
    nodes = np.flatnonzero(bits.any(axis=1))
    return {(slot, *reach.space.key(int(node))): _runs(bits[node], places) for node in nodes}


def _runs(row: NDArray[np.bool_], places: Sequence[int]) -> Runs:
    """Return what a row says of places as runs of layers; the checker does not look between places."""
    change = np.flatnonzero(np.diff(row, prepend=False, append=False)).tolist()
    return tuple((places[first], places[stop - 1]) for first, stop in zip(change[::2], change[1::2], strict=True))
