"""What a published planner believes of its plan, beside what the evaluator finds: words for an outcome's notes.

The cluster as PipePar's algorithms see it: a number of equal devices, every two joined by the same link.

The paper's algorithms count devices (``m``), with one speed ``d`` and, at each level, one bandwidth ``b_i``.
A *flat* view is an instance in that image: one server that holds all devices. Where the cluster is not flat,
the view takes the slowest device class (the one with the largest total time of the model) for all devices, so
that what it believes errs on the safe side; which link it takes is up to the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipecut.formulation.costs.amounts import exact_duration, goal_amount
from pipecut.formulation.costs.tables import Tables, Times, build_tables, line_groups
from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.problem.cluster import Cluster, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.units import Link, slowest_of
from pipecut.solvers.reference.algorithm_1 import StageTimes, best_forms


def believes(who: str, believed_ns: int, instance: Instance, found: int | None) -> str:
    """Say what a planner expects, a time in ns, and the value of the first goal that the plan really has."""
    priced = "no price" if found is None else goal_amount(instance.goals[0], found)
    return f"{who} {exact_duration(believed_ns)}; the evaluator finds {priced}"


def levels_in_words(levels: int) -> str:
    """Say how many levels of the cluster a planner tells apart."""
    return "sees one flat row of devices" if levels == 1 else f"sees {levels} levels: servers, and devices in each"


@dataclass(frozen=True, slots=True)
class CountedStage:
    """A stage as the paper's algorithms give it: layers, a number of devices, forms; not which devices."""

    span: Span
    devices: int
    forms: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FlatView:
    """Stage and boundary times by number of devices. ``kinds[n]`` is the kind of n devices, from n = 1 on."""

    tables: Tables
    times: StageTimes
    kinds: tuple[int, ...]
    activation: Times
    """By cut point, N + 1 values in ns, over the one link of the view."""
    gradient: Times

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.kinds) - 1

    def stage(self, span: Span, devices: int) -> CountedStage:
        """Return a stage with its best forms in this view."""
        return CountedStage(span, devices, best_forms(self.tables, self.kinds[devices], span))


def flat_view(instance: Instance, devices: int, link: Link | None, deadline: Deadline = NEVER) -> FlatView:
    """Price the model on 1 to ``devices`` devices that share one link (None only for one device).

    Raises StoppedError after the deadline, and ValueError as :func:`refuse_without_forms` does.

    Cost: that of :func:`solvers.reference.algorithm_1.StageTimes.of` with as many kinds as devices.
    """
    flat = _flat_instance(instance, devices, link)
    groups = line_groups(flat)
    tables = build_tables(flat, tuple(groups[0, count] for count in range(1, devices + 1)), deadline)
    refuse_without_forms(tables)
    none = np.zeros(len(instance.layers) + 1, dtype=np.int64)
    return FlatView(
        tables=tables,
        times=StageTimes.of(tables),
        kinds=(-1, *tables.kind_of),
        activation=tables.activation[0] if tables.links else none,
        gradient=tables.gradient[0] if tables.links else none,
    )


def refuse_without_forms(tables: Tables) -> None:
    """Raise ValueError where a layer has no form on one of the groups: published planners try all of them.

    They know neither heads nor experts, which no number of devices divides but some.
    """
    for kind in tables.kinds:
        for layer in tables.instance.layers:
            if layer.split is not Split.FOLLOW and not forms_on(layer, kind):
                raise ValueError(
                    f"layer {layer.name} has none of its forms {layer.allowed_forms} on {kind.devices} devices,"
                    " and this planner tries every number: allow form 0 or 1 too"
                )


def slowest_link(instance: Instance) -> Link | None:
    """Return the link that bounds all links between two devices of the cluster; None for a single device."""
    return slowest_of(link for row in instance.links for link in row)


def lay_on_line(instance: Instance, stages: list[CountedStage]) -> Plan:
    """Give counted stages the next devices of the real cluster's line, in stage order."""
    laid: list[Stage] = []
    place = 0
    for stage in stages:
        laid.append(Stage(stage.span, Group.on_line(instance, place, stage.devices), stage.forms))
        place += stage.devices
    return Plan(tuple(laid))


def _flat_instance(instance: Instance, devices: int, link: Link | None) -> Instance:
    totals = [
        sum(forward) + sum(backward)
        for forward, backward in zip(instance.forward_ns, instance.backward_ns, strict=True)
    ]
    pace = totals.index(max(totals))
    server = Server("flat", instance.device_classes[pace], devices, link)
    # Constraints of single servers say nothing about the view; its device class has what a reserve leaves.
    constraints = Constraints(one for one in instance.constraints.values if not one.of_servers)
    flat = Cluster.of(cluster_graph("flat", [server], []))
    return replace(instance, cluster=flat, constraints=constraints)
