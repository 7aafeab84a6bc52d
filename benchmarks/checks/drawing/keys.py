"""How the keys of a scenario are drawn whose schema does not say enough: names, quantities, what excludes what.

Every other key is drawn from the schema alone (``benchmarks.checks.drawing.schema``). A rule may leave out what
the format refuses beside what is written already; it never leaves out what a method refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.checks.drawing.models import BUILD, CONFIGURATION, EXPORTED
from benchmarks.checks.drawing.schema import LEFT_OUT, Drawing, Rule, one_of, sometimes
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.training import Schedule
from pipecut.ingest.graphs.module_calls import GRAINS
from pipecut.ingest.scenario.fields import KINDS

CHUNKED, IN_GRIDS = "chunked", "in grids"
"""What a scenario may be about, as few would be by chance: groups of several stages, devices in grids."""
LIMITED = 0.3
"""In how many scenarios goals are limited, each that is to what some plan has or a little less."""
GRAPH, PROFILE = "graph.json", "profile.json"
CLASSES = ("slow", "middle", "fast")
BANDWIDTHS = tuple(f"{number} bit/s" for number in (30_000_000, 100_000_000, 1_000_000_000, 100_000_000_000))
LATENCIES = (0, 0, "7 ns", "100 us")
MEMORIES = (30_000, 100_000, 400_000, 1_600_000, 1 << 30, 1 << 30, 1 << 30)
DEGREES = ([1], [1, 2], [1, 2], [2], [1, 2, 3], [1, 2, 4], [4])
BATCHES = (1, 2, 2, 3, 4, 4, 6, 8)
MOST_DEVICES, IN_A_GRID = 5, 4
LIBRARY_DEVICE, LIBRARY_MACHINE = "t4", "dgx-h100"


def _glob(at: Drawing) -> str:
    """Return a name or a glob that matches one layer or more."""
    name = at.choice.choice(at.known["layers"])
    first = name.split(".")
    whole = [name, name, f"*{first[-1]}", f"{'.'.join(first[:-1])}.*" if len(first) > 1 else name, "*"]
    return at.choice.choice(whole)


def _globs(least: int = 1) -> Rule:
    return lambda at: list(dict.fromkeys(_glob(at) for _ in range(at.choice.randint(least, 2))))


def _apart(at: Drawing) -> list[str]:
    """Return two names or more, of different layers."""
    names: list[str] = at.known["layers"]
    return (
        at.choice.sample(names, at.choice.randint(2, min(3, len(names))))
        if len(names) > 1
        else [names[0], names[0]]
    )


def _server(at: Drawing) -> str:
    return at.choice.choice([row["name"] for row in at.known["servers"]])


def _source(name: str, value: str) -> Rule:
    """Return the rule of a place that a model may come from."""
    return lambda at: value if at.known["source"] == name else LEFT_OUT


def _of_configuration(*values: object) -> Rule:
    """Return a rule for what only a configuration understands."""
    return lambda at: at.choice.choice(values) if at.known["source"] == "transformers" else LEFT_OUT


def _cuts(at: Drawing) -> object:
    if at.known["source"] == "transformers":
        return "blocks"
    return at.choice.choice([*GRAINS, _globs()(at)]) if at.chance(at.often) else LEFT_OUT


def _runtime(at: Drawing) -> object:
    return LEFT_OUT if "cuts" in at.here else at.property("ModelSection", "model.runtime")


def _order(at: Drawing) -> object:
    return "traced" if "runtime" in at.here else at.choice.choice(["any", "traced"])


def _profile(at: Drawing) -> object:
    return LEFT_OUT if at.known["measured"] or at.known["source"] != "graph" else PROFILE


def _classes(at: Drawing) -> dict[str, Any]:
    return {name: at.defined("DeviceSection", "cluster.devices.*") for name in at.known["classes"]}


def _servers(at: Drawing) -> list[dict[str, Any]]:
    """Return one to three servers with so many devices together at most."""
    rows: list[dict[str, Any]] = []
    at.known["left"], at.known["servers"] = MOST_DEVICES, rows
    many = at.choice.choice([1, 2] if at.known["theme"] == IN_GRIDS else [1, 2, 2, 3])
    at.known["each"] = IN_A_GRID // many
    for number in range(many):
        if at.known["left"]:
            at.known["number"] = number
            rows.append(at.defined("ServerSection", "cluster.servers[]"))
    return rows


def _devices(at: Drawing) -> int:
    """Return how many devices a server has, as there are some left."""
    many = at.choice.randint(1, min(at.choice.choice([2, 3, 4]), at.known["left"]))
    many = at.known["each"] if at.known["theme"] == IN_GRIDS else many
    if at.here.get("count", 1) * many > at.known["left"]:
        at.here.pop("count")
    at.known["left"] -= at.here.get("count", 1) * many
    return many


def _count(at: Drawing) -> object:
    return at.choice.choice([1, 2]) if at.known["left"] > 1 and at.known["theme"] != IN_GRIDS else 1


def _inner_link(at: Drawing) -> object:
    link = at.defined("LinkSection", "cluster.servers[].link")
    return link if at.here["devices"] > 1 or at.chance(at.often) else LEFT_OUT


def _ends(at: Drawing) -> list[str]:
    """Return all names of servers, as links join them."""
    return [row["name"] for row in at.known["servers"]]


def _one_machine(at: Drawing) -> object:
    """Return a machine of the library with few of its devices, where some are left."""
    if not at.known["left"]:
        return LEFT_OUT
    found = at.defined("MachineSection", "cluster.machines.*")  # a bare number means all its devices
    found = (found if isinstance(found, dict) else {}) | {
        "count": 1,
        "devices": at.choice.randint(1, min(2, at.known["left"])),
    }
    return {LIBRARY_MACHINE: found}


def _mesh(at: Drawing) -> object:
    """Return a link between all servers, unless a switch is going to join them."""
    at.known["star"] = at.chance(0.2) and not at.here.get("machines")
    return LEFT_OUT if at.known["star"] else at.defined("LinkSection", "cluster.between_servers")


def _links(at: Drawing) -> object:
    """Return links to a switch, or of some pairs beside the mesh."""
    names = _ends(at)
    if at.known["star"]:
        pairs = [[name, "switch"] for name in names]
    else:
        pairs = [[one, other] for place, one in enumerate(names) for other in names[:place] if at.chance(0.4)]
    rows = [at.defined("LinkSection", "cluster.links[]") | {"between": pair} for pair in pairs]
    return rows or LEFT_OUT


def _switches(at: Drawing) -> object:
    return ["switch"] if at.known["star"] else LEFT_OUT


def _micro_batches(at: Drawing) -> object:
    batch = at.here["global_batch"]
    parts = [one for one in range(1, batch + 1) if batch % one == 0]
    if at.chance(0.75):
        return at.choice.choice(parts)
    return at.choice.choice([LEFT_OUT, "choose", at.some(parts, 2)])


def _precision(at: Drawing) -> object:
    if {"bytes_per_element", "optimizer_bytes_per_parameter"} & set(at.here):
        return LEFT_OUT
    return at.property("TrainingSection", "training.precision")


def _schedule(at: Drawing) -> object:
    if at.known["theme"] == CHUNKED:
        return at.choice.choice(["one_f_one_b", "zero_bubble_v"])
    if at.chance(0.8):
        return str(at.choice.choice([Schedule.ONE_F_ONE_B, *Schedule]))
    flushing = [str(one) for one in Schedule if one.flushes]
    return at.choice.choice(["choose", at.some(flushing, 3)])


def _schedules(training: Mapping[str, Any]) -> list[str]:
    found = training.get("schedule", "one_f_one_b")
    if found == "choose":
        return [str(one) for one in Schedule if one.flushes]
    return [found] if isinstance(found, str) else found


def _chunks(at: Drawing) -> object:
    """Return how many stages a group holds, 1 among them where another schedule has no more."""
    found = _schedules(at.here)
    if at.known["theme"] != CHUNKED and not at.chance(0.12):
        return LEFT_OUT
    if found == ["zero_bubble_v"]:
        return 2
    if "one_f_one_b" not in found:
        return 1
    return at.choice.choice([2, [1, 2], 3] if found == ["one_f_one_b"] else [[1, 2]])


def _warm_up(at: Drawing) -> object:
    chunks = at.here.get("chunks", 1)
    if "one_f_one_b" not in _schedules(at.here) or min(chunks if isinstance(chunks, list) else [chunks]) > 1:
        return "classic"
    numbers = sorted((at.choice.randint(1, 5) for _ in range(at.choice.randint(1, 4))), reverse=True)
    return at.choice.choice(["classic", "eager", "choose", numbers])


def _stage_time(at: Drawing) -> str:
    peak = at.here.get("compute", "peak") == "peak" and not at.known["measured"]
    return at.choice.choice(["add", "overlap"] if peak else ["add"])


def _unless_overlapped(at: Drawing, *values: object) -> object:
    return LEFT_OUT if at.here.get("stage_time") == "overlap" else at.choice.choice(values)


def goals_known(document: Mapping[str, Any]) -> list[str]:
    """Return the goals that a scenario's cost model and schedules know."""
    training = document["training"]
    schedules, chunks = _schedules(training), training.get("chunks", 1)
    opened = len(schedules) > 1 or isinstance(chunks, list)
    flushes = all(Schedule(one).flushes for one in schedules)
    halves = any(Schedule(one).in_halves for one in schedules)
    unknown = {Goal.PERIOD if flushes else Goal.STEP_TIME}
    if opened:
        unknown |= {Goal.BOTTLENECK, Goal.ITERATION_TIME, Goal.PERIOD}
    if document.get("cost", {}).get("combine") == "sum" or halves or chunks != 1:
        unknown.add(Goal.ITERATION_TIME)
    return [str(goal) for goal in Goal if goal not in unknown]


