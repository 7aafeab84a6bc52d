"""Modes: how the devices of a stage share its work.

A mode is one value: it is listed, copied, compared, written and read whole. To add a way of sharing work, give
:class:`Mode` a field with its default, :meth:`Mode.every` its values, :func:`modes` the ones an instance allows,
:meth:`Mode.read` a line and :meth:`Mode.in_words` one; then what it costs in ``formulation.costs.times`` and
``formulation.costs.memory``, and the rule that judges it. Groups, kinds, plans, certificates and solvers carry it
along.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

from pipecut.formulation.problem.constraints import NAMED, RECOMPUTED, Constraints, OnHost, Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import PAIRS, Axis

SHARDED_IN_WORDS: Mapping[Sharded, str] = MappingProxyType(
    {
        Sharded.NONE: "nothing",
        Sharded.OPTIMIZER: "optimiser state",
        Sharded.GRADIENTS: "gradients and optimiser state",
        Sharded.WEIGHTS: "weights, gradients and optimiser state",
    }
)
"""What is divided among the devices that hold the same weights."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How so many devices hold a stage.

    They hold ``replicas`` copies of the stage, which divide every micro-batch among them (data parallelism of a
    stage); each copy is split over an equal number of devices that follow one another in server order. With
    ``recompute`` they keep only what the stage received, and run its forward pass again before the backward; with
    ``"layers"`` they do so for the layers alone that ``constraints.recompute`` names.
    ``sharded`` is what those that hold the same weights divide among them. With ``optimizer_on_host`` the state of
    the optimiser is in the memory of the host, which updates the weights. The devices of each copy may lie in a
    *grid*, in rows of ``grid`` neighbours, so that a layer can be split in one form over a row and in another over
    the rows; 1 where they do not.
    """

    replicas: int = 1
    recompute: bool | Literal["layers"] = False
    sharded: Sharded = Sharded.NONE
    optimizer_on_host: bool = False
    grid: int = 1

    def tensor_parallel_degree(self, devices: int) -> int:
        """Return how many of so many devices one replica is split over."""
        return devices // self.replicas

    @classmethod
    def every(cls, devices: int, *, grids: bool = True) -> Iterator[Mode]:
        """Yield every mode in which so many devices could hold a stage evenly, whatever an instance allows.

        Those in a grid last, and only with ``grids``.
        """
        for replicas in range(1, devices + 1):
            if devices % replicas == 0:
                degree = devices // replicas
                rows = [row for row in range(2, degree) if degree % row == 0] if grids else []
                ways = itertools.product((1, *rows), RECOMPUTED, Sharded, (False, True))
                yield from (cls(replicas, again, kept, on_host, row) for row, again, kept, on_host in ways)

    @classmethod
    def read(
        cls, raw: Mapping[str, object], devices: int | None, wrong: Callable[[str, str], None]
    ) -> Mode | None:
        """Read a mode for so many devices (None: unknown) out of plain data; what is left out has its default.

        ``wrong`` is told the key and what was expected of every mistake; then there is no mode.
        """
        replicas, recompute = raw.get("replicas", ONE_COPY.replicas), raw.get("recompute", ONE_COPY.recompute)
        on_host = raw.get("optimizer_on_host", ONE_COPY.optimizer_on_host)
        if not (isinstance(recompute, bool) or recompute == NAMED):
            wrong("recompute", f"expected true, false, {NAMED}, or pairs of a first and a last layer")
            return None
        if not isinstance(on_host, bool):
            wrong("optimizer_on_host", "expected true or false")
            return None
        sharded = raw.get("sharded", ONE_COPY.sharded)
        if not isinstance(sharded, str) or sharded not in tuple(Sharded):
            wrong("sharded", f"expected {', '.join(Sharded)}")
            return None
        if devices is None:
            return None
        if type(replicas) is not int or not 1 <= replicas <= devices:
            wrong("replicas", f"expected 1 to {devices} replicas")
            return None
        grid, degree = raw.get("grid", ONE_COPY.grid), devices // replicas
        if type(grid) is not int or not (grid == 1 or (1 < grid < degree and degree % grid == 0)):
            wrong("grid", f"expected a number of neighbours that divides the {degree} devices of a replica, or 1")
            return None
        again = recompute if isinstance(recompute, bool) else NAMED
        return cls(replicas, again, Sharded(sharded), on_host, grid)

    def fields(self) -> dict[str, Any]:
        """Return it as plain data, under the keys and in the order of plan files, certificates and reports.

        Without the grid where there is none.
        """
        found = {key: str(value) if isinstance(value, Sharded) else value for key, value in asdict(self).items()}
        if self.grid == 1:
            del found["grid"]
        return found

    def in_words(self, devices: int) -> str:
        """Say how so many devices share a stage; nothing where they hold one copy and keep everything."""
        words = []
        if self.replicas > 1:
            degree = self.tensor_parallel_degree(devices)
            words.append(f"{self.replicas} replicas of {degree} {'device' if degree == 1 else 'devices'}")
        if self.grid > 1:
            words.append(f"a grid of {self.grid} x {self.tensor_parallel_degree(devices) // self.grid} devices")
        if self.recompute:
            words.append("recomputes named layers" if self.recompute == NAMED else "recomputes activations")
        if self.sharded is not Sharded.NONE:
            words.append(f"{SHARDED_IN_WORDS[self.sharded]} sharded")
        if self.optimizer_on_host:
            words.append("optimiser on the host")
        return ", ".join(words)


ONE_COPY = Mode()
"""One replica, split over all devices; all activations are kept."""
SPLITS: Mapping[int, str] = MappingProxyType(
    {
        0: "samples",
        1: "input features",
        2: "output features",
        3: "input features, summed to rows",
        4: "output features, rows gathered",
        5: "parts of the sequence, keys and values in a ring",
        6: "experts",
        7: "parts of the vocabulary",
    }
)
"""By which dimension the devices of a replica divide a layer, by its form."""
SHORT = (
    "samples",
    "input features",
    "output features",
    "input features to rows",
    "output features of rows",
    "context",
    "experts",
    "vocabulary",
)
"""The same in a word or two, for forms that are one of a pair."""


def split_words(form: int, sizes: tuple[int, int] | None = None) -> str:
    """Say how a form divides a layer: ``output features 4 x context 2`` of a pair on a grid of these sizes.

    Without sizes ``output features x context``. A form that nobody knows is called by its number.
    """
    if form not in PAIRS:
        return SPLITS.get(form, f"form {form}")
    numbers = ("", "") if sizes is None else (f" {sizes[0]}", f" {sizes[1]}")
    return " x ".join(SHORT[one] + number for one, number in zip(PAIRS[form], numbers, strict=True))


def modes(instance: Instance, devices: int) -> tuple[Mode, ...]:
    """Return the modes in which an instance allows so many devices to hold a stage, in a fixed order.

    None where a stage may not have so many devices, no allowed degree divides them, or replicas would have to get
    equally many samples and cannot; at each degree every layer has one of its forms.
    Where memory does not count recomputing only costs time. One device has nobody to divide anything with.
    """
    constraints, sizes = instance.constraints, instance.demands.devices_per_stage
    # Sizes that no group can have leave all of them: that there is no plan is then for the solvers to prove.
    if devices not in sizes and any(size <= instance.devices for size in sizes):
        return ()
    degrees = constraints.tensor_parallel_degrees or (devices,)
    whole = constraints.recompute.of_stages(named=bool(constraints.recompute_layers))
    on_host = {OnHost.NEVER: (False,), OnHost.ALLOWED: (False, True), OnHost.ALWAYS: (True,)}
    even = instance.training.micro_batch if constraints.one_mode else 0
    forms = {(row.across, row.allowed_forms) for row in instance.layers if row.across is not None}
    return tuple(
        mode
        for mode in Mode.every(devices, grids=Axis.PAIRS in instance.demands.splits)
        if mode.tensor_parallel_degree(devices) in degrees
        and even % mode.replicas == 0
        and mode.recompute in whole
        and mode.sharded in (constraints.sharded if (mode.replicas if even else devices) > 1 else (Sharded.NONE,))
        and mode.optimizer_on_host in on_host[constraints.optimizer_on_host]
        and all(one.has_form(own, mode.tensor_parallel_degree(devices), devices, mode.grid) for one, own in forms)
    )


def in_common(constraints: Constraints, mode: Mode) -> object:
    """Return what of its mode a stage has in common with all others, as (17) ``equal_stages`` asks for it."""
    return mode if constraints.one_mode else mode.replicas if constraints.equal_stages else None


def forward_passes(instance: Instance, mode: Mode, layer: int) -> int:
    """Return how often the forward pass of a layer runs for every micro-batch: twice if it is computed again."""
    named = mode.recompute == NAMED and layer in instance.demands.recompute_layers
    return 2 if named or mode.recompute is True else 1
