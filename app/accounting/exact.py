"""Mechanisms that forget exactly: (0, 0), by construction.

*Retraining* starts anew with a new seed; everything else is quoted beside it. *Sharded retraining*
does so with the members of an ensemble that forgotten records concern: a keyed hash of a person's
pseudonym, fixed for the lineage and independent of everything else, names the one member that has
their records, so given the assignment the members are independent trainings. Or those members are
*left out* of what is released, and trained anew later, when the clock or the requests say so: which
members are released is then a function of these alone. A request chosen by
looking at releases may depend on the random numbers of the members that stay (Gupta et al. 2021,
"Adaptive machine unlearning", section 3). docs/guarantees.md, section 14.

*Heads* that are a function of the retained records are computed anew from these, without a seed, an
earlier weight or any other memory: both worlds compute the same function of the same records, and
so is everything that is kept for later releases. That is adaptive: it holds for the same requests,
however they were chosen; what the choice itself gives away is not covered. docs/guarantees.md,
section 13.
"""

from app.accounting.terms import Assumption, Neighbours, Terms, asserted, enforced

RETRAINING = Terms(
    neighbours=Neighbours.ANY_START,
    adaptive=False,
    assumptions=enforced(
        "the initialisation came from a new seed",
        "training read retained records only",
        "the recipe was fixed before the run",
    ),
    source="by construction",
)

SHARDED_RETRAINING = Terms(
    neighbours=Neighbours.ADD_REMOVE,
    adaptive=False,
    assumptions=(
        *enforced(
            "each person's member follows from a keyed hash of their pseudonym, fixed for the "
            "lineage",
            "each member was trained on retained records of its own persons alone",
            "each member's training started from a new seed, or from the stated public weights",
            "every member of a forgotten record was left out, or trained anew without it; the "
            "others are unchanged",
            "which members are left out follows from the requests alone",
            "the recipe and the number of members were fixed before the run",
        ),
        *asserted(
            "all members were trained by the same code, on machines that compute alike",
            "when members that were out were trained anew did not depend on what a release showed",
        ),
    ),
    source="by construction: docs/guarantees.md, section 14",
    reference="the same requests, counted for the same members and answered in the same way, with "
    "no row of the forgotten records in any training; so it may show that somebody of a member "
    "asked, as the requests do, and not what was in the records",
)


def _head(*computed: str) -> Terms:
    fixed = enforced("the parameters were fixed before the run, without reading a record")
    machine = asserted("the machine computes equal numbers from equal numbers")
    assumptions: tuple[Assumption, ...] = (*fixed, *enforced(*computed), *machine)
    return Terms(
        neighbours=Neighbours.ADD_REMOVE,
        adaptive=True,
        assumptions=assumptions,
        reference="a training that was only ever given the retained records, for the same requests",
        source="by construction: docs/guarantees.md, section 13",
    )


SUFFICIENT_STATISTICS = _head(
    "each record's features were rounded to whole numbers on a public scale, by themselves alone",
    "the sums are whole numbers, computed exactly, and are those of the retained records",
    "scales, regularisation and solution were computed anew from these sums, in one thread",
)
BOOSTING = _head(
    "all trees were grown from the retained records alone, in the order of their arrival",
    "they had no seed, no noise and no earlier trees, and were grown in one thread",
)
EXACT_TRAINING = _head(
    "training started from zeros and read the retained records alone, in the order of their "
    "arrival",
    "it had no seed, no noise and no earlier weights, and ran in one thread",
)


def expected_members(members: int, persons: float) -> float:
    """Return how many of S members r persons concern in the mean: S(1 − (1 − 1/S)^r)."""
    return float(members * (1 - (1 - 1 / members) ** persons))
