"""``pipecut profile``: times of the layers of a model on this machine, in a file that a scenario names.

What ``pipecut profile`` measured, as lines and a table for people.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipecut.commands.parts.tables import plain_table
from pipecut.commands.parts.task import Task, open_task
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError, output_path, reading
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.graphs.layer_profile import LayerProfile, write_profile

ROWS = 20
"""Layers that are shown: those where prediction and measurement are furthest apart."""


def write_profiled(content: dict[str, Any]) -> None:
    """Write the sums beside the whole, the link, and the layers where the prediction was most wrong."""
    for one in content["sizes"]:
        parts = []
        for way in ("forward", "backward"):
            summed, whole = one[f"sum_{way}_ns"], one[f"whole_{way}_ns"]
            apart = f" ({100 * (summed / whole - 1):+.1f} %)" if whole else ""
            parts.append(f"{way} {output.duration(summed)} in all layers, {output.duration(whole)} whole{apart}")
        samples = output.count(one["samples"], "sample")
        output.write(f"{samples}: {'; '.join(parts)}; spread {100 * one['spread']:.1f} %\n")
    latency = output.duration(content["link_latency_ns"])
    bandwidth = content["link_bits_per_second"] / 1e9
    output.write(f"link between two processes: {latency} and {bandwidth:.3g} Gbit/s\n")
    layers = sorted(content["layers"], key=_apart_ns, reverse=True)
    columns = ("forward", "predicted", "backward", "predicted")
    table = plain_table(("layer", "left"), *((one, "right") for one in columns))
    for row in layers[:ROWS]:
        keys = ("forward_ns", "predicted_forward_ns", "backward_ns", "predicted_backward_ns")
        table.add_row(output.printable(row["layer"]), *(output.duration(row[key]) for key in keys))
    output.show(table)
    if len(layers) > ROWS:
        output.write(f"... and {output.count(len(layers) - ROWS, 'layer')} with smaller differences\n")
    output.write(f"{content['out']}: {content['machine']}, torch {content['torch']}; name it as model.profile\n")


def _apart_ns(row: dict[str, Any]) -> int:
    return abs(sum(row[f"predicted_{way}_ns"] - row[f"{way}_ns"] for way in ("forward", "backward")))


def run(arguments: argparse.Namespace) -> int:
    """Measure, refuse what is unsteady, write the profile, and show where the prediction was wrong."""
    out = output_path(arguments.out)
    if out is None:
        raise InputError("--out: expected a file to write")
    arguments.scenario = replace(arguments.scenario, profile=None)
    task = open_task(arguments)
    device_class = _device_class(task.instance, arguments.device_class)
    profile = _measured(task, arguments, device_class)
    with reading(out):
        write_profile(profile, out)
    content = _content(task, profile, arguments.out)
    if arguments.json:
        arguments.reply.put(content)
    else:
        write_profiled(content)
    return ExitCode.DONE


def _device_class(instance: Instance, asked: str | None) -> str:
    names = [one.name for one in instance.device_classes]
    if asked is None and len(names) == 1:
        return names[0]
    if asked not in names:
        raise InputError(f"--device-class: expected one of {', '.join(names)}, got {asked or 'none'}")
    return asked


def _measured(task: Task, arguments: argparse.Namespace, device_class: str) -> LayerProfile:
    try:
        from pipecut.execution.profiling import ProfileJob, profiled
    except ImportError as error:
        raise InputError(
            "profiling needs PyTorch, which is not installed: pip install 'pipecut[torch]'"
        ) from error
    from pipecut.execution.errors import RunFailedError

    scenario = task.scenario
    folder = scenario.path.parent.resolve()
    sizes = tuple(sorted({task.instance.training.micro_batch, *arguments.samples}))
    job = ProfileJob(
        scenario.model,
        scenario.configured,
        folder,
        sizes,
        arguments.segments,
        arguments.rounds,
        seed=0,
        at_once=arguments.at_once,
    )
    try:
        return profiled(job, device_class, arguments.most_spread, _saying(arguments.quiet))
    except RunFailedError as error:
        raise InputError(f"{scenario.path}: {error}") from error


def _saying(quiet: bool) -> Callable[[int, Any], None]:
    def heard(_: int, samples: int) -> None:
        if not quiet:
            output.remark(f"measured with micro-batches of {samples}")

    return heard


def _content(task: Task, profile: LayerProfile, out: str) -> dict[str, Any]:
    instance = task.instance
    at = [one.name for one in instance.device_classes].index(profile.device_class)
    shown = next(one for one in profile.times if one.samples == instance.training.micro_batch)
    times = {row.name: row for row in shown.layers}
    return {
        "scenario": task.scenario.name,
        "out": out,
        **{key: getattr(profile, key) for key in ("device_class", "machine", "torch", "threads", "at_once")},
        "link_latency_ns": profile.link.latency_ns,
        "link_bits_per_second": profile.link.bits_per_second,
        "sizes": [
            {
                "samples": one.samples,
                "sum_forward_ns": sum(row.forward_ns for row in one.layers),
                "sum_backward_ns": sum(row.backward_ns for row in one.layers),
                "whole_forward_ns": one.whole_forward_ns,
                "whole_backward_ns": one.whole_backward_ns,
                "spread": one.spread,
                "probe_ns": one.probe_ns,
            }
            for one in profile.times
        ],
        "layers": [
            {
                "layer": layer.name,
                "forward_ns": times[layer.name].forward_ns,
                "backward_ns": times[layer.name].backward_ns,
                "predicted_forward_ns": instance.forward_ns[at][number],
                "predicted_backward_ns": instance.backward_ns[at][number],
            }
            for number, layer in enumerate(instance.layers)
        ],
    }
