"""What the parts of a scenario must mean together: each check yields mistakes at the keys that cause them.

The checks look at whatever part of the data keeps its schema, so that a misspelt key in one server does not
hide an unknown device class in the next. What is broken already is left alone: no mistake causes a second one.

What the keys of a scenario's model must mean together: one source, and only what that source understands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

from pydantic import ValidationError

from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.problem.constraints import Names, kinds
from pipecut.ingest.graphs.runtimes import RUNTIMES, ComputedAgain
from pipecut.ingest.mistakes import Mistake, Where, did_you_mean
from pipecut.ingest.operators.costs import OPERATORS
from pipecut.ingest.scenario.fields import Section
from pipecut.ingest.scenario.messages import mistake_at
from pipecut.ingest.scenario.schema import (
    MOST_SERVERS,
    ClusterSection,
    DeviceSection,
    ModelSection,
    NameSection,
    PairSection,
    ServerSection,
    TrainingSection,
    sound_parts,
)
from pipecut.ingest.text.yaml_source import Document
from pipecut.ingest.torch.hugging_face import TASKS

SOURCES = {
    "build": "a Python function",
    "graph": "a layer graph",
    "exported": "a .pt2 file",
    "transformers": "a configuration of Hugging Face",
}
"""Where a model may come from."""


def model_problems(model: ModelSection) -> Iterator[tuple[Where, str]]:
    """Yield the path of every mistake, and what is wrong."""
    given = [key for key in SOURCES if getattr(model, key) is not None]
    if len(given) != 1:
        listed = ", ".join(f"'{key}' ({what})" for key, what in SOURCES.items())
        yield ("model",), f"expected one of {listed}, got {' and '.join(given) or 'none'}"
    elif given != ["transformers"]:
        for key in ("task", "sequence", "inputs"):
            if getattr(model, key):
                yield ("model", key), f"has no effect on '{given[0]}', only on 'transformers'"
    yield from _runtime_problems_model_checks(model)
    for name, known in model.operators.items():
        if known not in OPERATORS:
            hint = did_you_mean(known, OPERATORS)
            yield ("model", "operators", name), f"no operator '{known}' has a formula{hint}"
    if model.task is not None and model.task not in TASKS:
        hint = did_you_mean(model.task, TASKS)
        yield ("model", "task"), f"no task '{model.task}', expected one of {', '.join(TASKS)}{hint}"


def _runtime_problems_model_checks(model: ModelSection) -> Iterator[tuple[Where, str]]:
    if model.runtime is not None:
        reason = f"model.runtime: {model.runtime} says"
        if model.cuts is not None:
            yield ("model", "cuts"), f"{reason} where stages may start; leave one of the two out"
        if "order" in model.model_fields_set and model.order == "any":
            yield ("model", "order"), f"{reason} that layers run as they were traced; leave one of the two out"


Kept = TypeVar("Kept", bound=Section)
Problem = tuple[Where, str]
"""The path of a value and what is wrong with it."""


def check_meaning(document: Document) -> Iterator[Mistake]:
    """Yield every mistake of meaning in a document, in no particular order."""
    data = document.data if isinstance(document.data, dict) else {}
    raw = data.get("cluster")
    cluster = raw if _is_section(raw) else {}
    servers = sum(len(server.names) for server in _names(cluster) if server)
    if servers > MOST_SERVERS:
        yield mistake_at(document, ("cluster", "servers"), f"{servers} servers, expected {MOST_SERVERS} or less")
        return
    problems = [
        *(model_problems(model) if (model := _kept(ModelSection, data.get("model"))) else ()),
        *_runtime_problems(data),
        *_training_problems(document, data.get("training")),
        *_device_problems(cluster),
        *_server_problems(cluster),
        *_name_problems(cluster),
        *_link_problems(cluster),
        *_constraint_problems(data.get("constraints"), cluster),
    ]
    if not problems and (whole := _kept(ClusterSection, cluster)):
        problems += _reach_problems(whole)
    for where, message in problems:
        yield mistake_at(document, where, message)


def _runtime_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what the program that shall run the plan cannot do."""
    model, asked = (data.get(key) if _is_section(data.get(key)) else {} for key in ("model", "constraints"))
    program = RUNTIMES.get(str(model.get("runtime"))) if model and asked else None
    if program is None or not asked:
        return
    whole, divides = program.again is ComputedAgain.STAGES, ["none", *program.divides]
    reason, again = f"model.runtime: {program.name}", ("allowed", "always") if whole else ("blocks", "every_block")
    if any(one not in divides for one in _list(asked, "sharded")):
        yield ("constraints", "sharded"), f"{reason} divides {' or '.join(divides)}; leave it out, or write these"
    if asked.get("recompute", "never") not in ("never", *again):
        does = f"computes {'activations' if whole else 'each block'} again in all stages or in none"
        yield ("constraints", "recompute"), f"{reason} {does}: write never, {' or '.join(again)}, or leave it out"
    if asked.get("optimizer_on_host", "never") != "never":
        does = "is not told of optimisers on the host; leave it out, or write never"
        yield ("constraints", "optimizer_on_host"), f"{reason} {does}"


