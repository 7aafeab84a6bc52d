"""What a method makes of an instance before it starts: the same question to every solver, cheap to ask.

``accepts(instance)`` of every solver and planner answers with a :class:`Support`. It looks at what the instance
asks for and counts device groups; it builds no table and no model, and imports no OR-Tools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from formulation.limits.size import TooLargeError
from formulation.problem.instance import Instance

__all__ = ["Accepts", "Support"]


@dataclass(frozen=True, slots=True)
class Support:
    """What a method can say about an instance.

    ``proves``: a search that ends proves the optimum of the first goal, or that there is no plan, for everything
    that the instance asks. ``unseen`` names the rules that limit the instance and that the method does not see:
    its plan may break them, and its bound is that of a relaxation. ``reason`` says in words why the method cannot
    take the instance at all (empty: it can), ``too_large`` that the reason is size alone. ``bytes_needed``
    estimates its tables or its model (None: nobody counted).
    """

    proves: bool = False
    unseen: tuple[str, ...] = ()
    reason: str = ""
    too_large: bool = False
    bytes_needed: int | None = None

    @property
    def takes(self) -> bool:
        """Tell whether the method can be asked."""
        return not self.reason

    def refuse(self) -> None:
        """Raise the reason why the method cannot take the instance, if there is one.

        That is TooLargeError where the reason is size alone, else ValueError.
        """
        if self.reason:
            raise (TooLargeError if self.too_large else ValueError)(self.reason)


Accepts = Callable[[Instance], Support]


def takes_all(_: Instance) -> Support:
    """Answer for a method that takes everything, sees every rule and proves nothing."""
    return Support()


def sized(accepts: Accepts) -> Accepts:
    """Turn what ``accepts`` raises because an instance is too large into an answer."""

    @wraps(accepts)
    def answer(instance: Instance) -> Support:
        try:
            return accepts(instance)
        except TooLargeError as error:
            return Support(reason=str(error), too_large=True)

    return answer
