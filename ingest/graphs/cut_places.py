"""Where a model may be cut: between its blocks, where a module is called, at every layer, or where a user says.

The places are a property of the model, not a wish: a layer graph carries them (``formulation.problem.layers``),
and every rule, search and proof keeps to them.

The calls of a model's modules as a tree over its layers, and the blocks in it: what a model repeats.

Blocks are calls of two layers or more beside one another whose names differ in a number at most (``layers.0``,
``layers.1``; ``layer1``, ``layer2``; one module called again and again), of which two are of one class, and each
of which computes with what the one before it made. Experts, and branches of an Inception module, are not.

Blocks are looked for from the outside. A block that is itself a chain of blocks is opened (a stage of a ResNet or
a Swin transformer), unless more tensors cross some place inside it than its own ends: no residual block is cut.

Models as programs that train pipelines see them: chains of modules, each fed by the one before.

A *block* is a numbered module of a list (``layers.17``), with all layers below it. What stands in no list
belongs to the outermost module that holds no list (``embeddings`` for ``embeddings.word``), and is a block with
it. An operation outside these (an addition between two modules) belongs to no module, and neither does a second
call of one (``dropout:1``).

torchtitan keeps some modules of a model in each stage and calls the model's own forward: what stands there outside
modules every stage would run again. DeepSpeed calls the modules of a list one after another. Megatron-LM has a
transformer of its own, with one list of equal blocks; what stands before these belongs to its first stage, what
stands behind them to the last. All three hand one tensor from stage to stage.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import networkx as nx

from pipecut.formulation.costs.amounts import counted, plural
from pipecut.formulation.costs.megatron_forms import forms_in
from pipecut.formulation.problem.constraints import Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Axis, LayerGraph, Split, layers_of
from pipecut.formulation.problem.options import Sharing
from pipecut.formulation.problem.plan import Span
from pipecut.ingest.errors import ModelError
from pipecut.ingest.graphs.module_calls import BLOCKS, MODULES, OPERATORS, ModuleCall
from pipecut.ingest.graphs.runtimes import DEEPSPEED, MEGATRON, RUNTIMES, TORCHTITAN, Runtime

_NUMBER = re.compile(r"\d+$")
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})
"""Classes that say nothing of what they hold."""


@dataclass(slots=True, eq=False)
class CallNode:
    """One call with the layers from ``first`` to ``stop``; ``children`` are the calls right inside it."""

    name: str
    operator: str
    first: int
    stop: int
    children: list[CallNode] = field(default_factory=list)

    def inside(self) -> Iterator[CallNode]:
        """Yield every call inside this one, outer ones first."""
        for child in self.children:
            yield child
            yield from child.inside()


def call_tree(graph: nx.DiGraph) -> CallNode:
    """Return the tree of a layer graph; its root holds all layers and has no name."""
    position = {name: index for index, name in enumerate(graph)}
    root = CallNode("", "", 0, len(position))
    path = [root]
    calls: Sequence[ModuleCall] = graph.graph.get("modules", ())
    for call in calls:
        node = CallNode(call.name, call.operator, position[call.first], position[call.last] + 1)
        while node.first >= path[-1].stop:
            path.pop()
        path[-1].children.append(node)
        path.append(node)
    return root


def blocks_of(graph: nx.DiGraph) -> tuple[list[CallNode], list[int]]:
    """Return the blocks of a layer graph in execution order, and where it can be cut without cutting one.

    None where it repeats nothing, or says nothing of its modules.

    Cost: layers and edges, once for each level of calls inside calls.
    """
    look, root = _Look(graph), call_tree(graph)
    found: list[CallNode] = []
    starts = set(look.starts(root, look.kinds(root), found))
    return found, sorted(starts - {0}) if found else []


class _Look:
    """Tells which calls repeat one another, by their names, their classes, and what reads what."""

    def __init__(self, graph: nx.DiGraph) -> None:
        position = {name: index for index, name in enumerate(graph)}
        self._reads = [[position[one] for one in graph.predecessors(name)] for name in graph]
        self._products = [layer.split is Split.MATRIX for layer in layers_of(graph)]
        self._crossing = _crossing(self._reads)

    def kinds(self, node: CallNode) -> frozenset[str]:
        """Return the kinds of the blocks inside a call."""
        found: frozenset[str] = frozenset()
        grouped: set[str] = set()
        for group in self._groups(node):
            grouped |= {one.name for one in group}
            inside = [(one, self.kinds(one)) for one in group]
            if any(kinds for _, kinds in inside) and all(self._clean(one, kinds) for one, kinds in inside):
                found = found.union(*(kinds for _, kinds in inside))
            else:
                found |= {_kind(one) for one in group}
        return found.union(*(self.kinds(child) for child in node.children if child.name not in grouped))

    def starts(self, node: CallNode, kinds: frozenset[str], found: list[CallNode]) -> Iterator[int]:
        """Yield where the parts of a call start: its blocks, which ``found`` takes, other calls, and products."""
        behind = node.first
        for child in node.children:
            yield from self._loose(behind, child.first)
            yield child.first
            behind = child.stop
            if _kind(child) in kinds:
                found.append(child)
            elif any(_kind(one) in kinds for one in child.inside()):
                yield from self.starts(child, kinds, found)
        yield from self._loose(behind, node.stop)

    def _groups(self, node: CallNode) -> Iterator[list[CallNode]]:
        """Yield the calls right inside a call that repeat one another."""
        series: dict[str, list[CallNode]] = {}
        for child in node.children:
            if child.stop - child.first > 1:
                series.setdefault(_NUMBER.sub("", child.name), []).append(child)
        for group in series.values():
            most = Counter(one.operator for one in group).most_common(1)[0][1]
            if most > 1 and all(self._follows(*pair) for pair in itertools.pairwise(group)):
                yield group

    def _follows(self, one: CallNode, other: CallNode) -> bool:
        """Tell whether a call computes with what another one made."""
        reached = set(range(one.first, one.stop))
        for layer in range(one.stop, other.stop):
            if not reached.isdisjoint(self._reads[layer]):
                reached.add(layer)
        return not reached.isdisjoint(range(other.first, other.stop))

    def _clean(self, node: CallNode, kinds: frozenset[str]) -> bool:
        """Tell whether no more tensors cross the places inside a call than its ends."""
        most = max(self._crossing[node.first], self._crossing[node.stop])
        return not kinds or all(self._crossing[place] <= most for place in self.starts(node, kinds, []))

    def _loose(self, first: int, stop: int) -> Iterator[int]:
        """Yield the products with weights that stand between calls, such as a head that shares the embedding."""
        for layer in range(first, stop):
            if self._products[layer] and self._crossing[layer] <= self._crossing[first]:
                yield layer


def _kind(node: CallNode) -> str:
    """Return what is alike in alike blocks: the class, or the series of names where the class says nothing."""
    return _NUMBER.sub("", node.name) if node.operator in _CONTAINERS else f"class {node.operator}"


def _crossing(reads: Sequence[Sequence[int]]) -> list[int]:
    """Return for every place how many layers before it are read behind it."""
    last = list(range(len(reads)))
    for reader, producers in enumerate(reads):
        for producer in producers:
            last[producer] = max(last[producer], reader)
    change = [0] * (len(reads) + 2)
    for producer, reader in enumerate(last):
        change[producer + 1] += 1
        change[reader + 1] -= 1
    return list(itertools.accumulate(change))


Cuts = str | Sequence[str]
"""One of the words, or globs."""


def cut_at(graph: nx.DiGraph, cuts: Cuts | None) -> nx.DiGraph:
    """Return a layer graph that can be cut at the places that are asked for, and says so in a note.

    ``blocks``: where a repeated block starts or ends, and where modules beside them are called; every layer, if
    the model repeats nothing. ``modules``: where a module is called. ``operators``: every layer. Globs: where what
    they match starts, of calls inside one another the outermost. None: the graph's own places, else ``blocks``.
    Raises ModelError naming every glob that matches nothing.
    """
    if cuts is None and "cuts" in graph.graph:
        return graph
    chosen, calls = graph.copy(), bool(graph.graph.get("modules"))
    chosen.graph.pop("cuts", None)
    if cuts == OPERATORS or (cuts is None and not calls):
        return chosen
    places, note = _blocks(graph) if cuts in (None, BLOCKS) else (_others(graph, cuts or ()), "")
    if places is not None:
        names = list(graph)
        chosen.graph["cuts"] = tuple(names[place] for place in sorted(set(places) - {0}))
    if note:
        chosen.graph["notes"] = (*graph.graph.get("notes", ()), note)
    return chosen


def _blocks(graph: nx.DiGraph) -> tuple[Sequence[int] | None, str]:
    """Return where blocks start and end, and a note; no places where there is no block."""
    every = len(graph) - 1
    found, starts = blocks_of(graph)
    if not found:
        return None, f"the model repeats no block, so a stage may start at any layer: {_places(every)}"
    kinds = Counter(one.operator for one in found)
    listed = " and ".join(f"{number} {kind}" for kind, number in kinds.items())
    note = f"{_places(len(starts))}, between blocks ({listed}); model.cuts: operators would allow {every}"
    return starts, note


def _places(number: int) -> str:
    return f"{number} {plural(number, 'cut point')}"


def _others(graph: nx.DiGraph, cuts: Cuts) -> list[int]:
    calls = list(call_tree(graph).inside())
    if cuts == MODULES:
        return [call.first for call in calls]
    globs = [cuts] if isinstance(cuts, str) else list(cuts)
    names = [*graph, *(call.name for call in calls)]
    found: list[int] = []
    problems: list[str] = []
    for index, glob in enumerate(globs):
        matching = list(_matching(graph, calls, glob))
        if not matching:
            near = difflib.get_close_matches(glob, names, n=1, cutoff=0.3)
            hint = f"; the closest is '{near[0]}'" if near else ""
            problems.append(f"model.cuts[{index}]: no layer or module matches '{glob}'{hint}")
        found += matching
    if problems:
        raise ModelError("; ".join(problems))
    return found


def _matching(graph: nx.DiGraph, calls: Sequence[CallNode], glob: str) -> Iterator[int]:
    """Yield where the outermost calls, and the layers outside them, start whose names match."""
    behind = 0
    covered: set[int] = set()
    for call in calls:
        if call.first >= behind and _is(call.name, glob):
            yield call.first
            behind = call.stop
            covered.update(range(call.first, call.stop))
    yield from (at for at, name in enumerate(graph) if at not in covered and _is(name, glob))


def _is(name: str, glob: str) -> bool:
    return name == glob or fnmatchcase(name, glob)


WAY_OUT = "pipecut run and export --to script cut anywhere: leave model.runtime out for them"


@dataclass(frozen=True, slots=True)
class Chain:
    """The layers of a model as blocks: ``blocks`` names that of every layer, ``numbered`` those that are in lists.

    ``loose`` are the layers that belong to no module; each has its own name as block.
    """

    model: LayerGraph
    blocks: tuple[str, ...]
    numbered: frozenset[str]
    loose: frozenset[int]

    @staticmethod
    def of(model: LayerGraph) -> Chain:
        """Return the chain of a model. Cost: linear in the lengths of the names."""
        names = [layer.name for layer in model.layers]
        found = {name: _numbered_block(name) for name in names}
        numbered = frozenset(block for block in found.values() if block)
        lists = {prefix for block in numbered for prefix in _prefixes(block)}
        blocks = [
            found[name] or next((one for one in _prefixes(name) if one not in lists), name) for name in names
        ]
        loose = (
            at
            for at, (layer, block) in enumerate(zip(model.layers, blocks, strict=True))
            if block == layer.name and block not in numbered and _is_no_module(layer.name, layer.operator)
        )
        return Chain(model, tuple(blocks), numbered, frozenset(loose))

    def name(self, layer: int) -> str:
        """Return the name of a layer."""
        return self.model.layers[layer].name

    def is_numbered(self, layer: int) -> bool:
        """Tell whether a layer is in a numbered block."""
        return self.blocks[layer] in self.numbered

    def segments(self) -> tuple[Span, ...]:
        """Return the runs of layers inside which programs divide layers in pairs: blocks, and what is between."""
        keys = [block if block in self.numbered else "" for block in self.blocks]
        starts = [at for at in range(len(keys)) if at == 0 or keys[at] != keys[at - 1]]
        return tuple(Span(*ends) for ends in itertools.pairwise((*starts, len(keys))))

    def of_blocks(self, span: Span) -> tuple[Span, ...]:
        """Return the numbered blocks of a stage: what programs compute again block by block."""
        return tuple(one for one in self.segments() if one.first in span and self.is_numbered(one.first))

    def problem(self, program: Runtime) -> str:
        """Say why a program can run no pipeline of this model; nothing if it can."""
        if program is MEGATRON:
            return self._beside_one_list()
        if not self.loose:
            return ""
        row = self.model.layers[min(self.loose)]
        base, name = row.name.partition(":")[0], row.name
        what = "an operation" if base.rpartition(".")[2] == row.operator else f"a second call of {base}"
        does = "every stage would run again" if program is TORCHTITAN else "no list can name"
        return f"{name} is {what} outside all modules of the chain, which {does}: put it into a module"

    def _beside_one_list(self) -> str:
        numbered = [at for at in range(len(self.blocks)) if self.is_numbered(at)]
        lists = sorted({self.blocks[at].rpartition(".")[0] for at in numbered})
        if len(lists) != 1:
            return (
                f"Megatron-LM takes one list of equal blocks; the model's lists are: {', '.join(lists) or 'none'}"
            )
        between = sorted(set(range(numbered[0], numbered[-1])).difference(numbered))
        if between:
            return f"in Megatron-LM nothing stands between two blocks, as {self.name(between[0])} does"
        heavy = {self.blocks[at] for at in numbered if self.model.layers[at].parameter_bytes}
        light = next((self.blocks[at] for at in numbered if self.blocks[at] not in heavy), None)
        return "" if light is None else f"block {light} has no weights, and Megatron-LM's blocks are transformers"

    def closed(self, at: int, program: Runtime) -> str:
        """Say why a program can start no stage at a layer; nothing if it can."""
        name, block, others = self.name(at), self.blocks[at], set(self.blocks[:at]).intersection(self.blocks[at:])
        if others:
            inside = block if block in others else min(others)
            return f"starts inside block {inside}, at layer {name}: {program.name} cuts between blocks only"
        if program is MEGATRON and not self.is_numbered(at) and not self.is_numbered(at - 1):
            last = any(map(self.is_numbered, range(at)))
            ends = "the first stage has all that stands before the blocks, and the last one all behind them"
            return f"starts {'behind' if last else 'before'} the blocks, at {name}: in Megatron-LM {ends}"
        return self._handed_on(at, program) or self._shared(at, program)

    def _handed_on(self, at: int, program: Runtime) -> str:
        """Say what crosses a cut beside the one tensor that the module before it returns."""
        name = self.name(at)
        readers: dict[int, int] = {}
        for one, other, _ in self.model.edges:
            if one < at <= other:
                readers.setdefault(one, other)
        if len(readers) != 1:
            listed = ", ".join(f"{self.name(one)} (for {self.name(other)})" for one, other in readers.items())
            some = f"{len(readers)} tensors cross the cut before {name}: {listed}"
            found = some if readers else f"no tensor crosses the cut before {name}"
            return f"{found}; {program.name} hands on one, that of the module before"
        (giver,) = readers
        first_block = program is MEGATRON and not self.is_numbered(giver)
        if self.blocks[giver] != self.blocks[at - 1] and not first_block:
            return (
                f"the tensor of {self.name(giver)} crosses the cut before {name}; {program.name} hands on that of"
                f" the module before, {self.blocks[at - 1]}"
            )
        fed = {other for _, other, _ in self.model.edges}
        alone = next((one for one in range(at, len(self.blocks)) if one not in fed), None)
        if alone is None:
            return ""
        read = f"{self.name(alone)}, behind the cut before {name}, reads inputs of the model"
        return f"{read}, which {program.name} gives the first stage"

    def _shared(self, at: int, program: Runtime) -> str:
        """Say which weights layers on both sides of a cut share, where a program has them in one stage only."""
        for tie in self.model.ties:
            first, *_, last = tie.layers
            inner = any(map(self.is_numbered, tie.layers)) or len(tie.layers) > 2
            if first < at <= last and (program is not MEGATRON or inner):
                return (
                    f"{self.name(last)} shares weights with {self.name(first)} across the cut before"
                    f" {self.name(at)}, which {program.name} does not run"
                )
        return ""

    def places(self) -> list[int]:
        """Return the layers, beside the first, at which a module starts and ends no block that has begun."""
        last = {block: at for at, block in enumerate(self.blocks)}
        reach, found, begun = -1, [], False
        for at, block in enumerate(self.blocks):
            module = at not in self.loose
            if reach < at and module and begun:  # a stage needs a module of its own, the first one too
                found.append(at)
            begun |= module
            reach = max(reach, last[block])
        return found


def cut_for(graph: nx.DiGraph, runtime: str) -> nx.DiGraph:
    """Return a layer graph that can be cut where a program can start a stage, and nowhere else.

    A note says how many places that closes, and why the first is. Raises ModelError for a model of which the
    program runs no pipeline.
    """
    names, program = list(graph), RUNTIMES[runtime]
    chain = Chain.of(LayerGraph.of(graph))
    if problem := chain.problem(program):
        closed = (chain.closed(at, program) for at in chain.places() if program is not MEGATRON)
        more = next(filter(None, closed), "")
        raise ModelError(f"model.runtime: {'; and '.join(filter(None, (problem, more)))}. {WAY_OUT}")
    every = program is not MEGATRON
    places = [at for at in chain.places() if every or chain.is_numbered(at) or chain.is_numbered(at - 1)]
    reasons = {at: reason for at in places if (reason := chain.closed(at, program))}
    if reasons and len(reasons) == len(places):
        raise ModelError(
            f"model.runtime: {program.name} can cut this model nowhere: {next(iter(reasons.values()))}. {WAY_OUT}"
        )
    chosen = graph.copy()
    chosen.graph["cuts"] = tuple(names[place] for place in places if place not in reasons)
    if reasons:
        some = f"{len(reasons)} of {counted(len(places), 'place')} between modules closed to {program.name}"
        note = f"model.runtime: {some}, the first since {next(iter(reasons.values()))}"
        chosen.graph["notes"] = (*graph.graph.get("notes", ()), note)
    return chosen


def divided_by(instance: Instance, runtime: str) -> Instance:
    """Return an instance in which stages divide their layers as a program does, and in no other way.

    Replicas of one device have samples (form 0). Of several, each layer has the one form that the program gives
    it; with sequence parallelism where ``constraints.splits`` names ``sequence``. Which degrees there are says
    the user; without a word up to the devices of a server. DeepSpeed divides no layers. Raises ValueError for an
    order of passes, formats or shares that the program does not have.
    """
    asked, program = instance.constraints, RUNTIMES[runtime]
    if problem := next(filter(None, map(program.problem, instance.training.choices)), ""):
        raise ValueError(f"model.runtime: {problem}")
    if instance.cost.sharing is not Sharing.EQUAL:
        raise ValueError(f"model.runtime: {program.name} gives all devices equal shares: leave cost.sharing out")
    most = max(server.devices for server in instance.servers) if program is not DEEPSPEED else 1
    degrees = asked.tensor_parallel_degrees or tuple(range(1, most + 1))
    wide = with_vocabulary(instance) if max(degrees) > 1 else instance
    forms = forms_of(wide, sequence=Axis.SEQUENCE in asked.splits)
    rows = (
        layer if layer.split == "follow" else replace(layer, allowed_forms=(form,))
        for layer, form in zip(instance.model.layers, forms, strict=True)
    )
    limits = replace(asked, tensor_parallel_degrees=degrees, splits=wide.constraints.splits)
    if asked.recompute.by_blocks:
        limits = replace(limits, **_again_in_blocks(instance, program))
    return replace(instance, model=replace(instance.model, layers=tuple(rows)), constraints=limits)


def _again_in_blocks(instance: Instance, program: Runtime) -> Mapping[str, Any]:
    """Return what is computed again of which layers: all numbered blocks; nothing if not all are atoms."""
    chain, atoms = Chain.of(instance.model), {Span(*ends) for ends in CutSpace.of(instance).atoms()}
    if atoms.issuperset(chain.of_blocks(Span(0, len(instance.layers)))):
        lists = {one.rpartition(".")[0] for one in chain.numbered}
        return {"recompute_layers": tuple(f"{one}.[0-9]*".lstrip(".") for one in sorted(lists))}
    if instance.constraints.recompute is Recompute.EVERY_BLOCK:
        raise ValueError(f"model.runtime: {program.name} can start no stage between all blocks; write never")
    return {"recompute": Recompute.NEVER}


def with_vocabulary(instance: Instance) -> Instance:
    """Return an instance in which a loss may work on parts of the vocabulary, as it does in these programs."""
    splits = tuple(one for one in Axis if one in (*instance.constraints.splits, Axis.VOCABULARY))
    return replace(instance, constraints=replace(instance.constraints, splits=splits))


def forms_of(instance: Instance, *, sequence: bool) -> tuple[int, ...]:
    """Return the form in which torchtitan and Megatron-LM divide each layer over the devices of a replica.

    They do so whatever ``constraints.forms`` of a user says.
    """
    free = replace(instance, constraints=replace(instance.constraints, forms=()))
    return forms_in(free, Chain.of(instance.model).segments(), sequence=sequence)


def _numbered_block(name: str) -> str:
    """Return a layer's name up to the first number, nothing if there is none."""
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
    return "" if at is None else ".".join(parts[: at + 1])


def _prefixes(name: str) -> list[str]:
    """Return the modules that hold a layer, outermost first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _is_no_module(name: str, operator: str) -> bool:
    """Tell whether a layer is an operation that no module stands for, or a second call of a module."""
    base, _, call = name.rpartition(".")[2].partition(":")
    return base == operator or bool(call)
