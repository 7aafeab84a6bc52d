"""HetPipe: images per second of its allocations, from the partitions of its own cost model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.units import NS_PER_SECOND
from pipecut.ingest.errors import ModelError
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.scenario.shipped import SHIPPED
from pipecut.solvers.reference import algorithm_2 as pipepar
from pipecut_literature.common.priced import in_rows
from pipecut_literature.hetpipe import model as predicted
from pipecut_literature.hetpipe import published as paper
from pipecut_literature.hetpipe.partition import Prices
from pipecut_literature.hetpipe.planner import global_staleness
from pipecut_literature.hetpipe.published import PublishedRun
from pipecut_literature.studies.study import Study, StudyInputError, StudyInputs, StudyTable, words

TITLE = "HetPipe: allocations of unlike devices to virtual workers"
FOLDER = SHIPPED / "hetpipe"
DISTANCES = (0, 1, 4, 32)
LINE_RATE = Fraction(1)


@dataclass(frozen=True, slots=True)
class HetPipeCase:
    """A model on the paper's cluster, with the parts of peaks (applied) and of bandwidths that are reached."""

    model: str
    instance: Instance
    device: Fraction
    link: Fraction

    def rate(self, run: PublishedRun, link: Fraction | None = None, clock_distance: int = 0) -> float:
        """Return the images per second that a run is predicted to reach."""
        found = predicted.images_per_second(self.instance, run, link or self.link, clock_distance)
        if found is None:
            raise StudyInputError(f"{self.model}, {run.label}: no partition fits into memory")
        return found


Pairs = dict[tuple[str, str], tuple[int, int]]
"""By source and model: pairs of rates in the published order, and all pairs."""


def run(inputs: StudyInputs) -> Study:
    """Predict Fig. 4, Fig. 5 and Table 4 of the paper. Raises StudyInputError where a model cannot be traced."""
    del inputs  # nothing of the user's is read
    cases = [case_of(model) for model in paper.MODELS]
    pairs: Pairs = {}
    tables = (
        calibration_table(cases),
        single_table(cases, pairs),
        allocation_table(cases, pairs),
        growth_table(cases, pairs),
        pairs_table(pairs),
        staleness_table(cases[0]),
        pipedream_table(cases[1]),
    )
    figures: dict[str, float | int | str | None] = {
        f"{source}, {model}, pairs in order": f"{same} of {total}"
        for (source, model), (same, total) in pairs.items()
    }
    return Study(TITLE, words(__file__, "reading"), tables, figures)


def case_of(model: str) -> HetPipeCase:
    """Return a model on the cluster of its scenario, calibrated."""
    try:
        plain = load_scenario(FOLDER / paper.MODELS[model]).load()
    except ModelError as error:
        raise StudyInputError(str(error)) from error
    instance, device = predicted.calibrated(plain, model)
    return HetPipeCase(model, instance, device, predicted.link_efficiency(instance, *paper.HOROVOD[model][0]))


def same_order(published: Sequence[float], ours: Sequence[float]) -> tuple[int, int]:
    """Return how many pairs stand in the published order, and how many pairs have one."""
    pairs = [
        (one - other, mine - yours)
        for (one, mine), (other, yours) in itertools.combinations(zip(published, ours, strict=True), 2)
        if one != other
    ]
    return sum(one * other > 0 for one, other in pairs), len(pairs)


def calibration_table(cases: Sequence[HetPipeCase]) -> StudyTable:
    """Return the two efficiencies of every model and what they were read from."""
    rows: list[tuple[str, ...]] = []
    for case in cases:
        device = str(paper.ONE_V[case.model]), f"{float(case.device):.1%}"
        link = str(paper.HOROVOD[case.model][0][1]), f"{float(case.link):.1%}"
        whole = int(Prices(case.instance).memory_bytes(1)[0, -1]) / 2**30
        rows.append((case.model, *device, *link, f"{whole:.2f} GiB"))
    columns = ("model", "1 V", "of peak", "Horovod, 4 V", "of link", "whole on one device")
    return StudyTable("What is read from the paper", columns, tuple(rows), words(__file__, "calibration"))


def single_table(cases: Sequence[HetPipeCase], pairs: Pairs) -> StudyTable:
    """Return Fig. 4: one virtual worker with one minibatch in flight."""
    rows = []
    for case in cases:
        ours = []
        for devices, published in paper.FIGURE_4[case.model]:
            worker = predicted.priced_worker(case.instance, devices, 1)
            if worker is None:
                raise StudyInputError(f"{case.model}, {devices}: no partition fits into memory")
            ours.append(paper.BATCH * NS_PER_SECOND / worker.latency_ns)
            order = "".join(case.instance.servers[server].name for server in worker.partition.order)
            most = predicted.most_in_flight(case.instance, devices)
            rows.append((case.model, devices, str(published), f"{ours[-1]:.0f}", order, str(most)))
        pairs["Fig. 4", case.model] = same_order([row[1] for row in paper.FIGURE_4[case.model]], ours)
    columns = ("model", "virtual worker", "published", "ours", "our order", "minibatches that fit")
    return StudyTable(
        "Fig. 4: one virtual worker, one minibatch in flight", columns, tuple(rows), words(__file__, "single")
    )


