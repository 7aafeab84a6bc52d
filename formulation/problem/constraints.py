"""What a plan must keep beyond being a plan, as a user writes it, and what plans are judged by.

Each constraint is one file below ``formulation/constraints/``: a :class:`Requirement` with what a user writes, its
key in a scenario and what it means on an instance; its rule, how it is loosened, and its words
(``formulation.constraints.constraint``). They are found by their folder, so that nothing here or elsewhere lists
them. The family of the declarative model is the file of the same name below ``solvers/cpsat/constraints/``.

Layers are named by globs and servers by names here; ``formulation.problem.demands`` looks them up on an instance.

What may be written in a scenario, said without the library that reads it: shapes of values, and keys with help.

``ingest.scenario.schema`` makes the section ``constraints`` of the schema from these.
"""

from __future__ import annotations

import difflib
import enum
import functools
import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar

if TYPE_CHECKING:  # the words of a terminal come through here, before anything large may be imported
    from pipecut.formulation.problem.cluster import Server
    from pipecut.formulation.problem.layers import Axis, Layer


class Written(enum.Enum):
    """One word or number, as it reads in a scenario and what it becomes."""

    FLAG = "true or false"
    WHOLE = "1, 2, ..."
    INDEX = "any whole number"
    FORM = "a parallel form, 0 to 7, or a pair of forms, 8 to 33"
    NAME = "the name of a server or of a device class"
    GLOB = "layers by name, like 'features.*'"
    MEMORY = "an amount like '2 GiB'; bytes, a part of one left out"
    NEEDED = "an amount like '2 GiB' that something needs; bytes, a part of one counted whole"
    DURATION = "a time like '20 ms'; nanoseconds"
    PRICE = "a price per hour like 24.8; millionths"
    RATIO = "a number of 0 or more like 0.05 or 1/20"


@dataclass(frozen=True, slots=True)
class Listed:
    """A list with at least so many entries."""

    of: Shape
    least: int = 0


@dataclass(frozen=True, slots=True)
class ByServer:
    """Values by the names of servers."""

    of: Shape


@dataclass(frozen=True, slots=True)
class Keyed:
    """Keys with values; ``name`` is what the schema calls it."""

    name: str
    help: str
    keys: tuple[Key, ...]


Shape = Written | type[enum.StrEnum] | Listed | ByServer | Keyed | tuple["Shape", Listed | Keyed]
"""A tuple: either of these."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key: what may be written, and a line of help.

    Without a ``default`` of its own a key that is not ``required`` may be left out: a list or a section is then
    empty, anything else None. ``place`` is where messages list it among the keys beside it, by default its
    constraint's number.
    """

    name: str
    shape: Shape
    help: str
    default: Any = None
    required: bool = False
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """What names of a scenario stand for. None where a mistake elsewhere in the file leaves it open.

    ``servers``: by the name of a server, or of alike ones, their names. ``classes``: the device classes of the
    file, ``used`` those of servers; ``memory_bytes`` by server. ``others`` is all that ``constraints`` says, as it
    is written. ``hint`` returns words about the name that was meant.
    """

    servers: Mapping[str, tuple[str, ...]] | None
    classes: Iterable[str] | None = None
    used: frozenset[str] | None = None
    memory_bytes: Mapping[str, int | None] | None = None
    others: Mapping[str, Any] | None = None
    hint: Callable[[str, Iterable[str]], str] = lambda word, known: ""

    def standing_for(self, server: str) -> tuple[str, ...]:
        """Return the servers that a name stands for: of alike servers each."""
        return (self.servers or {}).get(server, (server,))


ROOM = "pipecut.formulation.constraints"


class Goal(enum.StrEnum):
    """What a plan is judged by: a whole number, the less the better (``formulation.costs.goals``)."""

    BOTTLENECK = "bottleneck"
    """The slowest stage or boundary for one micro-batch, in ns: a formula of papers, not an executed time."""
    ITERATION_TIME = "iteration_time"
    """One optimiser step with its fill and drain by a formula of papers, in ns: not an executed time either."""
    STEP_TIME = "step_time"
    """One optimiser step as executed, in ns; for schedules with a flush."""
    PERIOD = "period"
    """One micro-batch in the steady state as executed, in ns, rounded up; for schedules without a flush."""
    COST = "cost"
    """The price of the devices used, in millionths of the currency per hour."""
    MEMORY = "memory"
    """The largest peak of any stage, in bytes of one device."""
    DEVICES = "devices"
    STAGES = "stages"

    @property
    def executed(self) -> bool:
        """Whether it is a time of the timeline, which no formula of stages gives."""
        return self in (Goal.STEP_TIME, Goal.PERIOD)

    @property
    def timed(self) -> bool:
        """Whether it is a time."""
        return self.executed or self in (Goal.BOTTLENECK, Goal.ITERATION_TIME)

    @property
    def unit(self) -> str:
        """The unit of its values, as written in JSON."""
        return "ns" if self.timed else {"cost": "millionths per hour", "memory": "bytes"}.get(self, str(self))


