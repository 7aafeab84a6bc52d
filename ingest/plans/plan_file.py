"""Plans as JSON files: what a solver found, what a paper printed, what a person wants to try.

A plan names layers and servers, never numbers them, so it can be read beside the model and survives a change of
the model's other layers. Reading is lenient about what rules judge (layers left out, devices taken twice: the
plan is read and found wrong later, with numbers) and strict about what cannot be a plan at all. The format is
described in ``docs/formats/plan.md``.

What a plan chose that its scenario leaves open: the order of the layers, of the passes, and micro-batches.

A plan file lists the layers of every stage by name. Where they are all layers of the model, each once, and every
producer still comes before its consumers, their order is as good as the traced one: the plan is one of the same
problem with its layers in that order. Where a scenario lets the number of micro-batches, the schedule, or how many
stages a group holds be chosen, a plan says it.

A plan out of plain data: names looked up, every mistake collected, nothing assumed about its quality.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.costs.prices import StageCost, updates_ns
from pipecut.formulation.evaluate import Evaluation
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import EVERY_FORM
from pipecut.formulation.problem.modes import ONE_COPY, Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.ingest.files import atomic_write, parse_json, read_limited
from pipecut.ingest.mistakes import MOST_SHOWN, MistakesError, did_you_mean, shown


def choices_to_dict(instance: Instance) -> dict[str, Any]:
    """Return what a file says of choices beside the stages: what of the training could be chosen, by its key."""
    training = instance.training
    return {name: getattr(training, name) for name in training.left_open}


def as_planned(data: object, instance: Instance) -> Instance:
    """Return the instance with what a plan's data chose; as it is, where it leaves nothing of that open."""
    return _in_its_order(data, _with_its_training(data, instance))


def _with_its_training(data: object, instance: Instance) -> Instance:
    chosen = instance.training.chosen(data) if isinstance(data, Mapping) else None
    if chosen in (None, instance.training):
        return instance
    return replace(instance, training=chosen)


def _in_its_order(data: object, instance: Instance) -> Instance:
    listed = list(_listed(data))
    index = {layer.name: at for at, layer in enumerate(instance.layers)}
    order = [index.get(name, -1) if isinstance(name, str) else -1 for name in listed]
    if order == list(range(len(order))) or sorted(order) != list(range(len(index))):
        return instance
    try:
        return replace(instance, model=instance.model.in_order(order))
    except ValueError:
        # Not an order of this model: what is wrong with the plan is said by whoever reads it.
        return instance


def _listed(data: object) -> Iterator[object]:
    stages = data.get("stages") if isinstance(data, Mapping) else None
    for stage in stages if isinstance(stages, list) else ():
        layers = stage.get("layers") if isinstance(stage, Mapping) else None
        yield from layers if isinstance(layers, list) else (None,)


CLAIM_KEYS = ("scenario", "solver", "proof", "bound", "any_order_bound", "gap", "seconds", "notes", "explanation")
"""What ``pipecut plan --json`` says beside the plan; a reader ignores it, for claims are always checked anew."""
TOP_KEYS = (
    "stages",
    "format",
    "version",
    "model",
    "schedule",
    "chunks",
    "micro_batches",
    "note",
    "objective",
    "violations",
    *CLAIM_KEYS,
)
"""Keys of a plan file; all but ``stages`` may be left out."""
NEEDED_KEYS = ("layers", "devices")
PRICES = (*StageCost.keys(), "communication_ns", "optimizer_ns")
"""Prices that a written stage carries; a reader ignores them, for prices are always computed anew."""
STAGE_KEYS = (*NEEDED_KEYS, "forms", *ONE_COPY.fields(), "grid", "warm_up", "note", *PRICES)
"""Keys of a stage; ``layers`` and ``devices`` are needed."""


def plan_of(data: object, instance: Instance) -> tuple[Plan | None, list[str]]:
    """Return the plan that plain data describes, or None, and every mistake in it."""
    reader = _Reader(instance)
    return reader.plan(data), reader.mistakes


