"""Recomputes a certificate's claims from its parameters."""

from collections.abc import Mapping
from typing import Any

from app.certificates.checks.tolerance import difference
from app.certificates.claims import EXCLUDED, NO_GUARANTEE, claims_of, exclusion_assumptions
from app.certificates.schema import AsTrained, Exclusion, Predicate
from app.domain.errors import ExpungeError, MissingExtraError, VerificationError
from app.planning.mechanisms.mechanism import Mechanism


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
