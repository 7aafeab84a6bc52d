"""``pipecut scenarios``: the scenarios that ship, by name, for people or as JSON."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipecut.commands.outputs.scenarios import AlikeServersPart, ScenariosOutput, ShippedPart
from pipecut.commands.parts.opening import open_scenario, shipped_names, shortest
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, reading
from pipecut.formulation.problem.cluster import Server, servers_of
from pipecut.ingest.scenario.shipped import SHIPPED, scenario_files

if TYPE_CHECKING:
    from rich.table import Table

FOR_EDITORS = "yaml-language-server:"
"""What a comment begins with that no person needs to read."""
FIRST_WORDS = re.compile(r".+?(?=[.:](?:\s|$))|.+")
"""A sentence, or the part of it before a colon."""


def run(arguments: argparse.Namespace) -> int:
    """List the scenarios that ship. Exit code 2 for one that is wrong."""
    paths = scenario_files(SHIPPED)
    names = shipped_names(SHIPPED)
    rows = [_row(path, shortest(path, names)) for path in paths]
    if arguments.json:
        arguments.reply.put(ScenariosOutput(scenarios=rows).model_dump(mode="json", exclude={"error"}))
    else:
        output.show(_table(rows), "", "Every command takes such a name for SCENARIO: pipecut plan NAME")
    return ExitCode.DONE


def _row(path: Path, name: str) -> ShippedPart:
    scenario = open_scenario(str(path), ())
    with reading(path):
        text = path.read_text(encoding="utf-8")
    servers = servers_of(scenario.cluster)
    return ShippedPart(
        name=name,
        folder=path.parent.relative_to(SHIPPED).as_posix(),
        title=title_of(text) or scenario.name,
        file=str(path),
        model=scenario.model,
        devices=sum(server.devices for server in servers),
        cluster=list(_alike(servers)),
    )


def title_of(text: str) -> str:
    """Return what a scenario file says of itself first: the first words of the comment that it begins with."""
    head = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line.lstrip("# ").rstrip() for line in head]
    told = itertools.dropwhile(lambda line: not line or line.startswith(FOR_EDITORS), lines)
    found = FIRST_WORDS.match(" ".join(itertools.takewhile(bool, told)))
    return found[0] if found else ""


def _alike(servers: Sequence[Server]) -> Iterator[AlikeServersPart]:
    for (device, devices), group in itertools.groupby(servers, lambda one: (one.device_class.name, one.devices)):
        yield AlikeServersPart(servers=len(list(group)), devices=devices, device=device)


def _table(rows: Sequence[ShippedPart]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is; model and devices")
    for folder, group in itertools.groupby(rows, lambda row: row.folder):
        table.add_row(f"{folder}/", "")
        for row in group:
            table.add_row(f"  {row.name}", f"{row.title}\n{_model(row.model)} on {_cluster(row.cluster)}")
    return table


def _model(model: str) -> str:
    """Return a model in short: the function that builds it, or its file."""
    return model.rpartition(":")[2]


def _cluster(servers: Sequence[AlikeServersPart]) -> str:
    return ", ".join(
        f"{'' if one.servers == 1 else f'{one.servers} x '}{one.devices} {one.device}" for one in servers
    )