@dataclass(slots=True)
class _Reader:
    """Looks names up in an instance and collects mistakes, each with its path in the file."""

    instance: Instance
    mistakes: list[str] = field(default_factory=list)
    layers: dict[str, int] = field(init=False)
    servers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.layers = {layer.name: index for index, layer in enumerate(self.instance.layers)}
        self.servers = {server.name: index for index, server in enumerate(self.instance.servers)}

    def plan(self, data: object) -> Plan | None:
        """Read a whole plan; None if any part of it is wrong."""
        if not isinstance(data, dict) or not isinstance(data.get("stages"), list):
            self._wrong("", 'expected {"stages": [...]}')
            return None
        self._known_keys("", data, TOP_KEYS)
        if data.get("version", 1) != 1 or data.get("format", "pipecut plan") != "pipecut plan":
            self._wrong("", "expected format 'pipecut plan', version 1")
        if not data["stages"]:
            self._wrong("stages", "expected 1 stage or more, got none")
        if len(data["stages"]) > len(self.layers):
            total = len(self.layers)
            self._wrong("stages", f"expected {total} at most, as many as layers, got {len(data['stages'])}")
            return None
        stages = [self._stage(f"stages[{index}]", raw) for index, raw in enumerate(data["stages"])]
        read = tuple(stage for stage in stages if stage is not None)
        return None if self.mistakes else Plan(read)

    def _stage(self, where: str, raw: object) -> Stage | None:
        if not isinstance(raw, dict):
            self._wrong(where, f'expected {{"layers": ..., "devices": ...}}, got {shown(raw)}')
            return None
        self._known_keys(where, raw, STAGE_KEYS)
        for key in NEEDED_KEYS:
            if key not in raw:
                self._wrong(where, f"no '{key}'")
        span = self._span(f"{where}.layers", raw["layers"]) if "layers" in raw else None
        group = self._group(where, raw) if "devices" in raw else None
        if span is None or group is None:
            return None
        forms = self._forms(f"{where}.forms", raw["forms"], span) if "forms" in raw else (0,) * len(span)
        warm_up = raw.get("warm_up")
        if warm_up is not None and (type(warm_up) is not int or warm_up < 1):
            self._wrong(
                f"{where}.warm_up", f"expected a number of forward passes, 1 or more, got {shown(warm_up)}"
            )
        runs = self._runs(f"{where}.recompute", raw.get("recompute"))
        return Stage(span, group, forms, warm_up, runs)

    def _span(self, where: str, raw: object) -> Span | None:
        """Read layers in any of the three ways: all names, first and last name, or a half-open index pair."""
        if isinstance(raw, list):
            return self._listed(where, raw)
        if isinstance(raw, dict) and set(raw) == {"first", "last"}:
            ends = [self._layer(f"{where}.{key}", raw[key]) for key in ("first", "last")]
            return self._run(where, ends[0], ends[1])
        if isinstance(raw, dict) and set(raw) == {"span"}:
            return self._indexed(f"{where}.span", raw["span"])
        self._wrong(where, 'expected names, {"first": name, "last": name} or {"span": [first, stop]}')
        return None

    def _listed(self, where: str, names: list[Any]) -> Span | None:
        indices = [self._layer(f"{where}[{at}]", name) for at, name in enumerate(names)]
        if not names:
            self._wrong(where, "expected 1 layer or more, got none")
        known = [index for index in indices if index is not None]
        if not names or len(known) < len(names):
            return None
        for at, (before, after) in enumerate(itertools.pairwise(known), start=1):
            if after != before + 1:
                expected = (
                    f"expected '{self._name(before + 1)}'" if before + 1 < len(self.layers) else "it is the last"
                )
                self._wrong(f"{where}[{at}]", f"'{names[at]}' does not follow '{names[at - 1]}'; {expected}")
                return None
        return Span(known[0], known[-1] + 1)

    def _run(self, where: str, first: int | None, last: int | None) -> Span | None:
        if first is None or last is None:
            return None
        if last < first:
            self._wrong(where, f"'{self._name(last)}' comes before '{self._name(first)}' in the model")
            return None
        return Span(first, last + 1)

    def _indexed(self, where: str, raw: object) -> Span | None:
        total = len(self.layers)
        if isinstance(raw, list) and len(raw) == 2 and all(type(end) is int for end in raw):
            first, stop = raw
            if 0 <= first < stop <= total:
                return Span(first, stop)
        self._wrong(where, f"expected [first, stop] with 0 <= first < stop <= {total}, half-open")
        return None

    def _group(self, where: str, stage: Mapping[str, object]) -> Group | None:
        """Read devices and how they share the work: one replica, and all activations kept, if nothing is said."""
        counts = self._counts(f"{where}.devices", stage["devices"])
        devices = None if counts is None else sum(count for _, count in counts)

        def wrong(key: str, expected: str) -> None:
            self._wrong(f"{where}.{key}", f"{expected}, got {shown(stage.get(key))}")

        runs = isinstance(stage.get("recompute"), list)
        mode = Mode.read({**stage, "recompute": False} if runs else stage, devices, wrong)
        return None if counts is None or mode is None else Group(counts, mode)

    def _counts(self, where: str, raw: object) -> tuple[tuple[int, int], ...] | None:
        """Read devices by server name; the group lists servers in line order."""
        if not isinstance(raw, dict) or not raw:
            self._wrong(where, f'expected {{"server name": number of devices}}, got {shown(raw)}')
            return None
        counts: dict[int, int] = {}
        for name, count in raw.items():
            if name not in self.servers:
                self._wrong(where, f"no server {shown(name)} in the cluster{did_you_mean(name, self.servers)}")
            elif type(count) is not int or not 1 <= count <= self.instance.devices:
                # That a server has fewer is for the rules to say; more than all there are is never written out.
                has = f"1 to {counted(self.instance.devices, 'device')}, as the whole cluster has"
                self._wrong(f"{where}.{name}", f"expected {has}, got {shown(count)}")
            else:
                counts[self.servers[name]] = count
        return tuple(sorted(counts.items())) if len(counts) == len(raw) else None

    def _forms(self, where: str, raw: object, span: Span) -> tuple[int, ...]:
        """Read one form for each layer; rules judge whether the layer can take it."""
        if not isinstance(raw, list) or len(raw) != len(span):
            got = f"{len(raw)}" if isinstance(raw, list) else shown(raw)
            self._wrong(where, f"expected {counted(len(span), 'form')}, one for each layer, got {got}")
            return ()
        for at, form in enumerate(raw):
            if type(form) is not int or form not in EVERY_FORM:
                self._wrong(
                    f"{where}[{at}]", f"expected a form, {EVERY_FORM[0]} to {EVERY_FORM[-1]}, got {shown(form)}"
                )
        return tuple(raw)

    def _runs(self, where: str, raw: object) -> tuple[Span, ...]:
        """Read the ends of each run of layers that is computed again alone; rules judge the runs."""
        found: list[Span | None] = []
        for at, pair in enumerate(raw if isinstance(raw, list) else ()):
            if not isinstance(pair, list) or len(pair) != 2:
                self._wrong(f"{where}[{at}]", f"expected [first layer, last layer], got {shown(pair)}")
                continue
            ends = [self._layer(f"{where}[{at}][{end}]", name) for end, name in enumerate(pair)]
            found.append(self._run(f"{where}[{at}]", ends[0], ends[1]))
        return tuple(run for run in found if run is not None)

    def _layer(self, where: str, name: object) -> int | None:
        if isinstance(name, str) and name in self.layers:
            return self.layers[name]
        if isinstance(name, str):
            few = len(self.mistakes) < MOST_SHOWN  # a hint takes a while, and only the first mistakes are shown
            near = difflib.get_close_matches(name, self.layers, n=1) if few else []
            hint = f"; did you mean '{near[0]}'?" if near else ""
            self._wrong(where, f"no layer {shown(name)} in the model{hint}")
        else:
            self._wrong(where, f"expected the name of a layer, got {shown(name)}")
        return None

    def _name(self, layer: int) -> str:
        return self.instance.layers[layer].name

    def _known_keys(self, where: str, section: Mapping[str, object], known: tuple[str, ...]) -> None:
        for key in section:
            if key not in known:
                self._wrong(where, f"unknown key {shown(key)}{did_you_mean(key, known)}")

    def _wrong(self, where: str, message: str) -> None:
        self.mistakes.append(f"{where}: {message}" if where else message)