def _training_problems(document: Document, raw: object) -> Iterator[Problem]:
    """Divide the batch by its parts; a mistake stands at whichever of the two numbers was written last."""
    section = raw if _is_section(raw) else {}
    training = _kept(
        TrainingSection, {key: section[key] for key in ("global_batch", "micro_batches") if key in section}
    )
    if training and (wrong := _not_a_part(training)):
        both: list[Where] = [("training", "global_batch"), ("training", "micro_batches")]
        places = [(document.place(where).line == 0, document.place(where).line) for where in both]
        message = f"global_batch {training.global_batch} is not a multiple of micro_batches {wrong}"
        yield max(zip(places, both, strict=True))[1], message
    for key in ("bytes_per_element", "optimizer_bytes_per_parameter"):
        if section.get("precision") is not None and section.get(key) is not None:
            yield ("training", key), "training.precision says this already; leave one of the two out"


def _not_a_part(training: TrainingSection) -> int | None:
    """Return the first number of micro-batches that does not divide the batch."""
    written = training.micro_batches
    numbers = (written,) if isinstance(written, int) else () if isinstance(written, str) else written
    return next((number for number in numbers if training.global_batch % number), None)


def _device_problems(cluster: Mapping[str, Any]) -> Iterator[Problem]:
    """Something of the memory of a device is left for plans."""
    classes = cluster.get("devices")
    for name, raw in classes.items() if isinstance(classes, dict) else ():
        found = _kept(DeviceSection, raw)
        if found and found.usable <= 0:
            message = f"leaves nothing: {found.kept} of the {counted(found.memory, 'byte')} of each device"
            yield ("cluster", "devices", name, "kept"), message


def _server_problems(cluster: Mapping[str, Any]) -> Iterator[Problem]:
    """Several devices have a link between them, and no more adapters than there are devices.

    That the device exists is known by then.
    """
    for index, server in _servers(cluster):
        if server.devices > 1 and server.link is None:
            message = f"{server.devices} devices and no 'link' between them; give the server a link"
            yield ("cluster", "servers", index, "devices"), message
        if (server.adapters or 0) > server.devices:
            message = f"{server.adapters} adapters for {server.devices} devices; give several of one device as one"
            message += " adapter, and the link between servers the bandwidth of all of them"
            yield ("cluster", "servers", index, "adapters"), message


def _name_problems(cluster: Mapping[str, Any]) -> Iterator[Problem]:
    """Servers and switches have a name of their own; the common name of alike servers is taken, too."""
    seen: dict[str, str] = {}
    named: list[tuple[Where, str, tuple[str, ...]]] = [
        (
            ("cluster", "servers", index, "name"),
            f"servers[{index}]",
            (server.name, *(one for one in server.names if one != server.name)),
        )
        for index, server in enumerate(_names(cluster))
        if server
    ]
    named += [
        (("cluster", "switches", index), f"switches[{index}]", (name,))
        for index, name in enumerate(_list(cluster, "switches"))
        if isinstance(name, str)
    ]
    for where, owner, names in named:
        repeated = [name for name in names if name in seen]
        if repeated:
            yield where, f"the name '{repeated[0]}' is taken by cluster.{seen[repeated[0]]}"
        seen.update((name, owner) for name in names if name not in seen)


