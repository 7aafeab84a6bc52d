"""Megatron-LM's uniform configurations: tensor-parallel degree t, pipeline degree p, data-parallel degree d.

Megatron-LM (Narayanan et al., SC'21, arXiv 2104.04473, section 3) runs one (t, p, d) with ``t * p * d`` devices
on a whole model and leaves the choice to its user, with advice: t inside a server, then p so that the model fits,
then d. Published numbers come from trying configurations, so all of them are tried here: each is priced by the
evaluator, and the best one that keeps every rule (memory, the user's demands) is returned. Readings:

- *Ranks*: tensor parallelism innermost, then data, then pipeline (Megatron's default order), so a stage has
  ``t * d`` devices that follow one another on the line. All devices are used, and t divides those of a server.
- *Stages*: Megatron divides the blocks of a Transformer evenly and refuses a p that does not divide them. Here a
  block is a run of two or more layers whose names agree up to their first number (``h.3``, ``layer2.0``); numbers
  of blocks differ by at most one, larger ones first, so that no p is lost. What stands before the first block goes
  to the first stage, what stands between blocks or behind the last one to the block before. A model without blocks
  is divided by the number of its layers in the same way.
- *Forms*: t = 1 is form 0 everywhere. For t > 1 see :mod:`formulation.costs.megatron_forms`.
- *Rules*: t must be an allowed tensor-parallel degree. Where an instance names none, a stage is one replica on all
  of its devices: then either t > 1 and d = 1, or t = 1 and form 0 on d devices, which is data parallelism.
- *Recomputation*: in all stages or in none, as far as the instance allows.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipecut.formulation.costs.megatron_forms import megatron_forms
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.evaluate import Evaluation, evaluate
from pipecut.formulation.limits import NEVER, Deadline, StoppedError, in_time
from pipecut.formulation.outcome import Limits, Outcome, Proof, begin
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode, modes
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.reference.algorithm_1 import NoFormError, best_forms
from pipecut_literature.baselines.naive_model_parallel import equal_parts
from pipecut_literature.common.priced import in_rows

NAME = "megatron"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration; ``mode`` is that of every group of its plan."""

    tensor: int
    pipeline: int
    data: int
    mode: Mode

    def __str__(self) -> str:
        rest = replace(self.mode, replicas=1).in_words(self.tensor)
        return f"t = {self.tensor}, p = {self.pipeline}, d = {self.data}{f', {rest}' if rest else ''}"


def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return the best configuration that keeps every rule (proof FEASIBLE), or none (UNKNOWN).

    Ties go to the configuration tried first. ``limits`` bind between configurations. Cost: an evaluation for each
    of at most 4 * (divisors of the number of devices)**2 configurations.
    """
    deadline, start = begin(limits).deadline, time.perf_counter()
    best: tuple[Evaluation, Plan, Configuration] | None = None
    tried = kept = 0
    for configuration in configurations(instance):
        try:
            plan = plan_of(instance, configuration, deadline)
        except StoppedError:
            break
        except NoFormError:
            tried += 1
            continue
        found = evaluate(instance, plan)
        tried, kept = tried + 1, kept + found.feasible
        if found.feasible and (best is None or _values(found) < _values(best[0])):
            best = found, plan, configuration
    seconds = time.perf_counter() - start
    note = f"{kept} of the {tried} configurations that were tried keep the rules"
    if best is None:
        return Outcome(NAME, Proof.UNKNOWN, seconds=seconds, notes=(note,))
    found, plan, configuration = best
    return Outcome(NAME, Proof.FEASIBLE, plan, found.objective, None, seconds, (str(configuration), note))


def configurations(instance: Instance) -> Iterator[Configuration]:
    """Yield every configuration that the instance's rules on sharing work allow, fewest stages first."""
    most = len(block_spans(instance))
    for pipeline in range(1, min(instance.devices, most) + 1):
        if instance.devices % pipeline:
            continue
        each = instance.devices // pipeline
        ways = modes(instance, each)
        for rest in dict.fromkeys(replace(mode, replicas=1) for mode in ways):
            alike = [mode for mode in ways if replace(mode, replicas=1) == rest]
            # Form 0 on every device costs the same however the devices are counted: the most replicas say it best.
            yield Configuration(1, pipeline, each, max(alike, key=lambda mode: mode.replicas))
            for mode in alike:
                tensor = mode.tensor_parallel_degree(each)
                if tensor > 1 and all(server.devices % tensor == 0 for server in instance.servers):
                    yield Configuration(tensor, pipeline, mode.replicas, mode)


def plan_of(instance: Instance, configuration: Configuration, deadline: Deadline = NEVER) -> Plan:
    """Return the plan of a configuration.

    Raises ValueError if it does not take all devices, and StoppedError after the deadline.
    """
    each, over = divmod(instance.devices, configuration.pipeline)
    if over or configuration.tensor * configuration.data != each:
        raise ValueError(f"{configuration} does not take {instance.devices} devices")
    stages: list[Stage] = []
    rows = in_rows(instance) if configuration.tensor == 1 else instance
    for index, span in in_time(enumerate(stage_spans(instance, configuration.pipeline)), deadline):
        group = Group.on_line(instance, index * each, each, configuration.mode)
        forms = megatron_forms(instance, span) if configuration.tensor > 1 else _by_rows(rows, group, span)
        stages.append(Stage(span, group, forms))
    return Plan(tuple(stages))


def stage_spans(instance: Instance, stages: int) -> tuple[Span, ...]:
    """Return the layers of ``stages`` stages with equally many blocks. Raises ValueError for too many stages."""
    blocks = block_spans(instance)
    if not 1 <= stages <= len(blocks):
        raise ValueError(f"{stages} stages for {len(blocks)} blocks, expected between 1 and one each")
    ends = list(itertools.accumulate(equal_parts(len(blocks), stages), initial=0))
    starts = [0, *(blocks[end].first for end in ends[1:-1]), len(instance.layers)]
    return tuple(Span(first, stop) for first, stop in itertools.pairwise(starts))


def block_spans(instance: Instance) -> tuple[Span, ...]:
    """Return the repeated blocks in execution order; every layer is one where the names show none."""
    names = [_block_name(layer.name) for layer in instance.layers]
    found: list[Span] = []
    first = 0
    for name, run in itertools.groupby(names):
        stop = first + len(list(run))
        if name is not None and stop - first > 1:
            found.append(Span(first, stop))
        first = stop
    return tuple(found) if len(found) > 1 else tuple(Span(at, at + 1) for at in range(len(names)))


def _block_name(name: str) -> str | None:
    """Return a layer's name up to its first number (``h.3`` of ``h.3.attn.proj``); None without such a number."""
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts) if at and part.isdecimal()), None)
    return None if at is None else ".".join(parts[: at + 1])


def _by_rows(rows: Instance, group: Group, span: Span) -> tuple[int, ...]:
    """Return form 0 for every layer; those that may not take it take the forms that move least."""
    return best_forms(build_tables(rows, (group,)), 0, span)


def _values(found: Evaluation) -> tuple[int, ...]:
    """Return the values of all goals in order. A plan that keeps every rule has a price."""
    return (found.objective or 0, *found.further)