LARGEST_FILE = 16 * 2**20
"""Bytes of the largest plan file that is read."""
FORMAT_VERSION = 1
"""The version of the format that is written, and the only one that is read."""


class PlanError(MistakesError[str]):
    """A plan file is wrong; ``str()`` gives one line for each mistake."""

    def __reduce__(self) -> tuple[type[PlanError], tuple[tuple[str, ...]]]:
        """Pickle by the mistakes, so that the error survives the way from another process."""
        return type(self), (self.mistakes,)


def plan_to_dict(instance: Instance, plan: Plan, evaluation: Evaluation) -> dict[str, Any]:
    """Return a plan with its price as plain data for JSON: times in ns, memory in bytes.

    A plan that is none (``evaluation`` without stages) comes without prices.
    """
    stages = [stage_to_dict(instance, stage) for stage in plan.stages]
    for row, stage, cost in zip(stages, plan.stages, evaluation.stages, strict=False):
        optimizer_ns = updates_ns(instance, stage)[1]
        sent = cost.communication_ns - optimizer_ns
        row.update(cost.fields(), communication_ns=sent, optimizer_ns=optimizer_ns)
    return {
        "format": "pipecut plan",
        "version": FORMAT_VERSION,
        "model": instance.name,
        **choices_to_dict(instance),
        "objective": evaluation.objective,
        "violations": [violation.message for violation in evaluation.violations],
        "stages": stages,
    }


