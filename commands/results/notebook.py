"""What results look like in a notebook: pictures as images, which no style of the notebook changes, and words."""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING, Any

from formulation.costs import times
from formulation.costs.prices import form_of
from formulation.evaluate import evaluate
from formulation.problem.groups import GroupKind
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from formulation.schedules.table import ScheduleError
from report.content import content_of
from report.page.page import pictures
from report.page.templating import standalone
from report.simulation import simulate
from report.wording import printable

if TYPE_CHECKING:
    from pandas import DataFrame


def words_in_html(text: str) -> str:
    """Return a text of the terminal as HTML, in letters of one width."""
    shown = "\n".join(map(printable, text.split("\n")))
    return f'<pre style="line-height: 1.3">{escape(shown)}</pre>'


def plan_in_html(instance: Instance, plan: Plan | None, text: str) -> str:
    """Return the picture of a plan with words below it; only words of a plan that cannot be run."""
    if plan is None or evaluate(instance, plan).objective is None:
        return words_in_html(text)
    try:
        content = content_of(simulate(instance, plan), scenario=instance.name)
    except ScheduleError:
        return words_in_html(text)
    return drawn_in_html(content, ("plan",)) + words_in_html(text)


def drawn_in_html(content: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return pictures of a run, by their names, as images that hold all that they need."""
    images = []
    for picture in pictures(content):
        if picture.name in names:
            data = base64.b64encode(standalone(picture).encode()).decode()
            words = escape(printable(picture.title), quote=True)
            source = f"data:image/svg+xml;base64,{data}"
            images.append(f'<img alt="{words}" style="max-width: 100%" src="{source}">')
    return "<br>".join(images)


def layer_table(instance: Instance, plan: Plan | None = None) -> DataFrame:
    """Return what ``Planned.layer_table`` says. Raises ImportError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'pipecut[notebook]'") from error
    keys = ("name", "operator", "parameter_bytes", "input_bytes", "output_bytes", "stash_bytes", "macs")
    rows = [{key: getattr(layer, key) for key in keys} for layer in instance.layers]
    for index, stage in enumerate(plan.stages if plan else ()):
        kind = GroupKind.of(instance, stage.group)
        for layer in stage.span.layers:
            time_ns = times.compute_ns(instance, layer, form_of(instance, stage, layer), kind)
            devices = stage.group.devices
            rows[layer] |= {"stage": index, "devices": devices, "form": stage.form(layer), "compute_ns": time_ns}
    return pandas.DataFrame(rows)
