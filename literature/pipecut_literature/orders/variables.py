"""The variables of the model: when each action takes its device, and when each message departs."""

from __future__ import annotations

from dataclasses import dataclass

from ortools.sat.python import cp_model

from pipecut.formulation.timeline.durations import Contention, Transfers
from pipecut_literature.orders.problem import Key, OrderProblem, Pass

Expression = cp_model.LinearExprT


@dataclass(frozen=True, slots=True)
class OrderVariables:
    """A model for one horizon: everything must have ended ``horizon_ns`` after the start.

    ``begin[key][m]`` is when action m of a pass takes its device: from then on it fetches, or waits for the link,
    computes, and sends. ``depart[key][m]`` is when its message departs; only with contention
    are messages variables. ``in_turn``: the actions of a pass are in the order of micro-batches.
    """

    model: cp_model.CpModel
    problem: OrderProblem
    passes: dict[Key, Pass]
    horizon_ns: int
    in_turn: bool
    begin: dict[Key, list[cp_model.IntVar]]
    depart: dict[Key, list[cp_model.IntVar]]

    @classmethod
    def of(cls, problem: OrderProblem, horizon_ns: int, *, in_turn: bool) -> OrderVariables:
        """Return a model with variables and no constraints. Cost: linear in actions."""
        model, passes = cp_model.CpModel(), problem.passes()
        sends = [key for key, one in passes.items() if one.link is not None]
        contended = sends if problem.execution.contention is Contention.FIFO else []

        def times(keys: list[Key], letter: str) -> dict[Key, list[cp_model.IntVar]]:
            every = range(problem.micro_batches)
            return {
                key: [model.new_int_var(0, horizon_ns, f"{letter}{key[0]}{key[1]}{m}") for m in every]
                for key in keys
            }

        return cls(model, problem, passes, horizon_ns, in_turn, times(list(passes), ""), times(contended, "m"))

    @property
    def receives(self) -> bool:
        """Tell whether devices fetch what they need."""
        return self.problem.execution.transfers is Transfers.RECEIVER

    @property
    def sends(self) -> bool:
        """Tell whether devices stand still until what they send has arrived."""
        return self.problem.execution.transfers is Transfers.SENDER

    def stop(self, key: Key, m: int) -> Expression:
        """Return when an action has computed."""
        one = self.passes[key]
        if self.receives and one.source in self.depart:
            return self.arrival(one.source, m) + one.duration_ns
        return self.begin[key][m] + one.fetch_ns + one.duration_ns

    def freed(self, key: Key, m: int) -> Expression:
        """Return when an action frees its device."""
        if self.sends and key in self.depart:
            return self.arrival(key, m)
        return self.stop(key, m) + self.passes[key].hold_ns

    def arrival(self, key: Key, m: int) -> Expression:
        """Return when the message of an action arrives, or when it has stopped if it sends none."""
        if key in self.depart:
            return self.depart[key][m] + self.passes[key].message_ns
        return self.stop(key, m) + self.passes[key].travel_ns

    def request(self, key: Key, m: int) -> Expression:
        """Return when the link is asked for the message of an action."""
        if not self.receives:
            return self.stop(key, m)
        taker = next(one for one, other in self.passes.items() if other.source == key)
        return self.begin[taker][m]
