"""What was measured of a plan beside what is predicted, with the errors of layers and of the schedule apart.

The *layers* are judged by the times of passes: predicted for a stage, and measured. The *schedule* is judged by
the timeline alone: it is given the measured times of passes, sums and transfers, and its step is held against
the measured one. The product of both is the error of the predicted step.

The error of layers is again a product: of how much slower the *machine* was in the run than when it was profiled,
by the time of the same probe, and of what is left, which is the predictor's.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commands.parts.task import Task
from formulation.problem.instance import Instance
from formulation.timeline.durations import Durations
from formulation.timeline.timeline import run
from ingest.graphs.layer_profile import LayerProfile
from report.simulation import Simulation, simulate

if TYPE_CHECKING:
    from execution.measuring.steps import MeasuredSteps
    from execution.running.job import RunJob


def measured_content(
    task: Task, job: RunJob, measured: Sequence[MeasuredSteps], profile: LayerProfile | None
) -> dict[str, Any]:
    """Return predicted and measured times and memory as plain data; predicted ones are None without a price.

    ``profile`` is what the scenario plans with. Cost: two timelines of the plan.
    """
    schedule = job.layout.schedule
    durations = _durations(job, measured)
    timeline_ns = run(schedule, durations).makespan_ns
    step_ns = round(statistics.median(max(one) for one in zip(*(one.steps for one in measured), strict=True)))
    predicted = _predicted(task.instance, job)
    predicted_ns = None if predicted is None else predicted.timeline.makespan_ns
    then_ns = profiled_probe_ns(measured, profile, task.instance.training.micro_batch)
    return {
        "steps": len(measured[0].steps),
        "measured_step_ns": step_ns,
        "timeline_of_measured_ns": timeline_ns,
        "predicted_step_ns": predicted_ns,
        "schedule_error": timeline_ns / step_ns - 1,
        **layers_content(measured, None if predicted_ns is None else predicted_ns / timeline_ns, then_ns),
        "stages": _stages(durations, predicted),
        "processes": _processes(job, measured, predicted),
    }


def profiled_probe_ns(measured: Sequence[MeasuredSteps], profile: LayerProfile | None, samples: int) -> int | None:
    """Return what a probe took when micro-batches of so many samples were profiled; None where not known.

    Nor is it known of the processors here where some are other ones than that which was profiled.
    """
    if profile is None or any(one.processor != profile.machine for one in measured):
        return None
    return profile.probe_ns(samples)


def layers_content(measured: Sequence[MeasuredSteps], ratio: float | None, then_ns: int | None) -> dict[str, Any]:
    """Return the error of layers and its two parts: how much slower the machine was, and what is left.

    ``ratio`` is predicted by measured (None: no price), ``then_ns`` what a probe took in the profile (None: not
    known). A probe of the run is the median of each process, and the mean over processes.
    """
    probe_ns = round(statistics.mean(statistics.median(one.probes) for one in measured))
    slower = None if then_ns is None else probe_ns / then_ns
    return {
        "layers_error": None if ratio is None else ratio - 1,
        "probe_ns": probe_ns,
        "profile_probe_ns": then_ns,
        "machine": None if slower is None else slower - 1,
        "layers_error_left": None if ratio is None or slower is None else ratio * slower - 1,
    }


def _predicted(instance: Instance, job: RunJob) -> Simulation | None:
    """Return the plan on the timeline, without the optimiser's state, which a validation has not."""
    training = instance.training
    elements = replace(training.elements, optimizer=0)
    bare = replace(instance, training=replace(training, precision=elements))
    try:
        return simulate(bare, job.plan, job.layout.schedule)
    except ValueError:
        return None


def _durations(job: RunJob, measured: Sequence[MeasuredSteps]) -> Durations:
    """Return measured times of the slowest process of each stage; recomputation is part of a backward pass."""
    layout = job.layout
    stages = range(layout.schedule.stages)

    def passes(stage: int, kinds: str) -> int:
        return max(
            sum(round(statistics.median(one.passes[stage, kind])) for kind in kinds if (stage, kind) in one.passes)
            for one in measured
            if one.process in layout.processes[stage]
        )

    def least(stage: int, which: str) -> int:
        return min(
            round(statistics.median(getattr(one, which)))
            for one in measured
            if one.process in layout.processes[stage]
        )

    transfers = {cut: spent for one in measured for cut, spent in one.transfers.items()}
    crossing = tuple(transfers.get(cut, 0) for cut in stages[:-1])
    return Durations(
        forward_ns=tuple(passes(stage, "F") for stage in stages),
        backward_ns=tuple(passes(stage, "BIW") for stage in stages),
        weight_gradient_ns=tuple(passes(stage, "W") for stage in stages),
        sync_ns=tuple(least(stage, "sums") for stage in stages),
        optimizer_ns=tuple(least(stage, "updates") for stage in stages),
        activation_ns=crossing,
        gradient_ns=crossing,
    )


def _stages(durations: Durations, predicted: Simulation | None) -> list[dict[str, Any]]:
    ours = None if predicted is None else predicted.made.durations
    return [
        {
            "stage": stage,
            "forward_ns": durations.forward_ns[stage],
            "backward_ns": durations.backward_ns[stage],
            "predicted_forward_ns": None if ours is None else ours.forward_ns[stage],
            "predicted_backward_ns": None if ours is None else ours.backward_ns[stage] + ours.recompute_ns[stage],
        }
        for stage in range(durations.stages)
    ]


def _processes(
    job: RunJob, measured: Sequence[MeasuredSteps], predicted: Simulation | None
) -> list[dict[str, Any]]:
    """Return the peaks of memory; that of every process of a rank is predicted alike."""
    ranks = range(job.layout.schedule.ranks)
    if predicted is None:
        peaks = dict.fromkeys(ranks)
    else:
        timeline, footprint = predicted.timeline, predicted.made.footprint
        peaks = {rank: footprint.over_time(timeline, rank).peak_bytes for rank in ranks}
    return [
        {
            "process": one.process,
            "stages": list(job.layout.stages_of(one.process)),
            "peak_bytes": one.peak_bytes,
            "predicted_peak_bytes": peaks[job.layout.rank_of[one.process]],
        }
        for one in measured
    ]