def stage_to_dict(instance: Instance, stage: Stage) -> dict[str, Any]:
    """Return a stage by names, as plan files and certificates write it."""
    return {
        "layers": [instance.layers[layer].name for layer in stage.span.layers],
        "devices": {instance.servers[server].name: count for server, count in stage.group.counts},
        "forms": list(stage.forms),
        **stage.fields([layer.name for layer in instance.layers]),
        **({} if stage.warm_up is None else {"warm_up": stage.warm_up}),
    }


def write_plan(path: str | Path, instance: Instance, plan: Plan, evaluation: Evaluation) -> None:
    """Write a plan with its price; an existing file is replaced whole or not at all. Raises OSError."""
    atomic_write(Path(path), json.dumps(plan_to_dict(instance, plan, evaluation), indent=1) + "\n")


def read_plan(path: str | Path, instance: Instance) -> Plan:
    """Read a plan for an instance. Raises PlanError with every mistake, each with file and place."""
    source = Path(path)
    return _plan_of(source, _data_of(source), instance)


def read_plan_as_made(path: str | Path, instance: Instance) -> tuple[Instance, Plan]:
    """Read a plan; return the instance with the order of layers and the micro-batches that it chose, and the plan.

    The instance is the given one where the plan chose nothing. Raises PlanError as :func:`read_plan` does.
    """
    source = Path(path)
    data = _data_of(source)
    about = as_planned(data, instance)
    return about, _plan_of(source, data, about)


def _data_of(source: Path) -> object:
    """Return the plain data of a JSON file. Raises PlanError."""
    try:
        return parse_json(read_limited(source, LARGEST_FILE))
    except json.JSONDecodeError as error:
        raise PlanError([f"{source}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"]) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = "nested too deeply for a plan" if isinstance(error, RecursionError) else reason
        raise PlanError([f"{source}: {reason}"]) from error


def _plan_of(source: Path, data: object, instance: Instance) -> Plan:
    plan, mistakes = plan_of(data, instance)
    if plan is None or mistakes:
        raise PlanError(f"{source}: {mistake}" for mistake in mistakes)
    return plan