def _objective(at: Drawing) -> object:
    known = goals_known(at.here)
    first = at.choice.choice([one for one in known if Goal(one).timed] * 3 + known)
    if at.chance(0.7):
        return first
    others = [one for one in known if one != first]
    return [first, *at.choice.sample(others, at.choice.randint(0, min(2, len(others))))]


def _memory(at: Drawing) -> object:
    return at.choice.choice([True, False, {"margin": at.choice.choice([0, 0.05, "1/3"])}])


def _runs(at: Drawing) -> bool:
    """Tell whether a program is named that shall run the plan: it is not told of everything."""
    return "runtime" in at.open[0]["model"]


def _recompute(at: Drawing) -> object:
    if _runs(at):
        whole = at.open[0]["model"]["runtime"] == "deepspeed"
        return at.choice.choice(["never", "allowed", "always"] if whole else ["never", "blocks", "every_block"])
    return at.choice.choice(["never", "allowed", "always", "blocks", "blocks", "every_block", _globs()(at)])


def _unless_runtime(rule: Rule) -> Rule:
    return lambda at: LEFT_OUT if _runs(at) else rule(at)


def _sharded(at: Drawing) -> object:
    if _runs(at):
        divided = {"torchtitan": ["gradients", "weights"]}.get(at.open[0]["model"]["runtime"], ["optimizer"])
        return at.choice.choice([["none"], divided, ["none", *divided]])
    return at.choice.choice(
        [
            ["none", "weights"],
            ["optimizer", "gradients"],
            ["weights"],
            ["none"],
            ["none", "optimizer", "gradients", "weights"],
        ]
    )


