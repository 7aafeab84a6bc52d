"""Prices that are kept with the instance: neither it nor a plan nor a stage changes once it is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance

_Pricing = TypeVar("_Pricing", bound=Callable[..., Any])


def once(most: int = 4096) -> Callable[[_Pricing], _Pricing]:
    """Price what is equal once: with each instance so many answers are kept."""

    def decorated(price: _Pricing) -> _Pricing:
        @wraps(price)
        def asked(instance: Instance, *of: object, **by: object) -> Any:  # noqa: ANN401
            known = instance.priced.setdefault(price, {})
            if (found := known.get(key := (*of, *by.items()))) is None:
                if len(known) >= most:
                    known.clear()
                known[key] = found = price(instance, *of, **by)
            return found

        return cast(_Pricing, asked)

    return decorated
