"""Retraining: a fresh initialisation from a new seed, then training on only the retain set.

Guarantee: (0, 0). Neighbouring relation: any start (the old weights are never read). Assumptions:
 1. nothing that depends on the forgotten records enters: not the initialisation, not the
    hyperparameters, not the choice of features.
It costs one training; every other mechanism is quoted beside it.
"""

from app.accounting.guarantees import ExactGuarantee
from app.accounting.terms import Neighbours, Terms, enforced

NAME = "retraining"

TERMS = Terms(
    neighbours=Neighbours.ANY_START,
    adaptive=False,
    assumptions=enforced(
        "the initialisation came from a new seed",
        "training read retained records only",
        "the recipe was fixed before the run",
    ),
    source="by construction",
)


def account() -> ExactGuarantee:
    """Return (0, 0)."""
    return ExactGuarantee(terms=TERMS)


def calibrate() -> float:
    """Return the noise that retraining needs: none."""
    return 0.0
