"""Plans in a notebook. The formulation, whose value a plan is, knows no HTML; so the notebook is told of plans."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

from formulation.problem.plan import Plan


def tell_notebook() -> None:
    """Let the notebook that runs, if one does, show every plan by :func:`stages_in_html`."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(Plan, stages_in_html)


def stages_in_html(plan: Plan) -> str:
    """Return a table with a row a stage; a plan knows layers and servers by their numbers only."""
    rows = ["<tr><th>stage<th>layers<th>devices of servers<th>how they share it"]
    for at, stage in enumerate(plan.stages):
        devices = ", ".join(f"{count} x server {server}" for server, count in stage.group.counts)
        shared = stage.shared_in_words or "one copy"
        layers = f"{stage.span.first} to {stage.span.stop - 1}"
        rows.append("<tr><td>" + "<td>".join(map(escape, (str(at), layers, devices, shared))))
    return f"<table>{''.join(rows)}</table>"
