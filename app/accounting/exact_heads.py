"""Heads that are a function of the retained records: (0, 0), whatever the requests depended on.

The weights are computed anew from the retained records, without a seed, an earlier weight or any
other memory (docs/guarantees.md, section 13). Both worlds compute the same function of the same
records, so their releases are equal, and so is everything that is kept for later releases.

Guarantee: (0, 0), adaptive: it holds for the same requests, however they were chosen. What their
choice itself gives away is not covered. Neighbouring relation: add_remove. Assumptions:
 1. the function's parameters are fixed by policy, recipe and architecture before records are read;
 2. it reads the retained records alone, or their sums, from which each forgotten record was
    subtracted as it was added;
 3. it is evaluated alike in both worlds: the machine computes the same bits from the same bits.
"""

from app.accounting.guarantees import ExactGuarantee
from app.accounting.terms import Assumption, Neighbours, Terms, asserted, enforced


def terms_of(*computed: str) -> Terms:
    """Return the terms of a head; ``computed`` says how code enforces the second assumption."""
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


SUFFICIENT_STATISTICS = terms_of(
    "each record's features were rounded to whole numbers on a public scale, by themselves alone",
    "the sums are whole numbers, computed exactly, and are those of the retained records",
    "scales, regularisation and solution were computed anew from these sums, in one thread",
)
EXACT_TRAINING = terms_of(
    "training started from zeros and read the retained records alone, in the order of their "
    "arrival",
    "it had no seed, no noise and no earlier weights, and ran in one thread",
)


def account(terms: Terms) -> ExactGuarantee:
    """Return (0, 0)."""
    return ExactGuarantee(terms=terms)
