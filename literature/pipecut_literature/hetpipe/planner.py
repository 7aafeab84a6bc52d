"""HetPipe (Park et al., USENIX ATC 2020): pipelines over unlike devices, one device a stage.

A *virtual worker* is a set of devices that run the model as a pipeline, one stage a device, in the order and with
the cuts that are best by HetPipe's own model (:mod:`pipecut_literature.hetpipe.partition`); virtual workers train
in parallel and average their weights. Which devices make a virtual worker is its *allocation*:

========  ==============================================================================================
whole     one virtual worker on all devices: model parallelism alone, the reading for one pipeline
np        node partition: one virtual worker a server
ed        equal distribution: every virtual worker has one device of each server
hd        hybrid distribution: two virtual workers on halves of two servers, the first of the line with the
          last, the second with the last but one (servers stand from the fastest to the slowest)
========  ==============================================================================================

A plan of pipecut has one pipeline. Under ``ed`` all virtual workers have the same partition and stage q of all
runs on one server, so that pipeline of servers, with the batch split inside each (form 0), is a plan, and weights
are summed inside a server (HetPipe's ED-local). Virtual workers of ``np`` and ``hd`` have partitions of their own,
which no plan can say; :func:`virtual_workers` and ``partition`` price them one by one.

As many minibatches are in flight as there are stages if memory allows, else the most that fit (N_m = Max_m). Where
the order of the line is as good as the best, it is taken.
"""

from __future__ import annotations

import enum
from typing import assert_never

from pipecut.formulation.costs.amounts import exact_duration
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.limits import Deadline
from pipecut.formulation.outcome import Limits, Outcome, Proof, begin
from pipecut.formulation.problem.groups import Group, line
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan, Stage
from pipecut.solvers.reference.algorithm_1 import best_forms
from pipecut.solvers.search.stoppable import stoppable
from pipecut.solvers.search.support import blind_to
from pipecut_literature.common.one_stage import prefer
from pipecut_literature.common.priced import priced, with_layers
from pipecut_literature.hetpipe.partition import Partition, best_partition, partition

NAME = "hetpipe"

accepts = blind_to("line", "memory", "devices")
"""What the planner makes of an instance (``solvers.search.support``)."""


class Allocation(enum.StrEnum):
    """Which devices make a virtual worker."""

    WHOLE = "whole"
    NODE_PARTITION = "np"
    EQUAL_DISTRIBUTION = "ed"
    HYBRID_DISTRIBUTION = "hd"


