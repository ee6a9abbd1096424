"""A certificate's parameters, and the noise that follows from them.

The parameters are all of the mechanism's, each of its type and range, and no others. The worker
states what its noise source counted, the verifier recomputes it, and the two must agree.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from app.accounting import precision
from app.domain.errors import VerificationError
from app.domain.schedules import to_json
from app.domain.states import Basis
from app.evidence.certificates.schema import path_of
from app.planning.mechanisms.catalogue import MECHANISMS
from app.planning.mechanisms.mechanism import Draws, Mechanism

_FORMS: Final[Mapping[str, TypeAdapter[Mechanism]]] = {
    name: TypeAdapter(mechanism) for name, mechanism in MECHANISMS.items()
}


def read_parameters(mechanism: str, parameters: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism of a certificate, or raise ``VerificationError``."""
    if mechanism not in _FORMS:
        raise VerificationError("statement", "no mechanism that this version certifies")
    try:
        read = _FORMS[mechanism].validate_json(json.dumps(parameters))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise _refusal(*first["loc"], why=first["msg"]) from error
    for name in (field.name for field in fields(read)):
        if parameters.get(name) is None and (name in parameters or name not in read.optional):
            raise _refusal(name, why="Field required")
    return read


def draws_of(mechanism: str, parameters: Mapping[str, Any], *, basis: Basis) -> list[Draws]:
    """Return what a run drew, in order; ``VerificationError`` if its parameters are malformed."""
    read = read_parameters(mechanism, to_json(parameters))
    return read.draws(first=basis is Basis.CERTIFIED_RELEASE)


def grid_of(mechanism: str, draws: list[Draws]) -> float | None:
    """Return the grid of the last of some draws; None where it depends on more than these."""
    on_grid = MECHANISMS[mechanism].on_grid
    return precision.grid_of(draws[-1].noise_std) if on_grid else None


def _refusal(*where: int | str, why: str) -> VerificationError:
    return VerificationError("statement", f"{path_of(('mechanism', 'parameters', *where))}: {why}")
