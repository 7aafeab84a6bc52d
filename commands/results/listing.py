"""The functions of Listing 1 of the PipePar paper (CSCWD 2021), so that programs like it run on pipecut.

    from pipecut import listing

    listing.init()
    inputs = listing.load_running_envs("scenarios/pipepar/vgg16.yaml")
    model = listing.load_model("ingest.models.vgg:vgg16")
    op_costs, op_configs = listing.profile_model(inputs, model)
    strategy = listing.trial_run(model, op_costs, op_configs)
    listing.simulate(inputs, model, strategy)

The paper leaves open what travels between these calls. Here ``inputs`` are a scenario (cluster, training, cost
model), the model is its layer graph, ``op_costs`` the numeric problem with a view on the
cost of each layer, and ``op_configs`` the parallel forms that each layer may take, which a program may restrict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipecut.commands.parts.opening import read_scenario
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import layer_graph, layers_of
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import AUTO, find_any

if TYPE_CHECKING:
    import networkx as nx

    from pipecut.commands.results.simulated import Simulated
    from pipecut.ingest.scenario.load import Scenario

Pair = tuple[Any, Any]
"""A torch module and a tuple (or mapping) of example inputs."""
Forms = Mapping[str, Sequence[int]]
"""The parallel forms that each layer may take, by its name."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One layer's times on one device of each class, in ns of one micro-batch, and its sizes in bytes."""

    forward_ns: Mapping[str, int]
    backward_ns: Mapping[str, int]
    parameter_bytes: int
    output_bytes: int
    stash_bytes: int


@dataclass(frozen=True, slots=True)
class OperatorCosts:
    """The listing's ``op_costs``: the numeric problem, and by layer name what each layer costs."""

    inputs: Scenario
    instance: Instance

    def __getitem__(self, name: str) -> OperatorCost:
        found, names = self.instance, list(self)
        if name not in names:
            raise KeyError(name)
        at = names.index(name)
        classes = [one.name for one in found.device_classes]
        return OperatorCost(
            forward_ns=dict(zip(classes, (row[at] for row in found.forward_ns), strict=True)),
            backward_ns=dict(zip(classes, (row[at] for row in found.backward_ns), strict=True)),
            parameter_bytes=found.parameter_bytes[at],
            output_bytes=found.output_bytes[at],
            stash_bytes=found.stash_bytes[at],
        )

    def __iter__(self) -> Iterator[str]:
        return (layer.name for layer in self.instance.layers)

    def __len__(self) -> int:
        return len(self.instance.layers)


@dataclass(frozen=True, slots=True)
class Strategy:
    """What ``trial_run`` finds. It unpacks into the paper's triple: time, split of the model, configuration."""

    instance: Instance
    outcome: Outcome

    @property
    def time_ns(self) -> int | None:
        """The objective: time of the slowest stage or boundary for one micro-batch (or the sum of all)."""
        return self.outcome.objective

    @property
    def split(self) -> tuple[tuple[str, ...], ...]:
        """The names of the layers of each stage."""
        stages = self.outcome.plan.stages if self.outcome.plan else ()
        return tuple(tuple(self.instance.layers[at].name for at in stage.span.layers) for stage in stages)

    @property
    def configuration(self) -> tuple[tuple[dict[str, int], tuple[int, ...]], ...]:
        """The devices of each stage (server name to count) and the parallel forms of its layers."""
        names = [server.name for server in self.instance.servers]
        stages = self.outcome.plan.stages if self.outcome.plan else ()
        return tuple(
            ({names[server]: count for server, count in stage.group.counts}, stage.forms) for stage in stages
        )

    def __iter__(self) -> Iterator[Any]:
        return iter((self.time_ns, self.split, self.configuration))


def init() -> None:
    """Check that PyTorch is installed, which ``load_model`` needs to trace a model. Raises ImportError."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise ImportError("tracing a model needs PyTorch: pip install 'pipecut[torch]'")


def load_running_envs(path: str | Path) -> Scenario:
    """Read where and how to train (cluster, training, cost model) from a scenario; its model is not used."""
    return read_scenario(path)


def load_model(model: str | Pair | Callable[[], Pair]) -> nx.DiGraph:
    """Return the layer graph of a model, in which every later call takes it.

    ``model`` is ``module:function`` or the path of a traced graph (``.json``), as in a scenario; a torch module
    with example inputs, as a pair; or a function that returns such a pair, which is called under
    ``torch.device("meta")`` so that no weight is allocated. Raises ValueError if the model cannot be traced.
    """
    if isinstance(model, str):
        from pipecut.ingest.torch.source import load_model_graph

        return load_model_graph(model)
    import torch

    from pipecut.ingest.torch.trace import trace

    if isinstance(model, tuple):
        module, inputs = model
        return trace(module, inputs, type(module).__name__)
    with torch.device("meta"):
        module, inputs = model()
    return trace(module, inputs, getattr(model, "__name__", type(module).__name__))


def profile_model(inputs: Scenario, model: nx.DiGraph) -> tuple[OperatorCosts, dict[str, tuple[int, ...]]]:
    """Return what each layer costs, and the parallel forms that each may take.

    Costs follow from the cost model; nothing is run. Take forms away from the second to forbid them.
    """
    instance = inputs.instance(model)
    return OperatorCosts(inputs, instance), {layer.name: layer.allowed_forms for layer in instance.layers}


def trial_run(
    model: nx.DiGraph,
    op_costs: OperatorCosts,
    op_configs: Forms,
    *,
    solver: str = AUTO.name,
    limits: Limits | None = None,
) -> Strategy:
    """Find the best strategy for a profiled model within the given forms, and prove it (as ``pipecut.plan`` does).

    Raises ValueError for costs of another model, for unknown layers, and for forms that a layer cannot take.
    """
    names = [layer.name for layer in layers_of(model)]
    if names != list(op_costs):
        raise ValueError("op_costs are those of another model; profile this one")
    unknown = sorted(set(op_configs) - set(names))
    if unknown:
        raise ValueError(f"op_configs: no layer {', '.join(unknown)} in the model")
    instance = op_costs.inputs.instance(_restricted(model, op_configs))
    return Strategy(instance, plan(instance, limits or Limits(), find_any(solver)))


def simulate(inputs: Scenario, model: nx.DiGraph, strategy: Strategy) -> Simulated:
    """Run the strategy of a model step by step and return what came of it (as ``pipecut.simulate`` does).

    Raises ValueError for a strategy of another model, and for one that found no plan.
    """
    from pipecut.commands.results.simulated import simulate as run

    if [layer.name for layer in layers_of(model)] != [layer.name for layer in strategy.instance.layers]:
        raise ValueError("the strategy is that of another model; run trial_run for this one")
    found = strategy.outcome
    if found.plan is None:
        raise ValueError("; ".join((f"there is no plan to run: {found.proof}", *found.notes)))
    return run(strategy.instance, found.plan, claim=found, name=inputs.name)


def _restricted(model: nx.DiGraph, configs: Forms) -> nx.DiGraph:
    """Return the model with each layer's forms cut down to the given ones. Raises ValueError for others."""
    layers = []
    for layer in layers_of(model):
        forms = tuple(configs.get(layer.name, layer.allowed_forms))
        if not forms or not set(forms) <= set(layer.allowed_forms):
            raise ValueError(f"op_configs: {layer.name}: forms {forms}, expected some of {layer.allowed_forms}")
        layers.append(replace(layer, allowed_forms=forms))
    return layer_graph(
        str(model.graph.get("name", "")), layers, model.edges(data="bytes"), model.graph["element_bytes"]
    )
