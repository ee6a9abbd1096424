"""The guarantee that a certificate states, computed again from what it says was done."""

from collections.abc import Mapping
from typing import Any

from app.accounting import catalogue
from app.accounting.guarantees import GaussianGuarantee, Guarantee
from app.certificates.ledger_check import MAX_STEPS, check_ledger
from app.certificates.tolerance import at_most
from app.domain.errors import ExpungeError, VerificationError
from app.domain.schedules import MAX_SCHEDULE_STEPS
from app.domain.states import Basis


def check_guarantee(predicate: Mapping[str, Any]) -> str:
    """Check a certificate's guarantee; return it in words.

    Raises:
        VerificationError: it is weaker than stated, or cannot be computed.
    """
    basis = Basis(predicate["basis"])
    try:
        stated = predicate["guarantee"]
        if basis is Basis.RELEASED_AS_TRAINED:
            _require(stated["kind"] == "none", "a model released as trained has no guarantee")
            return "none: this version protects nobody yet"
        if basis is Basis.EXCLUDED_FROM_TRAINING:
            _require(stated["kind"] == "exact", "an exclusion must be exact")
            return "exact: the records never touched the weights"
        recomputed = _recompute(predicate["mechanism"], predicate["accountant"]["version"])
        return _compare(stated, predicate["target"], recomputed)
    except ExpungeError as error:
        if isinstance(error, VerificationError):
            raise
        raise VerificationError("guarantee", str(error)) from error
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise VerificationError("guarantee", "its parameters cannot be read") from error


def _recompute(mechanism: Mapping[str, Any], version: int) -> Guarantee:
    """Account for what was done; only by our own accountants, and only if that is feasible."""
    name, parameters = mechanism["name"], mechanism["parameters"]
    _require(isinstance(parameters, Mapping), "its parameters cannot be read")
    _require(name in catalogue.MECHANISMS, "no mechanism that this version certifies")
    check_ledger(mechanism)
    counts = [value for value in parameters.values() if isinstance(value, int)]
    _require(all(count <= MAX_STEPS for count in counts), f"more than {MAX_STEPS} steps")
    schedules = [value for value in parameters.values() if isinstance(value, list)]
    _require(
        all(len(schedule) <= MAX_SCHEDULE_STEPS for schedule in schedules),
        f"a schedule of more than {MAX_SCHEDULE_STEPS} numbers",
    )
    return catalogue.account(name, parameters, version=version)


def _compare(stated: Mapping[str, Any], target: Mapping[str, Any], recomputed: Guarantee) -> str:
    _require(
        at_most(recomputed.epsilon(delta=stated["delta"]), stated["epsilon"])
        or recomputed.meets(epsilon=stated["epsilon"], delta=stated["delta"]),
        "the stated epsilon is too small",
    )
    _require(
        at_most(recomputed.advantage(), stated["attacker_advantage"]),
        "the stated attacker's advantage is too small",
    )
    _require(
        stated["neighbouring_relation"] == recomputed.terms.neighbours,
        "the neighbouring relation is another",
    )
    _require(stated["adaptive"] == recomputed.terms.adaptive, "adaptivity is not as stated")
    _require(stated["direction"] == recomputed.terms.direction, "the direction is not as stated")
    _require(stated["reference"] == recomputed.terms.reference, "the reference is not as stated")
    if isinstance(recomputed, GaussianGuarantee):
        _require(at_most(recomputed.mu, stated["mu"]), "the stated mu is too small")
        _require(
            at_most(recomputed.surviving_information_bits(), stated["surviving_information_bits"]),
            "the stated surviving information is too small",
        )
    _require(
        recomputed.meets(epsilon=target["epsilon"], delta=target["delta"]),
        "the target is not met",
    )
    return f"epsilon {stated['epsilon']:.6g} at delta {stated['delta']:.3g}, as recomputed"


def _require(condition: bool, reason: str) -> None:  # noqa: FBT001
    if not condition:
        raise VerificationError("guarantee", reason)
