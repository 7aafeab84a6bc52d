"""PipePar (CSCWD 2021): Table I, Table II and Fig. 4 beside what its own equations give.

Compared on each model are data parallelism, AccPar, PipePar, the optimum, and one GPU alone. Table I, and Fig. 4
as measured from its bars, lie in ``published.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipecut.formulation.costs import amounts
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer, layers_of
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.ingest.errors import ModelError
from pipecut.ingest.plans.plan_file import read_plan
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.scenario.shipped import SHIPPED
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import all_names, find_any
from pipecut.solvers.crosscheck import solve_checked
from pipecut_literature.studies.study import Study, StudyInputError, StudyInputs, StudyTable, published, words

_TABLES = published(__file__)


class ModelRow(NamedTuple):
    """A row of Table I: parameters, and "Total Flops (G)" in hundredths of 10**9."""

    parameters: int
    flops_e7: int


class Bars(NamedTuple):
    """Bars of Fig. 4: how many times as fast as data parallelism, measured to about 0.03."""

    accpar: float
    pipepar: float


TABLE_I = {model: ModelRow(*row) for model, row in _TABLES["table_i"].items()}
BATCHES = tuple(map(int, _TABLES["figure_4"]))
FIGURE_4 = {
    (int(batch), model): Bars(*map(float, bars))
    for batch, models in _TABLES["figure_4"].items()
    for model, bars in models.items()
}
"""By minibatch and model."""


FOLDER = SHIPPED / "pipepar"
READINGS: Mapping[str, tuple[str, ...]] = {
    "boundaries charged": ("cost.boundary=both",),
    "boundaries free": ("cost.boundary=none",),
    "one after another": ("cost.boundary=both", "cost.combine=sum"),
}
"""Overrides of the shipped scenarios. Eq. (4) charges every transfer; Algorithm 2 adds none between stages; eq.
(1) is a sum, and gives the time of one minibatch that has the pipeline to itself."""
TIME_LIMIT_S = 60.0
"""Longest time of each search, if none is given."""
BASELINE, ACCPAR, PIPEPAR = "data_parallel", "accpar", "pipepar"


@dataclass(frozen=True, slots=True)
class MethodTimes:
    """Time of one minibatch, in ns; None for a planner that is not there or refuses.

    ``optimum`` is the best that is known where it is not ``proved``.
    """

    one_gpu: int
    baseline: int
    planners: Mapping[str, int | None]
    optimum: int
    proved: bool

    def over_baseline(self, name: str) -> float | None:
        """Return how many times as fast as data parallelism a planner's plan is."""
        time = self.planners[name]
        return None if time is None else self.baseline / time


def instance_of(model: str, batch: int, reading: str) -> Instance:
    """Return a model on the paper's cluster. Raises StudyInputError if it cannot be traced."""
    overrides = (f"training.global_batch={batch}", *READINGS[reading])
    try:
        return load_scenario(FOLDER / f"{model}.yaml", overrides).load()
    except ModelError as error:
        raise StudyInputError(str(error)) from error


def times_of(instance: Instance, limits: Limits) -> MethodTimes:
    """Run all planners and prove the optimum; every price is the evaluator's."""
    best = plan(instance, limits)
    baseline = planned(instance, BASELINE, limits)
    if best.objective is None or baseline is None:
        raise StudyInputError(f"{instance.name}: no plan within the time limit")
    planners = {name: planned(instance, name, limits) for name in (ACCPAR, PIPEPAR)}
    known = (best.objective, baseline, one_gpu := alone(instance), *planners.values())
    return MethodTimes(
        one_gpu=one_gpu,
        baseline=baseline,
        planners=planners,
        optimum=min(time for time in known if time is not None),
        proved=best.proof is Proof.OPTIMAL,
    )


def planned(instance: Instance, solver: str, limits: Limits) -> int | None:
    """Return the price of a solver's plan; None if there is no such solver, or it refuses the instance."""
    if solver not in all_names():
        return None
    try:
        return solve_checked(instance, find_any(solver), limits).objective
    except ValueError:
        return None


def alone(instance: Instance) -> int:
    """Return the price of the whole model on the first device."""
    span = Span(0, len(instance.layers))
    plan = Plan((Stage(span, Group.on_line(instance, 0, 1), (0,) * len(span)),))
    found = evaluate(instance, plan).objective
    if found is None:
        raise LookupError("the whole model on one device is a plan of every instance")
    return found


TITLE = "PipePar: models, the plan of Table II, and the speed-ups of Fig. 4"
NOTHING = "-"
TABLE_II_MODEL, TABLE_II_BATCH = "vgg16", 64
NAMES = {"vgg": "VGG", "resnet": "ResNet"}


