"""A certificate's parameters: all of its mechanism's, each of its type and range, and no others."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from app.certificates.schema import place
from app.domain.errors import VerificationError
from app.planning.mechanisms.catalogue import MECHANISMS
from app.planning.mechanisms.mechanism import Mechanism

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


def _refusal(*where: int | str, why: str) -> VerificationError:
    return VerificationError("statement", f"{place(('mechanism', 'parameters', *where))}: {why}")
