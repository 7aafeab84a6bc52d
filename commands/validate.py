"""``pipecut validate``: gradients beside the unsplit model's, times and memory beside the predicted ones.

What was measured of a plan beside what is predicted, with the errors of layers and of the schedule apart.

The *layers* are judged by the times of passes: predicted for a stage, and measured. The *schedule* is judged by
the timeline alone: it is given the measured times of passes, sums and transfers, and its step is held against
the measured one. The product of both is the error of the predicted step.

The error of layers is again a product: of how much slower the *machine* was in the run than when it was profiled,
by the time of the same probe, and of what is left, which is the predictor's.

What was measured of a plan beside what is predicted, as lines for people.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipecut.commands.parts.running import by_torchrun, carried_out, job_of
from pipecut.commands.parts.task import Task
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.timeline.durations import Durations
from pipecut.formulation.timeline.timeline import run as run_of_timeline
from pipecut.ingest.graphs.layer_profile import LayerProfile, machine_name, read_profile
from pipecut.report.simulation import Simulation, simulate

if TYPE_CHECKING:
    from pipecut.execution.measuring import MeasuredSteps
    from pipecut.execution.running.job import RunJob
    from pipecut.execution.running.validating import Difference


def measured_content(
    task: Task, job: RunJob, measured: Sequence[MeasuredSteps], profile: LayerProfile | None
) -> dict[str, Any]:
    """Return predicted and measured times and memory as plain data; predicted ones are None without a price.

    ``profile`` is what the scenario plans with. Cost: two timelines of the plan.
    """
    schedule = job.layout.schedule
    durations = _durations(job, measured)
    timeline_ns = run_of_timeline(schedule, durations).makespan_ns
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


def write_measured(content: dict[str, Any]) -> None:
    """Write times and memory: a line a stage, a line a process, and the step with both errors."""
    for one in content["stages"]:
        passes = ("forward", "backward")
        parts = [_pair(word, one[f"predicted_{word}_ns"], one[f"{word}_ns"], output.duration) for word in passes]
        output.write(f"stage {one['stage']}: {', '.join(parts)}\n")
    for one in content["processes"]:
        memory = _pair("memory", one["predicted_peak_bytes"], one["peak_bytes"], output.amount)
        output.write(f"process {one['process']}: {memory}\n")
    step = _pair("step", content["predicted_step_ns"], content["measured_step_ns"], output.duration)
    output.write(f"{step}, median of {output.count(content['steps'], 'step')}\n")
    timeline = output.duration(content["timeline_of_measured_ns"])
    layers = content["layers_error"]
    apart = "" if layers is None else f"; the layers are off by {_percent(layers)}"
    output.write(
        f"the timeline with the measured passes takes {timeline}: the schedule is off by "
        f"{_percent(content['schedule_error'])}{apart}\n"
    )
    _write_machine(content)


def _write_machine(content: dict[str, Any]) -> None:
    """Write how fast the machine was beside when it was profiled, where that is known."""
    machine, left = content["machine"], content["layers_error_left"]
    if machine is None:
        return
    then, now = (output.duration(content[key]) for key in ("profile_probe_ns", "probe_ns"))
    way = "slower" if machine >= 0 else "faster"
    rest = "" if left is None else f": at one speed the layers are off by {_percent(left)}"
    output.write(
        f"the machine was {100 * abs(machine):.1f} % {way} than when it was profiled (a probe took {then}, and "
        f"now {now}){rest}\n"
    )


def _pair(what: str, predicted: int | None, measured: int, shown: Any) -> str:  # noqa: ANN401 (how it is written)
    if predicted is None:
        return f"{what} measured {shown(measured)}"
    apart = f" ({_percent(predicted / measured - 1)})" if measured else ""
    return f"{what} predicted {shown(predicted)}, measured {shown(measured)}{apart}"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def run(arguments: argparse.Namespace) -> int:
    """Compare steps; exit with 1, what differs and both numbers, where rounding does not explain it.

    Then measure some steps. Under torchrun the first process tells of these.
    """
    task, job = job_of(arguments)
    profile = _checked_profile(task)
    from pipecut.execution.measuring import validate_and_measure
    from pipecut.execution.running.validating import STEPS

    results = carried_out(arguments, job, validate_and_measure, lambda _: None)
    found = [one for result in results.values() for one in result.compared.differences]
    faults = [one for result in results.values() for one in result.compared.faults]
    measured = results[min(results)].measured
    tells = bool(measured) and (0 in results or not by_torchrun())
    content = measured_content(task, job, measured, profile) if tells else None
    worst = _worst_of_stages(found)
    unlike = [one for one in worst.values() if not one.equal]
    if arguments.json:
        arguments.reply.put(
            _to_dict(task.scenario.name, arguments.plan, worst, len(found), faults) | {"measured": content}
        )
    else:
        for one in worst.values():
            output.write(f"stage {one.stage}: largest difference {one.relative:.1e}, in {one.parameter}\n")
        for one in unlike:
            where = f"stage {one.stage}: {one.parameter}" + (f", step {one.step}" if one.step > 1 else "")
            output.write(f"{where}: {one.found!r}, the unsplit model {one.expected!r}\n")
        for fault in faults:
            output.write(f"{fault}\n")
        if not unlike and not faults:
            output.write(
                f"losses, gradients and buffers of {STEPS} steps ({output.count(len(found), 'tensor')} on "
                f"{output.count(job.layout.size, 'device')}) are those of the unsplit model\n"
            )
        if content is not None:
            write_measured(content)
    return ExitCode.NO_PLAN if unlike or faults else ExitCode.DONE


def _checked_profile(task: Task) -> LayerProfile | None:
    """Return the scenario's profile. Raises InputError where it is of another processor or torch than these."""
    scenario = task.scenario
    if scenario.profile is None or not scenario.profile.endswith(".json"):  # a table does not say where it is from
        return None
    import torch

    path = scenario.path.parent / scenario.profile
    profile = read_profile(path)
    on_gpu = torch.cuda.is_available() and profile.machine != machine_name()
    processor = torch.cuda.get_device_name(0) if on_gpu else machine_name()
    here = {"processor": processor, "torch": torch.__version__}
    for what, found in (("processor", profile.machine), ("torch", profile.torch)):
        if found != here[what]:
            raise InputError(f"{path}: measured with {what} {found}, and here is {here[what]}: profile again here")
    return profile


def _worst_of_stages(found: list[Difference]) -> dict[int, Difference]:
    """Return by stage the difference that exceeds most what is allowed."""
    worst: dict[int, Difference] = {}
    for one in sorted(found, key=lambda one: (one.stage, -one.relative / one.most)):
        worst.setdefault(one.stage, one)
    return worst


def _to_dict(
    scenario: str, plan: str, worst: dict[int, Difference], compared: int, faults: list[str]
) -> dict[str, Any]:
    return {
        "scenario": scenario,
        "plan": plan,
        "equal": all(one.equal for one in worst.values()) and not faults,
        "compared": compared,
        "faults": faults,
        "stages": [
            {
                "stage": one.stage,
                "parameter": one.parameter,
                "step": one.step,
                "found": _number(one.found),
                "expected": _number(one.expected),
                "relative_difference": _number(one.relative),
                "tolerance": one.most,
            }
            for one in worst.values()
        ],
    }


def _number(value: float) -> float | None:
    """Return a value for JSON, which has no word for what is no number."""
    return value if math.isfinite(value) else None