def virtual_workers(instance: Instance, allocation: Allocation) -> tuple[tuple[int, ...], ...]:
    """Return the virtual workers of an allocation, each as the server indices of its devices.

    Raises ValueError where servers are not as many, or do not have as many devices, as the allocation asks for.
    """
    servers = range(len(instance.servers))
    each = {server.devices for server in instance.servers}
    if allocation is Allocation.WHOLE:
        return (line(instance),)
    if allocation is Allocation.NODE_PARTITION:
        return tuple((server,) * instance.servers[server].devices for server in servers)
    if len(each) > 1:
        raise ValueError(f"allocation {allocation}: servers have {sorted(each)} devices, expected equal numbers")
    (devices,) = each
    if allocation is Allocation.EQUAL_DISTRIBUTION:
        return (tuple(servers),) * devices
    if allocation is Allocation.HYBRID_DISTRIBUTION:
        if len(servers) % 2 or devices % 2:
            raise ValueError(
                f"allocation hd: {len(servers)} servers of {devices} devices, expected even numbers of both"
            )
        pairs = ((one, len(servers) - 1 - one) for one in range(len(servers) // 2))
        halves = tuple((one,) * (devices // 2) + (other,) * (devices // 2) for one, other in pairs)
        return tuple(half for half in halves for _ in range(2))
    assert_never(allocation)


def global_staleness(in_flight: int, clock_distance: int) -> int:
    """Return s_global of wave synchronous parallelism: how many minibatches a weight may be behind at most.

    ``in_flight`` is N_m, one wave; s_local = N_m - 1. A virtual worker may be ``clock_distance`` (D) waves ahead:
    ``s_global = (D + 1) (s_local + 1) + s_local - 1``. Raises ValueError for N_m below 1 or D below 0.
    """
    if in_flight < 1 or clock_distance < 0:
        raise ValueError(f"N_m {in_flight}, D {clock_distance}: expected at least 1 and 0")
    return (clock_distance + 1) * in_flight + in_flight - 2


@stoppable(NAME)
def solve(instance: Instance, limits: Limits | None = None, allocation: Allocation = Allocation.WHOLE) -> Outcome:
    """Return HetPipe's plan with one device a stage (``ed``: one server), priced by the evaluator.

    Proof FEASIBLE; UNKNOWN without a plan if no partition fits into memory or the search was stopped. More devices
    than layers: the first ones of each server in turn stay. Raises ValueError for an allocation with several
    different virtual workers, and as :func:`pipecut_literature.hetpipe.partition.best_partition` does.
    """
    deadline = begin(limits).deadline
    workers = virtual_workers(instance, allocation)
    if len(set(workers)) > 1:
        raise ValueError(
            f"allocation {allocation} has {len(set(workers))} different virtual workers, a plan has one pipeline;"
            " expected allocation whole or ed"
        )

    counts = _counts(instance, workers[0])
    in_flight, found = _most_in_flight(instance, counts, len(workers), deadline)
    if found is None:
        notes = ("HetPipe finds no partition that fits into memory with one minibatch in flight",)
        return Outcome(NAME, Proof.UNKNOWN, notes=notes)
    plan = _plan(instance, _on_line(instance, found, in_flight, len(workers)), len(workers))
    notes = (
        f"virtual workers: {len(workers)} of {sum(counts)} devices; minibatches in flight: {in_flight}",
        f"HetPipe expects {exact_duration(found.bottleneck_ns)} a micro-batch for the slowest device",
    )
    return priced(NAME, instance, plan, accepts, notes)


def _counts(instance: Instance, worker: tuple[int, ...]) -> list[int]:
    """Return how many devices of each server are used: all, or as many as layers, taken from servers in turn."""
    left = [worker.count(server) for server in range(len(instance.servers))]
    taken = [0] * len(left)
    while sum(taken) < min(len(worker), len(instance.layers)):
        for server, count in enumerate(left):
            if taken[server] < count and sum(taken) < len(instance.layers):
                taken[server] += 1
    return taken


def _most_in_flight(
    instance: Instance, counts: list[int], workers: int, deadline: Deadline
) -> tuple[int, Partition | None]:
    """Return the largest N_m up to the number of stages that fits into memory, and its best partition.

    Whatever fits with more minibatches in flight fits with fewer, so the largest is found by halving.
    """
    most = sum(counts)
    found = best_partition(instance, counts, most, workers, deadline)
    if found is not None:
        return most, found
    fits, fails, best = 0, most, None
    while fails - fits > 1:
        middle = (fits + fails) // 2
        found = best_partition(instance, counts, middle, workers, deadline)
        if found is None:
            fails = middle
        else:
            fits, best = middle, found
    return fits, best


def _on_line(instance: Instance, found: Partition, in_flight: int, workers: int) -> Partition:
    """Return a partition in the order of the line if it is as good: of equal orders it needs no free placement."""
    same = partition(instance, sorted(found.order), in_flight, workers)
    return same if same is not None and same.bottleneck_ns == found.bottleneck_ns else found


def _plan(instance: Instance, found: Partition, workers: int) -> Plan:
    """Return the plan of a partition: stages on one device each, or with ``workers`` devices of a server each."""
    first = [line(instance).index(server) for server in range(len(instance.servers))]
    groups = tuple(Group.on_line(instance, first[server], workers) for server in found.order)
    rows = tuple(prefer(layer, (0,)) for layer in instance.layers)
    tables = build_tables(with_layers(instance, rows), groups)
    kinds = (tables.kind_of[at] for at in range(len(groups)))
    forms = (best_forms(tables, kind, span) for kind, span in zip(kinds, found.spans, strict=True))
    return Plan(tuple(Stage(*row) for row in zip(found.spans, groups, forms, strict=True)))
