"""What follows from numbers alone, computed once for all tests of a process that ask for it.

Accounting takes most of the time of a run by hand, and most tests have the same plan.
"""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from app.domain.plan import Plan
from app.domain.policy import Policy
from app.evidence.certificates import statement, verification
from app.evidence.certificates.statement import claims_of
from app.planning import planner
from app.planning.mechanisms.catalogue import epsilon_by_step
from app.planning.quote import Quote
from app.planning.shape import ModelShape
from app.web import runs

_choose = planner._chosen_quote
_curves: dict[bytes, list[tuple[int, float]]] = {}
_chosen: dict[bytes, Quote] = {}
_claimed: dict[bytes, bytes] = {}


@contextmanager
def computed_once() -> Iterator[None]:
    """Quote and draw a run, and compute what a certificate claims, once for all that is equal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "_chosen_quote", _quote)
        patch.setattr(runs, "epsilon_by_step", _curve)
        for module in (statement, verification):
            patch.setattr(module, "claims_of", _claims)
        yield


def _quote(policy: Policy, shape: ModelShape) -> Quote:
    key = pickle.dumps((policy, shape))
    if key not in _chosen:
        quote = _choose(policy, shape)
        find: Callable[..., float] = cache(quote.guarantee.epsilon)
        object.__setattr__(quote.guarantee, "epsilon", find)
        _chosen[key] = quote
    return replace(_chosen[key], parameters=copy.deepcopy(_chosen[key].parameters))


def _curve(plan: Plan) -> list[tuple[int, float]]:
    key = pickle.dumps(plan)
    if key not in _curves:
        _curves[key] = epsilon_by_step(plan)
    return list(_curves[key])


def _claims(*arguments: object, **named: object) -> dict[str, Any]:
    key = pickle.dumps((arguments, named))
    if key not in _claimed:
        _claimed[key] = pickle.dumps(claims_of(*arguments, **named))  # type: ignore[arg-type]
    found: dict[str, Any] = pickle.loads(_claimed[key])
    return found