def run(inputs: StudyInputs) -> Study:
    """Trace the six models and plan them for both batches. Raises StudyInputError without PyTorch."""
    limits = Limits(time_limit_s=inputs.time_limit_s or TIME_LIMIT_S)
    first = next(iter(READINGS))
    graphs = {model: instance_of(model, BATCHES[0], first).layer_graph for model in TABLE_I}
    models, equal = models_table({model: layers_of(graph) for model, graph in graphs.items()})
    found = {
        (reading, batch, model): times_of(instance_of(model, batch, reading), limits)
        for reading in READINGS
        for batch, model in FIGURE_4
    }
    figures: dict[str, float | int | str | None] = {"table_i_rows_equal": equal}
    plan_rows, plan_figures = plan_table(found)
    tables = [models, plan_rows, stages_table()]
    for reading in READINGS:
        rows = {key[1:]: times for key, times in found.items() if key[0] == reading}
        tables += [speed_table(reading, rows), alone_table(reading, rows)]
        for (batch, model), times in rows.items():
            for name in (ACCPAR, PIPEPAR):
                figures[f"{name}, {model}, {batch}, {reading}"] = _rounded(times.over_baseline(name))
    claims, kept = claims_table({reading: _of(found, reading) for reading in READINGS})
    return Study(TITLE, words(__file__, "reading"), (*tables, claims), figures | plan_figures | kept)


def models_table(models: Mapping[str, Sequence[Layer]]) -> tuple[StudyTable, int]:
    """Return Table I beside the traced models, and in how many rows both numbers are equal."""
    rows: list[tuple[str, ...]] = []
    for model, layers in models.items():
        published = TABLE_I[model]
        parameters = sum(layer.parameter_bytes for layer in layers) // 4
        macs, counted = sum(layer.macs for layer in layers), sum(layer.torchstat_flops for layer in layers)
        same = parameters == published.parameters and round(counted / 10**7) == published.flops_e7
        sizes = f"{published.parameters:,}", f"{parameters:,}"
        work = f"{published.flops_e7 / 100:.2f}", f"{counted / 10**9:.2f}", f"{macs / 10**9:.2f}"
        rows.append((title_of(model), *sizes, *work, "yes" if same else "no"))
    columns = ("model", "parameters, published", "ours", "Flops (G), published", "ours", "10^9 MACs", "equal")
    remarks = words(__file__, "table i")
    return StudyTable("Table I", columns, tuple(rows), remarks), sum(row[-1] == "yes" for row in rows)


def plan_table(
    found: Mapping[tuple[str, int, str], MethodTimes],
) -> tuple[StudyTable, dict[str, float | int | str | None]]:
    """Return the plan of Table II beside the optimum, for both readings of boundaries."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | int | str | None] = {}
    for reading in READINGS:
        instance, times = table_ii_instance(reading), found[reading, TABLE_II_BATCH, TABLE_II_MODEL]
        price = evaluate(instance, published_plan(instance)).objective or 0
        gap = (price - times.optimum) / price
        plans = amounts.duration(price), _optimum(times), amounts.gap(gap)
        others = amounts.duration(times.one_gpu), amounts.duration(times.baseline)
        published = FIGURE_4[TABLE_II_BATCH, TABLE_II_MODEL].pipepar
        rows.append((reading, *plans, *others, f"{times.baseline / price:.2f}", f"{published:.2f}"))
        figures |= {f"table_ii_ns, {reading}": price, f"table_ii_gap, {reading}": round(gap, 4)}
    columns = (
        *("reading", "Table II's plan", "optimum", "gap", "one GPU", "data parallelism"),
        *("speed-up of Table II", "Fig. 4"),
    )
    remarks = words(__file__, "table ii", model=title_of(TABLE_II_MODEL), batch=TABLE_II_BATCH)
    return StudyTable("Table II against the optimum", columns, tuple(rows), remarks), figures


def stages_table() -> StudyTable:
    """Return the stages of Table II's plan with the time of each boundary."""
    instance = table_ii_instance(next(iter(READINGS)))
    plan = published_plan(instance)
    rows = tuple(
        (
            str(at),
            f"{instance.layers[stage.span.first].name} to {instance.layers[stage.span.stop - 1].name}",
            amounts.duration(cost.compute_ns),
            amounts.duration(cost.boundary_ns) if at else NOTHING,
        )
        for at, (stage, cost) in enumerate(zip(plan.stages, evaluate(instance, plan).stages, strict=True))
    )
    columns = ("GPU", "layers", "computation", "boundary before")
    return StudyTable("Table II stage by stage", columns, rows, words(__file__, "stages"))


