"""The papers' own bounds and other numbers by name, for callers that hold names (CLI)."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError, validate_call

from app.accounting.guarantees import Guarantee
from app.accounting.published import chien, dp_sgd_groups, full_batch, koloskova, neel
from app.accounting.quantities import QUANTITIES
from app.domain.errors import NotFoundError, ParameterError

Found = TypeVar("Found")
_ALLOWED = {
    "missing_keyword_only_argument": "given",
    "unexpected_keyword_argument": "omitted: it is not a parameter here",
}


PUBLISHED: Mapping[str, Callable[..., Guarantee]] = {
    "koloskova_theorem_4_1": koloskova.theorem_4_1,
    "koloskova_theorem_a_9": koloskova.theorem_a_9,
    "koloskova_theorem_4_2": koloskova.theorem_4_2,
    "koloskova_output_perturbation": koloskova.classical_output_perturbation,
    "chien_theorem_3_2": chien.theorem_3_2,
    "chien_corollary_3_7": chien.corollary_3_7,
    "chien_corollary_3_8": chien.corollary_3_8,
    "chien_corollary_3_10": chien.corollary_3_10,
    "chien_theorem_3_11": chien.theorem_3_11,
    "chien_corollary_j_1": chien.corollary_j_1,
    "neel_theorem_9": neel.theorem_9,
    "neel_theorem_28": neel.theorem_28,
    "chien_theorem_p_2": full_batch.chien_theorem_p_2,
    "chourasia_theorem_5_1": full_batch.chourasia_theorem_5_1,
    "dp_sgd_group_privacy": dp_sgd_groups.group_privacy,
}
"""The papers' own bounds, to compare with."""


def account(name: str, parameters: Mapping[str, Any]) -> Guarantee:
    """Return the guarantee of a bound, or raise ``NotFoundError`` or ``ParameterError``."""
    if name not in PUBLISHED:
        raise NotFoundError("mechanism", name)
    return _call(PUBLISHED[name], parameters)


def compute(name: str, parameters: Mapping[str, Any]) -> float:
    """Return one of ``quantities.QUANTITIES``, or raise ``NotFoundError`` or ``ParameterError``."""
    if name not in QUANTITIES:
        raise NotFoundError("mechanism or quantity", name)
    return _call(QUANTITIES[name], parameters)


def _call(function: Callable[..., Found], parameters: Mapping[str, Any]) -> Found:
    """Call a function with parameters that are given, known and of its types, unconverted."""
    checked = validate_call(config=ConfigDict(strict=True))(function)
    try:
        return checked(**parameters)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        allowed = _ALLOWED.get(first["type"], f"of another form ({first['msg']})")
        raise ParameterError(str(first["loc"][0]), allowed) from error