class Recompute(enum.StrEnum):
    """Whether stages drop activations and compute them again; where allowed they choose, or also for blocks."""

    NEVER = "never"
    ALLOWED = "allowed"
    BLOCKS = "blocks"
    EVERY_BLOCK = "every_block"
    """Each by itself."""
    ALWAYS = "always"

    @property
    def by_blocks(self) -> bool:
        """Whether blocks may be computed again by themselves."""
        return self in (Recompute.BLOCKS, Recompute.EVERY_BLOCK)

    def of_stages(self, *, named: bool) -> tuple[bool | Literal["layers"], ...]:
        """Return what a stage may do as a whole (``Mode.recompute``), where layers are named or none is."""
        chosen = self is Recompute.ALLOWED or (self is Recompute.BLOCKS and not named)
        return (RECOMPUTED if named else (False, True)) if chosen else (self is Recompute.ALWAYS,)


class Placement(enum.StrEnum):
    """Which devices a stage may run on."""

    LINE = "line"
    """Devices stand in server order and a stage takes the next ones, as the field's dynamic programmes assume."""
    FREE = "free"
    """Any devices of any servers; stages may share a server, also stages that are not neighbours."""


class Requirement:
    """One thing that a user may ask of plans. Subclasses are frozen dataclasses: their fields are what is written.

    A field has the default that asks for nothing, and a name that no other constraint has. Where a constraint asks
    for nothing, none of its methods may find anything.
    """

    __slots__ = ()

    number: ClassVar[int] = 0
    """Of its rule and family (docs/formulation.md); 0: it narrows what the instance offers, and has none."""
    rule: ClassVar[str]
    """What its violations and its family are filed under."""
    key: ClassVar[Key | None] = None
    """Its key in a scenario; None: it is for Python only."""
    rank: ClassVar[int] = 0
    """Explanations rather do without limits of a lower rank."""
    asked: ClassVar[bool] = False
    """Some dynamic programmes see it: each says itself whether it does. No programme sees the others."""
    of_servers: ClassVar[bool] = False
    """It speaks of single servers, and means nothing where all devices are seen as one pool."""
    demand: ClassVar[bool] = True
    """A claim names it among what plans are limited by (``formulation.scope``); others it tells in words."""

    @property
    def limits(self) -> bool:
        """Tell whether it takes plans away by a rule of its own."""
        return any(getattr(self, one.name) != one.default for one in fields(self))  # type: ignore[arg-type]

    @property
    def rules(self) -> tuple[str, ...]:
        """What its violations are filed under."""
        return (self.rule,)

    @classmethod
    def read(cls, found: Any, names: Names) -> Mapping[str, Any]:  # noqa: ANN401 (whatever the key says)
        """Return the fields for what a scenario has at the key: by default the one field, lists made tuples.

        ``names`` looks up what a server's name stands for. None means that nothing is written.
        """
        (one,) = fields(cls)  # type: ignore[arg-type]
        return {} if found is None else {one.name: _frozen(found)}

    @classmethod
    def mistakes(cls, found: Any, names: Names) -> Iterator[tuple[tuple[str | int, ...], str]]:  # noqa: ANN401
        """Yield what is wrong with what a scenario has at the key beyond its shape: (path below it, words).

        Parts of ``found`` whose shape is wrong are None.
        """
        yield from ()

    def resolve(self, look: Lookup) -> Mapping[str, Any]:
        """Return the fields that mean something else on an instance: globs as indices of layers, and the like."""
        return {}

    def tells_apart(self, one: int, other: int) -> bool:
        """Tell whether two servers could not be exchanged in a plan that keeps this. ``self`` is resolved."""
        return False

    def numbers(self) -> Mapping[str, int]:
        """Return its numbers that searches add up, by what messages call them."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        whole = {name: max(_whole(value), default=0) for name, value in found.items()}
        return {name: number for name, number in whole.items() if number}


def at_least_one(name: str, value: int | tuple[int, ...] | None) -> None:
    """Raise ValueError for a number below 1, or a tuple with one."""
    if any(number < 1 for number in _whole(value)):
        raise ValueError(f"{name} is {value}, expected 1 or more{' each' if isinstance(value, tuple) else ''}")


def _whole(value: object) -> list[int]:
    entries = value if isinstance(value, tuple) else (value,)
    return [one for one in entries if type(one) is int]


def _frozen(value: Any) -> Any:  # noqa: ANN401 (lists of anything)
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


@functools.cache
def kinds() -> tuple[type[Requirement], ...]:
    """Return every constraint there is, by number and rule: whatever lies in the folders below the room."""
    room = importlib.import_module(ROOM)
    found: list[type[Requirement]] = []
    for folder in pkgutil.iter_modules(room.__path__, f"{ROOM}."):
        if folder.ispkg:
            for one in pkgutil.iter_modules(importlib.import_module(folder.name).__path__, f"{folder.name}."):
                defined = vars(importlib.import_module(one.name)).values()
                found += [
                    kind
                    for kind in defined
                    if isinstance(kind, type) and issubclass(kind, Requirement) and kind.__module__ == one.name
                ]
    return tuple(sorted(found, key=lambda kind: (kind.number, kind.__module__)))


Kind = TypeVar("Kind", bound=Requirement)


@dataclass(frozen=True, init=False, repr=False)
class _Stated:
    """One value of every constraint there is; their fields are attributes, so there are no slots."""

    values: tuple[Requirement, ...]

    def __init__(self, values: Iterable[Requirement] = (), **written: Any) -> None:  # noqa: ANN401
        given = {type(one): one for one in values}
        for kind in kinds():
            value = given.get(kind) or kind()
            mine = [one.name for one in fields(kind)]  # type: ignore[arg-type]
            if changed := {name: written.pop(name) for name in mine if name in written}:
                value = replace(value, **changed)  # type: ignore[type-var]
            given[kind] = value
            self.__dict__.update((name, getattr(value, name)) for name in mine)
        if unknown := [*written, *(kind.__name__ for kind in given if kind not in kinds())]:
            known = sorted(one.name for kind in kinds() for one in fields(kind))  # type: ignore[arg-type]
            raise TypeError(f"no constraint {', '.join(unknown)} below {ROOM}; known: {', '.join(known)}")
        self.__dict__.update(values=tuple(given[kind] for kind in kinds()), _by_kind=given)

    def __repr__(self) -> str:
        asked = (one for one in self.values if one != type(one)())
        return f"{type(self).__name__}({', '.join(map(repr, asked))})"

    def of(self, kind: type[Kind]) -> Kind:
        """Return the value of one constraint."""
        return self.__dict__["_by_kind"][kind]

    if TYPE_CHECKING:  # any field can be read by its name; below are those that other rooms read

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401


@dataclass(frozen=True, init=False, repr=False)
class Constraints(_Stated):
    """Which limits a plan must keep beyond being a plan. Layers are named by globs, servers by their names.

    ``Constraints(memory=True, stages_at_most=4)`` gives fields of constraints by name; what is not given asks for
    nothing. ``Constraints((one, other))`` gives whole values. ``dataclasses.replace`` changes fields. Every field
    is explained in its file below ``formulation/constraints/``. Raises TypeError for a field that none has, and
    ValueError for what no plan can keep.
    """

    if TYPE_CHECKING:
        memory: bool
        placement: Placement
        max_servers: int | None
        stages_at_least: int | None
        stages_at_most: int | None
        pins: tuple[Any, ...]
        together: tuple[tuple[str, ...], ...]
        apart: tuple[tuple[str, ...], ...]
        no_cut: tuple[str, ...]
        forms: tuple[Any, ...]
        devices_per_stage: tuple[int, ...]
        reserve: tuple[Any, ...]
        tensor_parallel_degrees: tuple[int, ...]
        recompute: Recompute
        splits: tuple[Axis, ...]
        recompute_layers: tuple[str, ...]
        sharded: tuple[Sharded, ...]
        optimizer_on_host: OnHost
        at_most: tuple[Any, ...]
        own: tuple[Any, ...]


@dataclass(frozen=True, init=False, repr=False)
class Demands(_Stated):
    """The same by index: layers in pipeline order, servers in line order; each tuple is sorted.

    ``pins``, ``together`` and ``apart`` have one entry for each that was written, in that order. ``apart`` holds
    sets of layers of which no two may meet in a stage. ``no_cut`` are the layers at which no stage starts, whether
    the user closed them or the model cannot be cut there. ``forms`` are pairs (layers, allowed forms), ``reserve``
    pairs (server, bytes). ``recompute_layers`` are those that a stage may compute again alone.
    """

    if TYPE_CHECKING:
        stages_at_least: int | None
        stages_at_most: int | None
        pins: tuple[Any, ...]
        together: tuple[tuple[int, ...], ...]
        apart: tuple[tuple[tuple[int, ...], ...], ...]
        no_cut: tuple[int, ...]
        devices_per_stage: tuple[int, ...]
        forms: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
        reserve: tuple[tuple[int, int], ...]
        recompute_layers: Collection[int]
        splits: tuple[Axis, ...]

    def named(self) -> tuple[str, ...]:
        """Return the names of the rules that limit the plans of this instance and that a claim names."""
        return tuple(one.rule for one in self.values if one.demand and not one.asked and one.limits)

    def tell_apart(self, one: int, other: int) -> bool:
        """Tell whether two servers cannot be exchanged: a pin takes one and not the other, say."""
        return any(value.tells_apart(one, other) for value in self.values)


NAMED: Final = "layers"
"""What ``Mode.recompute`` is where the layers that are named are computed again, and no others."""


RECOMPUTED: Final = (False, NAMED, True)
"""All that it can be, by how much is computed again."""


class Sharded(enum.StrEnum):
    """What the devices that hold the same weights divide among them, instead of a copy each.

    Each kind divides all that the one before it does. They are ZeRO's stages 1, 2 and 3 (arXiv 1910.02054); the
    last is fully sharded data parallelism (FSDP).
    """

    NONE = "none"
    OPTIMIZER = "optimizer"
    """The state of the optimiser."""
    GRADIENTS = "gradients"
    """Gradients and the state of the optimiser."""
    WEIGHTS = "weights"
    """Weights, gradients and the state of the optimiser."""

    @property
    def divides_optimizer(self) -> bool:
        """Tell whether each device keeps a part of the optimiser's state."""
        return self is not Sharded.NONE

    @property
    def divides_gradients(self) -> bool:
        """Tell whether each device keeps a part of the gradients."""
        return self in (Sharded.GRADIENTS, Sharded.WEIGHTS)

    @property
    def divides_weights(self) -> bool:
        """Tell whether each device keeps a part of the weights."""
        return self is Sharded.WEIGHTS


