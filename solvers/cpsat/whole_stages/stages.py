"""The accelerated model: whole stages from the tables of the dynamic programme, instead of layers and forms.

With the threshold T fixed, "a stage of kind c can hold layers i to j" is read from the least stage times over all
forms (``solvers.dynamic.tables.stage_times``), so the model needs no variable for the form of a layer; the forms
of the plan that is found are filled in afterwards. Two families replace ``forms`` and ``stage_time``:

(5') ``stage_table``: a slot of kind c that starts at layer i ends at ``E(slot, c, i)`` at the latest: exactly by
     time, by a lower limit of memory; exactly by both where a stage was found that no choice of forms fits into
     them at once;
(104) ``labels``: a stage in slot k on group g starts at a layer from which slots k .. 0 can end, by the states of
      devices (``solvers.dynamic.states``), and on the line at one that the devices before g can reach
      (``solvers.dynamic.line.threshold``); under free placement areas and alike servers
      (``solvers.cpsat.constraints.placing``) stand beside it, or alone where the states are too many.

With memory it is logic-based Benders decomposition: the model proposes stages, ``solvers.atoms`` decides each
exactly. The bound leans on dynamic programmes; the
layered model (``solvers.cpsat.model``) does not. A test shows that both agree. Only where links pay for boundaries
and the slowest stage counts, and no demand speaks of single layers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from formulation.costs.tables import Tables
from formulation.problem.options import BoundaryCharge, Combine, Goal, Placement
from solvers.cpsat.base.families import Family, Posted, post_cover, post_devices
from solvers.cpsat.base.variables import Variables
from solvers.cpsat.constraints.clocks import post_boundary_time
from solvers.cpsat.constraints.devices.placement import post_line
from solvers.cpsat.valid import redundant_families
from solvers.dynamic.line.threshold import LineReach
from solvers.dynamic.states.reach import reach_at
from solvers.dynamic.states.starts import StartsOfStages
from solvers.dynamic.states.states import StateSpace
from solvers.dynamic.tables.stage_limits import StageLimits
from solvers.dynamic.tables.stage_table import StageTable


def applies(tables: Tables) -> bool:
    """Tell whether a stage is its own affair: its time is, and only the slowest counts and is limited.

    Demands of the user are posted to the layered model only, so there must be none.
    """
    cost, constraints = tables.instance.cost, tables.instance.constraints
    return (
        tables.instance.goals[0] is Goal.BOTTLENECK
        and not tables.instance.demands.named()
        and not constraints.own
        and not constraints.at_most
        and cost.boundary_charge is BoundaryCharge.LINK
        and cost.combine is Combine.MAX
    )


def stage_families(table: StageTable, space: StateSpace | None) -> tuple[Family, ...]:
    """Return the families of the accelerated model; the exact rows of the table may grow between questions.

    ``space`` are the states of devices, None where they are too many.
    """
    tables = table.tables
    on_line = tables.instance.constraints.placement is Placement.LINE
    placing = () if on_line else redundant_families(tables)[1:]
    if on_line or space is not None:
        placing = (Family(104, "labels", _labels(table, space, on_line=on_line)), *placing)
    return (
        Family(1, "cover", post_cover),
        Family(2, "devices", post_devices),
        Family(3, "line", post_line),
        Family(5, "stage_table", _stage_table(table)),
        Family(6, "boundary_time", post_boundary_time),
        *placing,
    )


def _stage_table(table: StageTable) -> Callable[[Variables], Posted]:
    def post(v: Variables) -> Posted:
        rule = table.limits.slots(v.slots)
        for c in range(len(v.tables.kinds)):
            known = {slot: table.ends(slot, c, v.threshold_ns) for slot in set(rule)}
            for k in range(v.slots):
                ends = known[rule[k]]
                widest = np.maximum.accumulate(ends)
                for i in range(v.layers):
                    if widest[i] < min(int(widest[i + 1]), v.layers):
                        yield from _end(v, k, c, i, int(widest[i]), exact=False)
                    if ends[i] < widest[i]:
                        yield from _end(v, k, c, i, int(ends[i]), exact=True)

    return post


def _end(v: Variables, slot: int, kind: int, start: int, end: int, *, exact: bool) -> Posted:
    """Forbid a slot of this kind that starts at (``exact``) or up to a layer to stop after ``end``."""
    clause = [~v.starts[slot][start], ~v.kind[slot][kind], v.starts_by(slot - 1, end)]
    if exact and start > 0:
        clause.append(v.starts[slot][start - 1])
    yield (slot, kind, start), v.model.add_bool_or(clause)


def _labels(table: StageTable, space: StateSpace | None, *, on_line: bool) -> Callable[[Variables], Posted]:
    def post(v: Variables) -> Posted:
        if on_line:
            yield from _line_labels(table.limits)(v)
        if space is not None:
            yield from _state_labels(table, space)(v)

    return post


def _line_labels(limits: StageLimits) -> Callable[[Variables], Posted]:
    def post(v: Variables) -> Posted:
        reach = LineReach(limits, v.threshold_ns, v.slots)
        before = reach.before()
        for k in range(v.slots):
            for g, (first, _) in enumerate(reach.places):
                yield from _starts_at(v, k, g, np.flatnonzero(before[first] & reach.after[k][first]))

    return post


def _state_labels(table: StageTable, space: StateSpace) -> Callable[[Variables], Posted]:
    def post(v: Variables) -> Posted:
        reach = reach_at(space, table, v.threshold_ns)
        if reach is None:
            return
        starts = StartsOfStages(reach)
        for k in range(v.slots):
            for g in range(len(v.tables.groups)):
                yield from _starts_at(v, k, g, starts.layers(k, g))

    return post


def _starts_at(v: Variables, k: int, g: int, layers: NDArray[np.intp]) -> Posted:
    """Let a stage in slot k on group g start neither before the first of these layers nor behind the last."""
    if len(layers) == 0:
        yield (k, g), v.model.add(v.runs[k][g] == 0)
        return
    if layers[-1] < v.layers - 1:
        yield (k, g), v.model.add_implication(v.runs[k][g], v.starts[k][int(layers[-1])])
    if layers[0] > 0:
        yield (k, g), v.model.add_implication(v.runs[k][g], ~v.starts[k][int(layers[0]) - 1])