def _often(at: Drawing) -> float:
    return 1 if at.known["theme"] == IN_GRIDS else at.often


def _splits(at: Drawing) -> object:
    found = at.property("ConstraintsSection", "constraints.splits")
    return list(dict.fromkeys([*found, "pairs"])) if at.known["theme"] == IN_GRIDS else found


def _degrees(at: Drawing) -> object:
    if at.known["theme"] == IN_GRIDS:
        return at.choice.choice([[4], [4], [1, 4], [2, 4]])
    if at.known["theme"] == CHUNKED or at.known["source"] == "transformers":
        return [1]
    return at.choice.choice(DEGREES) if at.chance(0.5) else LEFT_OUT


def _reserve(at: Drawing) -> object:
    if at.here.get("memory") is False:
        return LEFT_OUT
    row = at.choice.choice(at.known["servers"])
    size = at.open[0]["cluster"]["devices"].get(row["device"], {}).get("memory", "30000 B")
    return {row["name"]: f"{int(size.split()[0]) * at.choice.choice([10, 50, 99]) // 100} B"}


def _stage_range(at: Drawing) -> dict[str, int]:
    one, other = sorted(at.choice.choices(range(1, 5), k=2))
    return at.choice.choice([{"at_least": one}, {"at_most": other}, {"at_least": one, "at_most": other}])


def _pin(at: Drawing) -> dict[str, object]:
    devices = sorted({row["device"] for row in at.known["servers"]})
    place = at.choice.choice(["server", "device", "stage", "stage"])
    where = {"server": _server(at), "device": at.choice.choice(devices), "stage": at.choice.randint(-3, 3)}
    return {"layers": _glob(at), place: where[place]}


def _form_limit(at: Drawing) -> dict[str, object]:
    """Limit layers to forms among which each of them keeps one."""
    choosing = [row for row in at.known["rows"] if row["split"] != "follow"]
    row = at.choice.choice(choosing or at.known["rows"])
    return {
        "layers": row["name"],
        "allowed": sorted({at.choice.choice(row["allowed_forms"]), at.choice.randint(0, 33)}),
    }


