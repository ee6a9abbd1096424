"""Recomputes a certificate's claims from its parameters: equal up to rounding."""

import math
from collections.abc import Mapping
from typing import Any, Final

from app.domain.errors import ExpungeError, MissingExtraError, VerificationError
from app.evidence.certificates.claims import (
    EXCLUDED,
    NO_GUARANTEE,
    claims_of,
    exclusion_assumptions,
)
from app.evidence.certificates.schema import AsTrained, Exclusion, Predicate
from app.planning.mechanisms.mechanism import Mechanism

RELATIVE: Final = 1e-9


def check_guarantee(
    predicate: Predicate, stated: Mapping[str, Any], mechanism: Mechanism | None
) -> str:
    """Check guarantee, accountant and assumptions; return the guarantee in a few words."""
    try:
        computed = _computed(predicate, mechanism)
    except MissingExtraError as error:
        raise VerificationError("guarantee", f"it cannot be recomputed here: {error}") from error
    except (ExpungeError, ArithmeticError, ValueError, TypeError) as error:
        reason = str(error) if isinstance(error, ExpungeError) else "it cannot be computed"
        raise VerificationError("guarantee", reason) from error
    for name, claim in computed.items():
        where = difference(stated[name], claim, name)
        if where is not None:
            raise VerificationError("guarantee", f"{where} is not what follows from the parameters")
    if isinstance(predicate, AsTrained):
        return "none: this version protects no record yet"
    if isinstance(predicate, Exclusion):
        return "exact: the records never touched the weights"
    guarantee = stated["guarantee"]
    return f"epsilon {guarantee['epsilon']:.6g} at delta {guarantee['delta']:.3g}, as recomputed"


def _computed(predicate: Predicate, mechanism: Mechanism | None) -> dict[str, Any]:
    own = predicate.backbone
    backbone = None if own is None else own.digest()
    base = None if predicate.base is None else predicate.base.digest()
    if isinstance(predicate, AsTrained):
        return {"guarantee": NO_GUARANTEE}
    if isinstance(predicate, Exclusion) or mechanism is None:
        anew = isinstance(predicate, Exclusion) and predicate.trained_anew is not None
        assumptions = exclusion_assumptions(backbone, base, trained_anew=anew)
        return {"guarantee": EXCLUDED, "assumptions": assumptions}
    mechanism.refuse_slow()
    return claims_of(
        mechanism,
        epsilon=predicate.target.epsilon,
        delta=predicate.target.delta,
        backbone=backbone,
        base=base,
    )


def difference(stated: Any, computed: Any, where: str) -> str | None:  # noqa: ANN401 - JSON
    """Return the path of the first difference between two JSON values; None if there is none.

    Floats may differ by a relative 1e-9 in either direction: a claim weaker than what follows from
    the parameters is as wrong as a stronger one. All else must be equal, including types, except
    that an integer may replace a float.
    """
    if isinstance(computed, Mapping):
        if not isinstance(stated, Mapping) or set(stated) != set(computed):
            return where
        pairs = [(f"{where}.{name}", stated[name], computed[name]) for name in computed]
    elif isinstance(computed, list | tuple):
        if not isinstance(stated, list) or len(stated) != len(computed):
            return where
        both = zip(stated, computed, strict=True)
        pairs = [(f"{where}.{index}", *each) for index, each in enumerate(both)]
    else:
        return None if _same(stated, computed) else where
    found = (difference(inner, computed_inner, place) for place, inner, computed_inner in pairs)
    return next((place for place in found if place is not None), None)


def _same(stated: Any, computed: Any) -> bool:  # noqa: ANN401
    if type(computed) is float:
        return type(stated) in (int, float) and _close(stated, computed)
    if isinstance(computed, str):
        return isinstance(stated, str) and stated == computed
    return type(stated) is type(computed) and bool(stated == computed)


def _close(stated: float, computed: float) -> bool:
    try:
        return math.isfinite(computed) and math.isclose(stated, computed, rel_tol=RELATIVE)
    except OverflowError:
        return False