def _link_problems(cluster: Mapping[str, Any]) -> Iterator[Problem]:
    """Links join two different servers or switches that exist, each pair once."""
    servers = _names(cluster)
    named = [server for server in servers if server]
    switches = _list(cluster, "switches")
    if len(named) < len(servers) or not all(isinstance(name, str) for name in switches):
        return
    ends = ends_by_name(named, switches)
    seen: dict[frozenset[str], int] = {}
    for index, raw in enumerate(_list(cluster, "links")):
        pair = _kept(PairSection, raw)
        where: Where = ("cluster", "links", index, "between")
        unknown = [name for name in pair.between if name not in ends] if pair else []
        for name in unknown:
            yield where, f"no server or switch '{name}'{did_you_mean(name, ends)}"
        if not pair or unknown:
            continue
        for one, other in pairs_of(pair, ends):
            first = seen.setdefault(frozenset((one, other)), index)
            if one == other:
                yield where, f"a link from '{one}' to itself; links inside a server are its own 'link'"
                break
            if first != index:
                yield where, f"'{one}' and '{other}' have a link already, cluster.links[{first}]"
                break


def _constraint_problems(raw: object, cluster: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what constraints say is wrong with them."""
    found = raw if _is_section(raw) else {}
    names = _named(found, cluster)
    for kind in kinds():
        if kind.key is not None and kind.key.name in found:
            for path, message in kind.mistakes(sound_parts(kind.key.shape, found[kind.key.name]), names):
                yield ("constraints", kind.key.name, *path), message


def _named(constraints: Mapping[str, Any], cluster: Mapping[str, Any]) -> Names:
    """Return what names in constraints stand for, as far as the cluster is sound."""
    named = [server for server in _names(cluster) if server]
    servers = [server for _, server in _servers(cluster)]
    written, classes = len(_list(cluster, "servers")), cluster.get("devices")
    return Names(
        servers=ends_by_name(named, []) if len(named) == written else None,
        classes=classes if isinstance(classes, dict) else None,
        used=frozenset(server.device for server in servers) if len(servers) == written else None,
        memory_bytes={name: _memory(cluster, server) for server in servers for name in server.names},
        others=constraints,
        hint=did_you_mean,
    )


def _memory(cluster: Mapping[str, Any], server: ServerSection) -> int | None:
    classes = cluster.get("devices")
    found = _kept(DeviceSection, classes.get(server.device)) if isinstance(classes, dict) else None
    return found.usable if found else None


def _reach_problems(cluster: ClusterSection) -> Iterator[Problem]:
    """Every server reaches every other."""
    if cluster.between_servers and not cluster.switches:
        return
    import networkx as nx  # here, because most files never need it and a mistake should be told at once

    graph: nx.Graph[str] = nx.Graph()
    names = [name for server in cluster.servers for name in server.names]
    graph.add_nodes_from([*names, *cluster.switches])
    if cluster.between_servers:
        nx.add_path(graph, names)
    ends = ends_by_name(cluster.servers, cluster.switches)
    graph.add_edges_from(one_pair for link in cluster.links for one_pair in pairs_of(link, ends))
    reached = nx.node_connected_component(graph, names[0])
    apart = [name for name in [*names, *cluster.switches] if name not in reached]
    if apart:
        more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
        yield ("cluster",), f"nothing joins '{names[0]}' to '{apart[0]}'{more}; give between_servers or more links"


def ends_by_name(servers: Sequence[NameSection], switches: list[str]) -> dict[str, tuple[str, ...]]:
    """Return what a name in ``between`` stands for: a server, a switch, or each of the alike servers."""
    ends = {server.name: server.names for server in servers}
    ends |= {name: (name,) for server in servers for name in server.names}
    return ends | {name: (name,) for name in switches}


def pairs_of(link: PairSection, ends: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Return the pairs of servers or switches that one entry of ``links`` joins."""
    return itertools.product(ends[link.between[0]], ends[link.between[1]])


def _names(cluster: Mapping[str, Any]) -> list[NameSection | None]:
    """Return the names of all servers of the file, None where they cannot be told."""
    rows = [raw if _is_section(raw) else {} for raw in _list(cluster, "servers")]
    return [_kept(NameSection, {key: row[key] for key in ("name", "count") if key in row}) for row in rows]


def _servers(cluster: Mapping[str, Any]) -> list[tuple[int, ServerSection]]:
    """Return the servers that keep the schema, with their index in the file."""
    rows = ((index, _kept(ServerSection, raw)) for index, raw in enumerate(_list(cluster, "servers")))
    return [(index, server) for index, server in rows if server]


def _list(section: Mapping[str, Any], key: str) -> list[Any]:
    found = section.get(key)
    return found if isinstance(found, list) else []


def _is_section(raw: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(raw, dict)


def _kept(section: type[Kept], raw: object) -> Kept | None:
    """Return a section if it keeps its schema."""
    try:
        return section.model_validate(raw)
    except ValidationError:
        return None
