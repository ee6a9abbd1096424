"""Sharded retraining: an ensemble whose concerned members are trained anew on retained records.

Each person's records enter one member alone, which a keyed hash of their pseudonym names, fixed for
the lineage and independent of everything else (docs/guarantees.md, section 14). Given the
assignment, the members are independent trainings, and forgetting a person changes the records of
theirs alone: trained anew, the ensemble has the very distribution of one that never had them.

Guarantee: (0, 0). Neighbouring relation: add_remove. Assumptions:
 1. a member reads the records of its own persons alone, and starts from a fresh seed or public
    weights;
 2. the recipe and the number of members are fixed before records are read;
 3. requests do not depend on releases: one chosen by looking at them may depend on the random
    numbers of the members that stay (Gupta et al. 2021, "Adaptive machine unlearning", section 3);
 4. all workers compute alike (asserted): who trains a member, and when, depends on the others.
"""

from app.accounting.guarantees import ExactGuarantee
from app.accounting.terms import Neighbours, Terms, asserted, enforced

NAME = "sharded_retraining"

TERMS = Terms(
    neighbours=Neighbours.ADD_REMOVE,
    adaptive=False,
    assumptions=(
        *enforced(
            "each person's member follows from a keyed hash of their pseudonym, fixed for the "
            "lineage",
            "each member was trained on retained records of its own persons alone",
            "each member's training started from a new seed, or from the stated public weights",
            "every member of a forgotten record was trained anew without it; the others are "
            "unchanged",
            "the recipe and the number of members were fixed before the run",
        ),
        *asserted("all members were trained by the same code, on machines that compute alike"),
    ),
    source="by construction: docs/guarantees.md, section 14",
)


def account() -> ExactGuarantee:
    """Return (0, 0)."""
    return ExactGuarantee(terms=TERMS)


def expected_members(members: int, persons: float) -> float:
    """Return how many members that many persons concern in the mean, S(1 − (1 − 1/S)^r).

    Args:
        members: S, at least 1.
        persons: r, each of whom has a member of their own, uniform and independent.
    """
    return float(members * (1 - (1 - 1 / members) ** persons))
