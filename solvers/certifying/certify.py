"""Make certificates: labels that prove a bound (``formulation.certificates.check``).

The labels come from the tables of the dynamic programme over device states (``dynamic.states``); what they prove
does not depend on them, as the checker reads no table. Where it is enough, a label takes every layer behind the
first possible one for possible; where it is not, the labels list exactly the layers that are reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from formulation.certificates.check import Certificate, certifiable, fingerprint
from formulation.certificates.labels import Labels, Runs
from formulation.costs.tables import all_tables
from formulation.limits.deadline import NEVER, Deadline, StoppedError
from formulation.outcome import Limits
from formulation.problem.constraints import Constraints
from formulation.problem.cuts import CutSpace
from formulation.problem.instance import FORBIDDEN, Instance
from formulation.problem.plan import Plan
from formulation.suffixes.slots import slots_matter
from solvers.certifying.executed import certify_executed
from solvers.dynamic.states.reach import StateReach, reach_at
from solvers.dynamic.states.solver import StateSearch, sizes_are_narrowed
from solvers.dynamic.states.states import StateSpace, state_space
from solvers.dynamic.tables.atom_tables import atom_tables
from solvers.dynamic.tables.stage_table import StageTable
from solvers.search.incumbent import Incumbent


def certify(
    instance: Instance, plan: Plan, objective: int, deadline: Deadline = NEVER, *, whole: bool = False
) -> Certificate:
    """Return the certificate with the largest bound that time and memory alone give for a plan of this objective.

    That is the least time of any plan that is cut where it may be, whatever other demands and limits on goals
    there are: the objective itself where there is none of these and the plan is optimal. With ``whole`` a bound
    below it is of no use, and may be any. Raises ValueError, with
    the reason, where labels prove nothing about the instance, and as ``solvers.dynamic.states.states.state_space``
    does. Raises StoppedError after the deadline.
    Cost: one question of the dynamic programme over device states, some 40 where the plan is not optimal; for
    executed times as ``solvers.certifying.executed.certify_executed``.
    """
    if instance.goals[0].executed:
        return certify_executed(instance, plan, objective, deadline, whole=whole)
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
    if not isinstance(search.space, StateSpace):
        raise TypeError("labels are by state, and servers of this search are counts")
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