class OnHost(enum.StrEnum):
    """Whether stages keep the state of the optimiser in the memory of their hosts, and update weights there."""

    NEVER = "never"
    ALLOWED = "allowed"
    """Each stage chooses."""
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Looks globs and names up on an instance, and collects what is wrong with them.

    ``closed`` are the layers at which the model itself has no place to cut. ``where`` is always the path below
    ``constraints`` of what is looked up.
    """

    all_layers: Sequence[Layer]
    all_servers: Sequence[Server]
    closed: Sequence[int] = ()
    problems: list[str] = field(default_factory=list)

    def layers(self, where: str, *globs: str) -> tuple[int, ...]:
        """Return the layers that match one of the globs."""
        names = [layer.name for layer in self.all_layers]
        found: set[int] = set()
        for glob in globs:
            matching = {at for at, name in enumerate(names) if name == glob or fnmatchcase(name, glob)}
            if not matching:
                self._unknown(where, f"no layer matches '{glob}'", glob, names)
            found |= matching
        return tuple(sorted(found))

    def server(self, where: str, name: str) -> int:
        """Return a server by its name, -1 if there is none."""
        names = [server.name for server in self.all_servers]
        if name in names:
            return names.index(name)
        self._unknown(where, f"no server '{name}'", name, names)
        return -1

    def of_class(self, where: str, name: str) -> tuple[int, ...]:
        """Return the servers with devices of a class."""
        classes = [server.device_class.name for server in self.all_servers]
        if name not in classes:
            self._unknown(where, f"no device class '{name}'", name, classes)
        return tuple(at for at, one in enumerate(classes) if one == name)

    def _unknown(self, where: str, message: str, word: str, names: Sequence[str]) -> None:
        near = difflib.get_close_matches(word, names, n=1) or difflib.get_close_matches(
            word, names, n=1, cutoff=0.3
        )
        self.wrong(where, message + (f"; the closest is '{near[0]}'" if near else ""))

    def wrong(self, where: str, message: str) -> None:
        """Note a mistake."""
        self.problems.append(f"constraints.{where}: {message}")
