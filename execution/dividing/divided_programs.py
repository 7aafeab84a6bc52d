"""The program of a divided stage on one device: its parts of tensors and weights, and exchanges between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from pipecut.execution.dividing.deciding import PRODUCTS, SPLITS, VIEWS, Lies
from pipecut.execution.dividing.moves import WHOLE, Cut, Indices
from pipecut.execution.dividing.values import OUTSIDE, StageValues, StageWork, multiplied
from pipecut.execution.errors import StagesError
from pipecut.execution.splitting.crossing import functional
from pipecut.execution.splitting.flat import Region, draw_by, is_random
from pipecut.execution.splitting.programs import (
    HandedTensor,
    Regions,
    StageProgram,
    changed_in,
    computed_again,
    handed_tensor,
)
from pipecut.ingest.operators.nodes import operator_of

_PER_CHANNEL = ("batch_norm", "instance_norm", "prelu")
"""Operators whose vectors belong to dimension 1 of their data."""
_SIZED = (*VIEWS, "expand", "broadcast_to")
"""Operators that are told the size of their result."""


@dataclass(frozen=True, slots=True)
class DividedStage:
    """``held`` are the weights of which this device has a part: dimension and indices.

    ``alike`` are those of which all devices of a replica make the same gradient. All others are whole, and the
    devices' gradients are parts of a sum.
    """

    program: StageProgram
    held: dict[str, tuple[int, Indices]]
    alike: frozenset[str]


def divided_stage(work: StageWork, own: Callable[[str], bool]) -> DividedStage:
    """Return a stage as one device runs it.

    ``own`` tells of a parameter whether nobody but the counterparts of this device in other replicas has this part
    of it. Raises StagesError. Cost: linear in the nodes.
    """
    first = _Writing(work)
    first.program()
    uses = first.values.uses
    held = {
        name: next(iter(one.parts))
        for name, one in uses.items()
        if len(one.parts) == 1 and not one.whole and not one.shared and own(name)
    }
    alike = frozenset(
        name for name, one in uses.items() if one.whole and not one.parts and not one.shared and own(name)
    )
    for name in sorted(work.effects.written):
        if name in uses and uses[name].parts and name not in held:
            raise StagesError(
                f"{work.where}: buffer {name}, which a pass changes, would be divided in several ways"
            )
    program = _Writing(work, frozenset(held), alike, first.values.asked).program()
    return DividedStage(program, held, alike)


class _Writing:
    """Writes the program of a divided stage. ``held`` and ``alike`` are those of :class:`DividedStage`.

    ``asked`` are the constants that a first writing asked for, and whether for this device's samples or for all.
    """

    def __init__(
        self,
        work: StageWork,
        held: frozenset[str] = frozenset(),
        alike: frozenset[str] = frozenset(),
        asked: Mapping[fx.Node, set[str]] | None = None,
    ) -> None:
        self._work, self._asked = work, asked or {}
        self._graph = fx.Graph()
        self._regions = Regions(self._graph)
        self.values = self._values = StageValues(self._graph, work, held, alike)
        self._seed = self._graph.call_function(torch.initial_seed, ())

    def program(self) -> StageProgram:
        """Write all nodes."""
        part, given = self._work.part, self._work.given
        marked = dict[fx.Node, int]()
        for number, node in enumerate(part.nodes):
            self._enter(self._work.flat.region[node])
            last = next(reversed(self._graph.nodes))
            self._write(number, node)
            run = self._work.again.get(self._work.flat.layer.get(node, -1))
            if run is not None and not self._values.replaced.keeps(node):
                marked |= dict.fromkeys(_behind(last), run)
        self._enter(OUTSIDE)
        self._graph.output(tuple(self._values.value(node, given) for node in part.gives))
        changed = changed_in(part, self._work.effects)
        again = computed_again(self._graph, marked, self._values.lying_in(changed))
        return StageProgram(
            module=fx.GraphModule(nn.Module(), again),
            takes=tuple(self._handed(node, given) for node in part.takes),
            inputs=tuple(self._handed(node, WHOLE) for node in part.inputs),
            gives=tuple(self._handed(node, given) for node in part.gives),
            attributes=tuple(str(node.target) for node in part.attributes),
            written=tuple(str(node.target) for node in changed),
        )

    def _enter(self, region: Region) -> None:
        self._regions.enter(region)
        self._values.region = region

    def _handed(self, node: fx.Node, lies: str) -> HandedTensor:
        template = node if lies == WHOLE else self._values.in_rows(node)
        return handed_tensor(template, node in self._work.effects.differentiable)

    def _write(self, number: int, node: fx.Node) -> None:
        effects = self._work.effects
        if node not in effects.batched:
            self._write_constant(node)
            return
        lies = self._work.decided.lies[node]
        if lies != WHOLE and self._values.replaced.keeps(node):
            raise StagesError(
                f"{self._work.where}: {node.name} changes a buffer by values of which each device has "
                "a part: keep it in a stage whose layers are not divided"
            )
        self._values.write_first(node, lies if isinstance(lies, str) else WHOLE)
        if node in self._work.decided.inner or (operator_of(node) in PRODUCTS and _begins(node, lies)):
            made = multiplied(self._values, node)
        elif isinstance(lies, Cut):
            made = self._in_columns(node, lies, number)
        else:
            made = self._plain(node, lies, number)
        self._values.keep(node, lies, made)

    def _write_constant(self, node: fx.Node) -> None:
        """Write what depends on no input where it is wanted later, or changes a buffer."""
        if is_random(node):
            raise StagesError(
                f"{self._work.where}: {node.name} draws random numbers that depend on no input, and the devices "
                "of a divided stage would draw different ones"
            )
        if self._work.effects.writes.get(node, set()) & self._values.kept:
            self._values.constant(node, WHOLE)
        for lies in sorted(self._asked.get(node, ())):
            self._values.copied(node, lies)

    def _plain(self, node: fx.Node, lies: str, number: int) -> fx.Node:
        template = node if lies == WHOLE else self._values.in_rows(node)

        def value(one: fx.Node) -> Any:  # noqa: ANN401 (a node, or a number)
            return self._operand(self._values.named(one), lies)

        args, keywords = fx.map_arg(template.args, value), fx.map_arg(template.kwargs, value)
        return self._call(node, args, keywords, lies, number)

    def _call(self, node: fx.Node, args: Any, keywords: Any, lies: Lies, number: int) -> fx.Node:  # noqa: ANN401
        target = functional(node) if self._values.replaced.operands(node) else node.target
        if not is_random(node):
            return self._graph.call_function(target, args, keywords)  # type: ignore[arg-type]
        place = 0 if lies == WHOLE else self._work.team.at + 1
        return self._graph.call_function(_drawing(target, number, place), (self._seed, *args), keywords)

    def _operand(self, node: fx.Node, lies: Lies) -> Any:  # noqa: ANN401 (a node, or a number)
        if node in self._work.effects.batched:
            return self._values.value(node, lies)
        return self._values.constant(node, lies if isinstance(lies, str) else WHOLE, shared=isinstance(lies, Cut))

    def _in_columns(self, node: fx.Node, lies: Cut, number: int) -> fx.Node:
        """Write an operator on shares of columns: sizes among its arguments become those of the share."""
        shape = getattr(node.meta["val"], "shape", None)

        def value(one: fx.Node) -> Any:  # noqa: ANN401 (a node, or a number)
            if one in self._work.effects.batched:
                return self._values.value(
                    one, self._work.decided.wants.get((node, one), self._work.decided.lies[one])
                )
            return self._weight_of(node, one, lies)

        args, keywords = fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)
        name = operator_of(node)
        if name in SPLITS and node in self._work.decided.pieces:
            sizes = [
                len(piece.part(one.shape[piece.dimension], len(self._work.team.members)).held[self._work.team.at])
                for piece, one in zip(self._work.decided.pieces[node], node.meta["val"], strict=True)
            ]
            return self._graph.call_function(
                torch.ops.aten.split_with_sizes.default, (args[0], sizes, lies.dimension)
            )
        if shape is not None and name in _SIZED:
            local = list(shape)
            local[lies.dimension] = len(self._values.held_of(node, lies, lies.dimension))
            sized = torch.ops.aten.expand if name in ("expand", "broadcast_to") else torch.ops.aten.reshape
            return self._graph.call_function(sized.default, (args[0], local))
        return self._call(node, args, keywords, lies, number)

    def _weight_of(self, node: fx.Node, one: fx.Node, lies: Cut) -> Any:  # noqa: ANN401 (a node, or a number)
        """Return this device's share of a weight or constant beside columns; all of it where it has none."""
        value, result = one.meta.get("val"), node.meta["val"].shape
        if not isinstance(value, torch.Tensor):
            return self._values.constant(one, WHOLE, shared=True)
        per_channel = operator_of(node) in _PER_CHANNEL and value.dim() == 1
        dimension = 0 if per_channel else lies.dimension - (len(result) - value.dim())
        if dimension < 0 or value.shape[dimension] != result[lies.dimension] or value.shape[dimension] == 1:
            return self._values.constant(one, WHOLE, shared=True)
        return self._values.share(one, dimension, self._values.held_of(node, lies, lies.dimension))


def _behind(node: fx.Node) -> set[fx.Node]:
    """Return the nodes that stand behind another one."""
    found = set[fx.Node]()
    while (node := node.next).op != "root":
        found.add(node)
    return found


def _begins(node: fx.Node, lies: Lies) -> bool:
    """Tell whether columns begin to be divided at a node."""
    return isinstance(lies, Cut) and lies.source == node.name


def _drawing(target: Any, number: int, place: int) -> Callable[..., Any]:  # noqa: ANN401 (an operator)
    """Return an operator that draws random numbers by its place in the stage, and by who has what it draws for."""

    def drawn(seed: int, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401 (as the operator)
        draw_by(seed, number, place)
        return target(*args, **keywords)

    return drawn
