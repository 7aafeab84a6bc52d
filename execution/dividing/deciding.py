"""How every tensor of a divided stage lies on the devices of a replica, from the forms of its layers.

A product with weights takes and makes what its form says (``formulation.costs.forms``): by rows, columns in and
whole out, or whole in and columns out. A layer that brings tensors together does so in the layout of its form,
all others keep the layout of what they work on. Where shares of columns are dealt, the first way to deal them is
taken that all operators behind accept: single columns, else whole heads, else a share of each of several pieces.

Which columns of a tensor which device has, behind every operator that works on shares of columns.

Where the columns lie behind an operator say the rules of ``ingest.operators.columns``, by which a plan's forms
were allowed; here the columns have owners.

Products with weights that can be divided by input or output features, and which dimensions those are.

``C = A x B``: A the data, B the weights, C the output. Form 1 gives each device some of the features that the
product sums over, of A and of B; the parts of C are added up, and the bias comes behind that. Form 2 gives each
device some columns of B and C.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from pipecut.execution.dividing.moves import COLUMNS, ROWS, WHOLE, Cut, dealt
from pipecut.execution.errors import StagesError
from pipecut.execution.splitting.crossing import PartNodes
from pipecut.execution.splitting.flat import Effects, FlatGraph, arguments_of
from pipecut.formulation.costs.forms import SHARDINGS
from pipecut.formulation.problem.layers import Split
from pipecut.ingest.operators.nodes import follow_columns, operator_of

Place = tuple[int, int, int]
"""Dimension, minor and count of the columns of a tensor."""


class NoSuchCutError(Exception):
    """An operator cannot work on shares that begin at ``source``; another way to deal them may do."""

    def __init__(self, source: str, reason: str) -> None:
        """Keep where the shares were dealt."""
        super().__init__(reason)
        self.source = source


def grouped(owners: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Return the owners of fewer, wider columns, or of more, narrower ones; None where one would have two."""
    if len(owners) == count:
        return tuple(owners)
    if len(owners) % count == 0:
        width = len(owners) // count
        found = [set(owners[at * width : (at + 1) * width]) for at in range(count)]
        return tuple(one.pop() for one in found) if all(len(one) == 1 for one in found) else None
    if count % len(owners) == 0:
        return tuple(owner for owner in owners for _ in range(count // len(owners)))
    return None


def cut_behind(node: fx.Node, batched: Collection[fx.Node], cuts: dict[fx.Node, Cut]) -> Cut:
    """Return how the result of an operator lies whose operands are cut so.

    Raises NoSuchCutError where the operator looks across the cut, or columns of one owner would have two.
    """
    lead = next(iter(cuts.values()))

    def find(operand: fx.Node) -> tuple[int, int, int] | None:
        return cuts[operand].columns if operand in cuts else None

    legal, place = follow_columns(node, batched, find)
    if not legal or place is None:
        raise NoSuchCutError(lead.source, f"operator {node.target} looks across the columns of its operands")
    dimension, minor, count = place
    if (together := _joined(node, cuts)) is not None:
        return Cut(dimension, minor, together, lead.source)
    owners = [grouped(cut.owners, count) for cut in cuts.values()]
    for cut, one in zip(cuts.values(), owners, strict=True):
        if one is None:
            raise NoSuchCutError(cut.source, f"operator {node.target} needs groups of columns whole on a device")
        if one != owners[0]:
            raise NoSuchCutError(cut.source, f"operator {node.target} gets columns of different devices")
    return Cut(dimension, minor, owners[0] or (), lead.source)


def _joined(node: fx.Node, cuts: dict[fx.Node, Cut]) -> tuple[int, ...] | None:
    """Return the owners behind a concatenation along the columns; None for any other operator."""
    if operator_of(node) not in ("cat", "concat", "concatenate"):
        return None
    parts = list(cuts.values())
    listed = node.args[0]
    dimension = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    rank = len(node.meta["val"].shape)
    if not isinstance(listed, (list, tuple)) or not isinstance(dimension, int):
        return None
    if parts[0].dimension != dimension % rank:
        return None
    return tuple(owner for one in listed if isinstance(one, fx.Node) for owner in cuts[one].owners)


def places_of(nodes: Sequence[fx.Node], batched: Collection[fx.Node]) -> dict[fx.Node, Place]:
    """Return where the columns of every tensor would lie if they were divided. Cost: linear in nodes."""
    found: dict[fx.Node, Place] = {}
    for node in nodes:
        if node not in batched or node.op != "call_function":
            continue
        several = node.args[0] if node.target is operator.getitem else None
        if isinstance(several, fx.Node):
            place = found.get(several)
            first = several.meta["val"][0].shape
            if place is not None and place[1] == 1 and place[2] == first[place[0]]:
                place = (place[0], 1, node.meta["val"].shape[place[0]])
        else:
            _, place = follow_columns(node, batched, found.get)
        if place is not None:
            found[node] = place
    return found


@dataclass(frozen=True, slots=True)
class Factors:
    """Names of the arguments, and dimensions: of the features in data, weights (inner, outer) and output."""

    data: str
    weight: str
    bias: str
    data_dimension: int
    inner: int
    outer: int
    output_dimension: int


_CONVOLUTION = Factors("input", "weight", "bias", 1, 1, 0, 1)
_TRANSPOSED = Factors("input", "weight", "bias", 1, 0, 1, 1)
PRODUCTS: dict[str, Factors] = {
    "linear": Factors("input", "weight", "bias", -1, 1, 0, -1),
    "addmm": Factors("mat1", "mat2", "self", -1, 0, 1, -1),
    "mm": Factors("self", "mat2", "", -1, 0, 1, -1),
    "matmul": Factors("self", "other", "", -1, 0, 1, -1),
    "embedding": Factors("indices", "weight", "", 0, 0, 1, -1),
    **{f"conv{rank}d": _CONVOLUTION for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _TRANSPOSED for rank in (1, 2, 3)},
}
"""By operator. Other products (einsum, weights on the left, grouped ones) run in form 0 only."""


Lies = Cut | str
"""How a tensor lies: ROWS, WHOLE, or its columns divided."""
SPLITS = ("chunk", "split", "split_with_sizes", "tensor_split")
VIEWS = ("view", "reshape", "_unsafe_view", "unflatten")


@dataclass(frozen=True, slots=True)
class StageForms:
    """What a plan says of a divided stage: of each of its layers the name, how it takes part, and its form.

    ``shares`` are those of the devices of a replica; ``given`` is how tensors cross the cuts of the stage.
    """

    stage: int
    layers: Mapping[int, tuple[str, Split, int]]
    shares: tuple[int, ...]
    given: str


@dataclass(slots=True)
class Decided:
    """``lies`` says of every node how its result lies, ``wants`` of an operand of a node how it takes it.

    ``inner`` are the features that a product of form 1 or 3 sums over: columns of its data, or rows of a table.
    ``pieces`` are the cuts of several results of one node.
    """

    lies: dict[fx.Node, Lies] = field(default_factory=dict)
    wants: dict[tuple[fx.Node, fx.Node], Lies] = field(default_factory=dict)
    inner: dict[fx.Node, Cut] = field(default_factory=dict)
    pieces: dict[fx.Node, list[Cut]] = field(default_factory=dict)


def decide(
    flat: FlatGraph, part: PartNodes, effects: Effects, forms: StageForms, places: Mapping[fx.Node, Place]
) -> Decided:
    """Return how the tensors of a stage lie. ``places``: where columns would lie.

    Raises StagesError, with stage and layer, where an operator cannot work in the form that the plan gives it.
    """
    chosen: dict[str, int] = {}
    while True:
        deciding = _Deciding(flat, part, effects, forms, places, chosen)
        try:
            return deciding.run()
        except NoSuchCutError as error:
            chosen[error.source] = chosen.get(error.source, 0) + 1
            if chosen[error.source] >= deciding.ways.get(error.source, 0):
                raise StagesError(f"stage {forms.stage}: layer {deciding.layer}: {error}") from error


class _Deciding:
    """One pass over the nodes of a stage, with the ways that were ``chosen`` to deal columns, by source."""

    def __init__(
        self,
        flat: FlatGraph,
        part: PartNodes,
        effects: Effects,
        forms: StageForms,
        places: Mapping[fx.Node, Place],
        chosen: Mapping[str, int],
    ) -> None:
        self._flat, self._part, self._effects = flat, part, effects
        self._forms, self._places, self._chosen = forms, places, chosen
        self._found = Decided()
        self._products: dict[int, fx.Node] = {}
        self.ways: dict[str, int] = {}
        self.layer = ""

    def run(self) -> Decided:
        """Decide of one node after the other."""
        for node in (*self._part.takes, *self._part.inputs):
            self._found.lies[node] = self._forms.given
        for node in self._part.nodes:
            layer = self._flat.layer.get(node)
            if layer is not None and self._forms.layers[layer][1] is Split.MATRIX and self._is_product(node):
                self._products[layer] = node
        for node in self._part.nodes:
            if node in self._effects.batched:
                self._decide(node)
        return self._found

    def _is_product(self, node: fx.Node) -> bool:
        product = PRODUCTS.get(operator_of(node))
        if product is None:
            return False
        given = arguments_of(node)
        data, weight = given.get(product.data), given.get(product.weight)
        batched = self._effects.batched
        return (
            isinstance(data, fx.Node)
            and isinstance(weight, fx.Node)
            and data in batched
            and weight not in batched
            and (operator_of(node) not in ("matmul", "mm", "addmm") or len(weight.meta["val"].shape) == 2)
        )

    def _decide(self, node: fx.Node) -> None:
        at = self._flat.layer.get(node)
        name, split, form = ("", Split.FOLLOW, 0) if at is None else self._forms.layers[at]
        self.layer = name or self.layer
        operands = [one for one in node.all_input_nodes if one in self._effects.batched]
        if not operands:  # it reads a buffer that the samples have changed, which is whole on every device
            self._as(node, operands, WHOLE)
        elif node.target is operator.getitem:
            self._pick(node, operands[0])
        elif split is Split.MATRIX and form and at is not None:
            self._matrix(node, operands, form, self._product(at, form))
        elif split is Split.FOLLOW:
            self._as(node, operands, self._found.lies[operands[0]])
        elif (made := SHARDINGS[split][form].made) == COLUMNS:
            self._columns(node, operands)
        else:
            # Whole at the cuts are tensors where nothing is split by samples, or there are too few to do so.
            self._as(node, operands, self._forms.given if made == ROWS else made)

    def _product(self, layer: int, form: int) -> fx.Node:
        if layer not in self._products:
            raise StagesError(
                f"stage {self._forms.stage}: layer {self._forms.layers[layer][0]} has form {form}, and its "
                "product is run in form 0 only"
            )
        return self._products[layer]

    def _pick(self, node: fx.Node, source: fx.Node) -> None:
        index = node.args[1]
        pieces = self._found.pieces.get(source)
        self._found.lies[node] = self._found.lies[source]
        if pieces is not None and isinstance(index, int):
            self._found.lies[node] = pieces[index]

    def _as(self, node: fx.Node, operands: Sequence[fx.Node], lies: Lies) -> None:
        if isinstance(lies, Cut):
            self._columns(node, operands)
            return
        self._found.lies[node] = lies
        self._found.wants.update(((node, one), lies) for one in operands)

    def _matrix(self, node: fx.Node, operands: Sequence[fx.Node], form: int, product: fx.Node) -> None:
        """Decide of a layer of form 1 to 4: before its product, the product, and behind it."""
        takes = SHARDINGS[Split.MATRIX][form].takes
        if node is product:
            self._multiply(node, form, PRODUCTS[operator_of(node)])
        elif all(one in self._found.lies and self._behind(one, product) for one in operands):
            self._as(node, operands, self._found.lies[operands[0]])
        elif takes == COLUMNS and isinstance(self._found.lies[operands[0]], Cut):
            self._columns(node, operands)
        else:
            self._as(node, operands, ROWS if takes == ROWS else WHOLE)

    def _behind(self, node: fx.Node, product: fx.Node) -> bool:
        return product in self._found.lies and self._flat.layer.get(node) == self._flat.layer[product]

    def _multiply(self, node: fx.Node, form: int, product: Factors) -> None:
        given = arguments_of(node)
        data, weight = given[product.data], given[product.weight]
        result = node.meta["val"].shape
        if int(given.get("groups") or 1) > 1:
            raise StagesError(
                f"stage {self._forms.stage}: layer {self.layer} has form {form}, and a grouped convolution is run "
                "in form 0 only"
            )
        row = SHARDINGS[Split.MATRIX][form]
        if row.made == COLUMNS:
            dimension = product.output_dimension % len(result)
            self._found.wants[node, data] = row.takes
            self._found.lies[node] = self._dealt(node.name, (dimension, 1, result[dimension]))
            return
        self._found.lies[node] = row.made
        if operator_of(node) == "embedding":
            self._found.wants[node, data] = WHOLE
            self._found.inner[node] = self._dealt(node.name, (0, 1, weight.meta["val"].shape[0]))
            return
        shape = data.meta["val"].shape
        dimension = product.data_dimension % len(shape)
        lies = self._found.lies[data]
        if not isinstance(lies, Cut) or lies.dimension != dimension:
            lies = self._dealt(node.name, (dimension, 1, shape[dimension]))
        self._found.wants[node, data] = self._found.inner[node] = lies

    def _columns(self, node: fx.Node, operands: Sequence[fx.Node]) -> None:
        """Decide of an operator that works on shares of columns."""
        tensors = [one for one in operands if hasattr(one.meta.get("val"), "shape")]
        cuts = {one: lies for one in tensors if isinstance(lies := self._found.lies[one], Cut)}
        if not cuts:
            first = next((one for one in tensors if one in self._places), None)
            if first is None:
                raise StagesError(
                    f"stage {self._forms.stage}: layer {self.layer} has form 2, and {node.target} knows no columns"
                )
            cuts[first] = self._dealt(node.name, self._places[first])
        lead = next(iter(cuts.values()))
        rank = len(node.meta["val"].shape) if hasattr(node.meta["val"], "shape") else 0
        for one in tensors:
            wanted = self._like(one, lead, rank)
            if wanted is not None and (one not in cuts or cuts[one].columns == wanted.columns):
                cuts[one] = wanted
        cuts = {one: cuts[one] for one in tensors if one in cuts}
        if operator_of(node) in SPLITS and self._split(node, tensors[0], lead):
            self._found.lies[node] = lead
        else:
            self._found.lies[node] = cut_behind(node, self._effects.batched, cuts)
        self._found.wants.update(((node, one), cuts.get(one, WHOLE)) for one in tensors)

    def _like(self, operand: fx.Node, lead: Cut, rank: int) -> Cut | None:
        """Return how another operand has to lie to go with the first one; None: whole."""
        place, shape = self._places.get(operand), operand.meta["val"].shape
        if place is not None:
            owners = grouped(lead.owners, place[2])
            return None if owners is None else Cut(place[0], place[1], owners, lead.source)
        dimension = lead.dimension - (rank - len(shape))
        if dimension < 0 or shape[dimension] < len(lead.owners) * lead.minor:
            return None
        return Cut(dimension, lead.minor, lead.owners, lead.source)

    def _split(self, node: fx.Node, data: fx.Node, cut: Cut) -> bool:
        """Note the cuts of the pieces of a split along the columns; tell whether it is one."""
        given, shape = arguments_of(node), data.meta["val"].shape
        if int(given.get("dim") or 0) % len(shape) != cut.dimension:
            return False
        if cut.minor != 1 or len(cut.owners) != shape[cut.dimension]:
            raise NoSuchCutError(cut.source, f"operator {node.target} splits shares of columns")
        sizes = [one.shape[cut.dimension] for one in node.meta["val"]]
        ends = itertools.accumulate(sizes, initial=0)
        pieces = [cut.owners[first:stop] for first, stop in itertools.pairwise(ends)]
        if any(set(piece) != set(cut.owners) for piece in pieces):
            raise NoSuchCutError(cut.source, f"operator {node.target} makes pieces of which a device has nothing")
        self._found.pieces[node] = [Cut(cut.dimension, 1, piece, cut.source) for piece in pieces]
        return True

    def _dealt(self, source: str, place: Place) -> Cut:
        """Deal columns in the way that is chosen."""
        dimension, minor, count = place
        shares = self._forms.shares
        ways = [
            owners
            for unit, pieces in itertools.product(self._units(count), self._pieces())
            if (owners := dealt(count, shares, pieces, unit)) is not None
        ]
        self.ways[source] = len(ways)
        if not ways:
            raise StagesError(
                f"stage {self._forms.stage}: layer {self.layer} has columns: {count}, and {len(shares)} devices "
                f"with shares {', '.join(map(str, shares))} would not all get some"
            )
        return Cut(dimension, minor, ways[self._chosen.get(source, 0)], source)

    def _pieces(self) -> list[int]:
        several = (one.meta["val"] for one in self._part.nodes if operator_of(one) in SPLITS)
        return sorted({1, *map(len, several)})

    def _units(self, count: int) -> list[int]:
        shapes = (one.meta["val"].shape for one in self._part.nodes if operator_of(one) in VIEWS)
        wide = {math.prod(shape[at:]) for shape in shapes for at in range(1, len(shape))}
        return sorted({1, *(one for one in wide if one and count % one == 0)})
