"""A measured model in PipeDream's terms: what its profiler writes, in whole ns and bytes.

It is no layer graph yet: its numbers are those of a whole minibatch on one device.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipecut.ingest.graphs.foreign import check_graph


@dataclass(frozen=True, slots=True)
class ProfiledLayer:
    """One operator of a PipeDream profile, measured for a whole minibatch on one device.

    ``activation_bytes`` is the output of the whole minibatch; ``stage`` the stage that PipeDream's optimiser
    wrote into the file, None in a bare profile.
    """

    name: str
    description: str
    forward_ns: int
    backward_ns: int
    activation_bytes: int
    parameter_bytes: int
    stage: int | None = None

    def __post_init__(self) -> None:
        for value in (self.forward_ns, self.backward_ns, self.activation_bytes, self.parameter_bytes):
            if type(value) is not int or value < 0:
                raise ValueError(f"layer {self.name}: found {value!r}, expected a whole number, 0 or more")


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A PipeDream profile: layers in the order of the file (not topological) and edges (producer, consumer).

    An edge may stand in the file twice; it does so here.
    """

    layers: tuple[ProfiledLayer, ...]
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        check_graph("profile", [layer.name for layer in self.layers], self.edges)

    def planned(self) -> ProfiledModel:
        """Return what PipeDream plans: no source called ``Input...``, then no sink called ``__getitem__...``.

        The "forward time" of an input is data loading (up to 0.6 s) and none of the planner's business.
        """
        consumed = {consumer for _, consumer in self.edges}
        inputs = self._called("Input", consumed)
        edges = [edge for edge in self.edges if inputs.isdisjoint(edge)]
        unused = self._called("__getitem__", {producer for producer, _ in edges}) - inputs
        kept = [index for index in range(len(self.layers)) if index not in inputs | unused]
        number = {old: new for new, old in enumerate(kept)}
        return ProfiledModel(
            tuple(self.layers[index] for index in kept),
            tuple((number[a], number[b]) for a, b in edges if a in number and b in number),
        )

    def _called(self, prefix: str, but: set[int]) -> set[int]:
        named = (i for i, layer in enumerate(self.layers) if layer.description.startswith(prefix))
        return {index for index in named if index not in but}