def allocation_table(cases: Sequence[HetPipeCase], pairs: Pairs) -> StudyTable:
    """Return Fig. 5: the allocations of 16 devices to virtual workers, D = 0."""
    rows = []
    for case in cases:
        runs = paper.FIGURE_5[case.model]
        ours = [case.rate(one) for one in runs]
        pairs["Fig. 5", case.model] = same_order([one.images_per_second for one in runs], ours)
        fast = [case.rate(one, LINE_RATE) for one in runs]
        for one, mine, line in zip(runs, ours, fast, strict=True):
            cells = (case.model, one.label, str(one.in_flight), str(one.images_per_second))
            rows.append((*cells, f"{mine:.0f}", f"{line:.0f}"))
    columns = ("model", "allocation", "N_m", "published", "ours", "links at line rate")
    return StudyTable("Fig. 5: allocations of 16 devices", columns, tuple(rows), words(__file__, "allocation"))


def growth_table(cases: Sequence[HetPipeCase], pairs: Pairs) -> StudyTable:
    """Return Table 4: more and more devices, with HetPipe (ED-local) and with Horovod."""
    rows = []
    for case in cases:
        runs = paper.TABLE_4[case.model]
        ours = [case.rate(one) for one in runs]
        others = paper.HOROVOD[case.model]
        theirs = [predicted.horovod(case.instance, devices, case.link) for devices, _ in others]
        pairs["Table 4, HetPipe", case.model] = same_order([one.images_per_second for one in runs], ours)
        pairs["Table 4, Horovod", case.model] = same_order([rate for _, rate in others], theirs)
        for at, (one, mine) in enumerate(zip(runs, ours, strict=True)):
            known = at < len(others)
            both = (str(others[at][1]), f"{theirs[at]:.0f}") if known else ("out of memory", "-")
            rows.append(
                (case.model, one.label, str(one.in_flight), str(one.images_per_second), f"{mine:.0f}", *both)
            )
    columns = ("model", "devices", "N_m", "HetPipe", "ours", "Horovod", "ours")
    return StudyTable("Table 4: more and more devices", columns, tuple(rows), words(__file__, "growth"))


def pairs_table(pairs: Pairs) -> StudyTable:
    """Return how many pairs of rates of each source stand in the published order."""
    rows = tuple((source, model, f"{same} of {total}") for (source, model), (same, total) in pairs.items())
    columns = ("source", "model", "pairs in the published order")
    return StudyTable("Orders", columns, rows, ("Pairs that the paper shows as equal are left out.",))


def staleness_table(case: HetPipeCase) -> StudyTable:
    """Return what the bound D on clock distance buys node partition, which waits most for parameter servers."""
    one = paper.FIGURE_5[case.model][0]
    rows = []
    for distance in DISTANCES:
        stale = global_staleness(one.in_flight, distance)
        rows.append((str(distance), str(stale), f"{case.rate(one, clock_distance=distance):.0f}"))
    columns = ("D", "s_global", "images/s")
    return StudyTable(
        f"Waves: {case.model}, {one.label}, N_m = {one.in_flight}", columns, tuple(rows), words(__file__, "waves")
    )


def pipedream_table(case: HetPipeCase) -> StudyTable:
    """Return PipeDream's plan on this cluster: its recurrence knows one speed and one link."""
    unlimited = replace(case.instance.constraints, memory=False)
    found = pipepar.solve(in_rows(replace(case.instance, constraints=unlimited)), levels=1)
    if found.plan is None or found.objective is None:
        raise LookupError("PipeDream's recurrence always has a plan")
    shape = "-".join(str(stage.group.devices) for stage in found.plan.stages)
    rate = paper.BATCH * NS_PER_SECOND / found.objective
    local = case.rate(paper.FIGURE_5[case.model][2])
    published = paper.FIGURE_5[case.model][2].images_per_second
    cells = (
        ("PipeDream", str(paper.PIPEDREAM_RESNET152), f"{rate:.0f}", f"{len(found.plan)} stages: {shape}"),
        ("HetPipe, ED-local", str(published), f"{local:.0f}", "4 virtual workers VRGQ"),
    )
    columns = ("planner", "published", "ours", "plan")
    return StudyTable(f"PipeDream on this cluster, {case.model}", columns, cells, words(__file__, "pipedream"))