def _solver(at: Drawing) -> object:
    return at.choice.choice(["auto", "auto", "auto", "cpsat", "state_dp", "line_dp", "step_dp"])


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "*.bandwidth": one_of(*BANDWIDTHS),
        "*.latency": sometimes(one_of(*LATENCIES), 0.6),
        "name": lambda at: "drawn",
        "model.build": _source("build", BUILD),
        "model.graph": _source("graph", GRAPH),
        "model.exported": _source("exported", EXPORTED),
        "model.transformers": _source("transformers", CONFIGURATION),
        "model.task": _of_configuration(LEFT_OUT, "text-generation", "features"),
        "model.sequence": _of_configuration(4, 7),
        "model.inputs": _of_configuration(LEFT_OUT, {"input_ids": [5]}),
        "model.operators": sometimes(lambda at: {"any": "linear"}, 0.03),
        "model.cuts": _cuts,
        "model.profile": sometimes(_profile),
        "model.runtime": sometimes(_runtime, 0.06),
        "model.order": _order,
        "cluster.devices": _classes,
        "cluster.devices.*.memory": lambda at: f"{at.choice.choice(MEMORIES)} B",
        "cluster.devices.*.kept": sometimes(one_of("1 kB", "20 kB")),
        "cluster.devices.*.peak": one_of("500 MFLOP/s", "1 GFLOP/s", "3 GFLOP/s"),
        "cluster.devices.*.memory_bandwidth": sometimes(one_of("700 MB/s", "2 GB/s")),
        "cluster.devices.*.host_link": sometimes(lambda at: at.defined("LinkSection", "cluster.host_link"), 0.5),
        "cluster.devices.*.price_per_hour": sometimes(one_of(0, 1, "0.0007", 2.5), 0.5),
        "cluster.servers": _servers,
        "cluster.servers[].name": lambda at: f"server{at.known['number']}",
        "cluster.servers[].count": sometimes(_count),
        "cluster.servers[].device": lambda at: at.choice.choice(at.known["classes"]),
        "cluster.servers[].devices": _devices,
        "cluster.servers[].link": _inner_link,
        "cluster.servers[].adapters": sometimes(lambda at: at.choice.randint(1, at.here["devices"])),
        "cluster.machines": sometimes(_one_machine, 0.04),
        "cluster.machines.*.name": sometimes(one_of("machine")),
        "cluster.machines.*.adapters": sometimes(one_of(1), 0.4),
        "cluster.between_servers": _mesh,
        "cluster.links": _links,
        "cluster.switches": _switches,
        "training.global_batch": one_of(*BATCHES),
        "training.micro_batches": _micro_batches,
        "training.bytes_per_element": sometimes(one_of(1, 2, 4, 8)),
        "training.optimizer_bytes_per_parameter": sometimes(one_of(0, 4, 8)),
        "training.precision": sometimes(_precision),
        **{f"training.precision.{kind}": one_of(1, 2, 4) for kind in KINDS},
        "training.schedule": sometimes(_schedule, 0.75),
        "training.chunks": _chunks,
        "training.warm_up": sometimes(_warm_up),
        "cost.roofline.largest": sometimes(one_of(1, "3/7")),
        "cost.roofline.unsized": sometimes(one_of(1, 0.4)),
        "cost.roofline.memory": sometimes(one_of(1, "1/3")),
        "cost.roofline.kernel": sometimes(one_of(0, "1 ns", "20 us")),
        "cost.roofline.update": sometimes(one_of(1, "11/5")),
        "cost.backward_factor": sometimes(one_of(2, 0, "1/3")),
        "cost.stage_time": sometimes(_stage_time, 0.6),
        "cost.inside": sometimes(lambda at: _unless_overlapped(at, "charged", "overlapped")),
        "cost.samples": sometimes(lambda at: _unless_overlapped(at, "whole", "fractions")),
        "cost.expert_load": sometimes(lambda at: _unless_overlapped(at, 1, 1.5)),
        "objective": sometimes(_objective, 0.8),
        "constraints.memory": sometimes(_memory, 0.7),
        "constraints.recompute": sometimes(_recompute),
        "constraints.sharded": sometimes(_sharded),
        "constraints.optimizer_on_host": sometimes(_unless_runtime(one_of("never", "allowed", "always"))),
        "constraints.tensor_parallel_degrees": _degrees,
        "constraints.splits": lambda at: _splits(at) if at.chance(_often(at)) else LEFT_OUT,
        "constraints.reserve": sometimes(_reserve),
        "constraints.stages": sometimes(_stage_range),
        "constraints.pin[]": _pin,
        "constraints.forms[]": _form_limit,
        "constraints.no_cut[]": _glob,
        "constraints.together[][]": _glob,
        "constraints.apart[]": _apart,
        "constraints.at_most": sometimes(lambda at: at.defined("AtMostSection", "constraints.at_most"), LIMITED),
        "search": one_of(*["paper"] * 6, "standard", "everything"),
        "solver.name": sometimes(_solver),
        "solver.time_limit": sometimes(one_of("10 s", "1 min")),
        "solver.workers": sometimes(one_of(1)),
    }
)
