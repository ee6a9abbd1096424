"""What a certificate says about a membership-inference attack, where the policy asks for one."""

from typing import Any

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
    """Return the section for an attack on the start and on the released weights.

    Args:
        auc_before: area under the ROC curve on the weights that the run started from.
        auc_after: the same on the released weights.
        forgotten: how many records were taken for members.
        held_out: how many records were taken for others.
    """
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
    """Return the section that says why there was nothing to measure."""
    reason = (
        "this run had no record to forget that the model had learned from"
        if forgotten == 0
        else "no record is held out: raise held_out_fraction"
    )
    return {
        "attack": ATTACK,
        "not_measured": reason,
        "forgotten_records": forgotten,
        "held_out_records": held_out,
    }
