"""A plan out of plain data: names looked up, every mistake collected, nothing assumed about its quality."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from formulation.costs.prices import StageCost
from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.layers import EVERY_FORM
from formulation.problem.modes import ONE_COPY, Mode
from formulation.problem.plan import Plan, Span, Stage
from ingest.mistakes import MOST_SHOWN, did_you_mean, shown

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
            self._wrong("stages", f"expected at most {total} stages, as many as layers, got {len(data['stages'])}")
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
                has = f"1 to {self.instance.devices} devices, as the whole cluster has"
                self._wrong(f"{where}.{name}", f"expected {has}, got {shown(count)}")
            else:
                counts[self.servers[name]] = count
        return tuple(sorted(counts.items())) if len(counts) == len(raw) else None

    def _forms(self, where: str, raw: object, span: Span) -> tuple[int, ...]:
        """Read one form for each layer; rules judge whether the layer can take it."""
        if not isinstance(raw, list) or len(raw) != len(span):
            got = f"{len(raw)}" if isinstance(raw, list) else shown(raw)
            self._wrong(where, f"expected {len(span)} forms, one for each layer, got {got}")
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
