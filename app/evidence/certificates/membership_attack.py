"""A certificate's ``audit`` field: a membership attack, if the policy asks for one."""

from typing import Any

from app.domain.errors import VerificationError
from app.evidence.certificates.schema import Audit

ATTACK = "loss threshold"
NOTE = (
    "These two numbers are outside the guarantee. The attack read the forgotten records, and "
    "auc_before was measured on weights that this certificate does not cover. 0.5 means that a "
    "forgotten record looks like a held-out one, 1 that the attack tells each pair apart; from a "
    "few records both scatter widely. Weights trained elsewhere may have seen the held-out records "
    "too: then the numbers say little."
)
_DIGITS = 3


def measured_audit(
    *, auc_before: float, auc_after: float, forgotten: int, held_out: int
) -> dict[str, Any]:
    """Return the field for an attack: areas under the ROC curve, before and after the run."""
    return {
        "attack": ATTACK,
        "auc_before": round(auc_before, _DIGITS),
        "auc_after": round(auc_after, _DIGITS),
        "forgotten_records": forgotten,
        "held_out_records": held_out,
        "depends_on_uncertified_weights": True,
        "note": NOTE,
    }


def unmeasured_audit(*, forgotten: int, held_out: int) -> dict[str, Any]:
    """Return the field that says why there was nothing to measure."""
    return {
        "attack": ATTACK,
        "not_measured": _reason(forgotten),
        "forgotten_records": forgotten,
        "held_out_records": held_out,
    }


def check_audit(audit: Audit, *, forgotten: int, held_out: int) -> None:
    """Check a certificate's ``audit`` field, apart from its figures, by its record counts."""
    stated = audit.model_dump(exclude_unset=True)
    counts = {"forgotten": audit.forgotten_records, "held_out": audit.held_out_records}
    if audit.auc_before is not None and audit.auc_after is not None:
        figures = {"auc_before": audit.auc_before, "auc_after": audit.auc_after}
        own = measured_audit(auc_before=0.0, auc_after=0.0, **counts) | figures
        possible = min(counts.values()) > 0
    else:
        own, possible = unmeasured_audit(**counts), min(counts.values()) == 0
    if stated != own or not possible:
        raise VerificationError("statement", "its audit is not as the service writes it")
    if audit.forgotten_records > forgotten or audit.held_out_records != held_out:
        raise VerificationError("statement", "its audit is of other records")


def _reason(forgotten: int) -> str:
    if forgotten == 0:
        return "this run had no record to forget that the model had learned from"
    return "no record is held out: raise held_out_fraction"
