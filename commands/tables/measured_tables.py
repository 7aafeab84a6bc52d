"""What was measured of a plan beside what is predicted, as lines for people."""

from __future__ import annotations

from typing import Any

from commands.terminal import human, output


def write_measured(content: dict[str, Any]) -> None:
    """Write times and memory: a line a stage, a line a process, and the step with both errors."""
    for one in content["stages"]:
        passes = ("forward", "backward")
        parts = [_pair(word, one[f"predicted_{word}_ns"], one[f"{word}_ns"], human.duration) for word in passes]
        output.write(f"stage {one['stage']}: {', '.join(parts)}\n")
    for one in content["processes"]:
        memory = _pair("memory", one["predicted_peak_bytes"], one["peak_bytes"], human.amount)
        output.write(f"process {one['process']}: {memory}\n")
    step = _pair("step", content["predicted_step_ns"], content["measured_step_ns"], human.duration)
    output.write(f"{step}, median of {human.count(content['steps'], 'step')}\n")
    timeline = human.duration(content["timeline_of_measured_ns"])
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
    then, now = (human.duration(content[key]) for key in ("profile_probe_ns", "probe_ns"))
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