def speed_table(reading: str, rows: Mapping[tuple[int, str], MethodTimes]) -> StudyTable:
    """Return Fig. 4: speed-ups over data parallelism, published and ours."""
    cells: list[tuple[str, ...]] = []
    for (batch, model), times in rows.items():
        accpar = f"{FIGURE_4[batch, model].accpar:.2f}", _times(times.over_baseline(ACCPAR))
        pipepar = f"{FIGURE_4[batch, model].pipepar:.2f}", _times(times.over_baseline(PIPEPAR))
        optimum = f"{'' if times.proved else '>= '}{times.baseline / times.optimum:.2f}"
        cells.append((str(batch), title_of(model), *accpar, *pipepar, optimum))
    columns = ("minibatch", "model", "AccPar, published", "ours", "PipePar, published", "ours", "optimum")
    return StudyTable(f"Fig. 4, speed-up over data parallelism, {reading}", columns, tuple(cells))


def alone_table(reading: str, rows: Mapping[tuple[int, str], MethodTimes]) -> StudyTable:
    """Return speed-ups over one GPU, and the times behind them."""
    cells: list[tuple[str, ...]] = []
    for (batch, model), times in rows.items():
        others = (times.baseline, times.planners[ACCPAR], times.planners[PIPEPAR], times.optimum)
        faster = (_times(None if time is None else times.one_gpu / time) for time in others)
        cells.append((str(batch), title_of(model), amounts.duration(times.one_gpu), *faster, _optimum(times)))
    columns = ("minibatch", "model", "one GPU", "data parallelism", "AccPar", "PipePar", "optimum", "its time")
    return StudyTable(f"Speed-up over one GPU, {reading}", columns, tuple(cells))


def claims_table(
    found: Mapping[str, Mapping[tuple[int, str], MethodTimes]],
) -> tuple[StudyTable, dict[str, float | int | str | None]]:
    """Return what Fig. 4 shows in words, and in how many cases each statement holds, there and here."""
    names = ("AccPar is no slower than data parallelism", "PipePar is no slower than AccPar")
    names += ("VGG gains more by PipePar than any ResNet", "PipePar gains less with the larger minibatch")
    published = {key: (bars.accpar, bars.pipepar) for key, bars in FIGURE_4.items()}
    columns = [_kept(published)]
    for rows in found.values():
        ours = {key: (times.over_baseline(ACCPAR), times.over_baseline(PIPEPAR)) for key, times in rows.items()}
        columns.append(_kept(ours))
    cells = tuple((name, *(column[at] for column in columns)) for at, name in enumerate(names))
    figures: dict[str, float | int | str | None] = {
        f"{name}, {reading}": column[at]
        for reading, column in zip(found, columns[1:], strict=True)
        for at, name in enumerate(names)
    }
    ahead = [times.baseline / times.one_gpu for rows in found.values() for times in rows.values()]
    remarks = words(__file__, "claims", least=min(ahead), most=max(ahead))
    table = StudyTable("What Fig. 4 says", ("statement", "published", *found), cells, remarks)
    return table, figures


def _kept(bars: Mapping[tuple[int, str], tuple[float | None, float | None]]) -> tuple[str, ...]:
    """Return in how many of the cases that can be compared each statement holds."""
    pipepar = {key: gain for key, (_, gain) in bars.items() if gain is not None}
    accpar = {key: gain for key, (gain, _) in bars.items() if gain is not None}
    least = {batch: [gain for (b, m), gain in pipepar.items() if b == batch and "vgg" in m] for batch in BATCHES}
    statements = (
        [gain >= 1 for gain in accpar.values()],
        [pipepar[key] >= gain for key, gain in accpar.items() if key in pipepar],
        [
            gain < min(least[batch])
            for (batch, model), gain in pipepar.items()
            if "resnet" in model and least[batch]
        ],
        [pipepar[BATCHES[1], model] < gain for (batch, model), gain in pipepar.items() if batch == BATCHES[0]],
    )
    return tuple(f"{sum(one)} of {len(one)}" if one else NOTHING for one in statements)


def table_ii_instance(reading: str) -> Instance:
    """Return the instance that Table II is a plan of."""
    return instance_of(TABLE_II_MODEL, TABLE_II_BATCH, reading)


def published_plan(instance: Instance) -> Plan:
    """Return the plan of Table II."""
    return read_plan(FOLDER / "table2.plan.json", instance)


def title_of(model: str) -> str:
    """Return a model's name as the paper writes it: ``VGG16``."""
    family = model.rstrip("0123456789")
    return NAMES[family] + model.removeprefix(family)


def _of(found: Mapping[tuple[str, int, str], MethodTimes], reading: str) -> dict[tuple[int, str], MethodTimes]:
    return {key[1:]: times for key, times in found.items() if key[0] == reading}


def _optimum(times: MethodTimes) -> str:
    return f"{'' if times.proved else '<= '}{amounts.duration(times.optimum)}"


def _times(factor: float | None) -> str:
    return NOTHING if factor is None else f"{factor:.2f}"


def _rounded(factor: float | None) -> float | None:
    return None if factor is None else round(factor, 3)
