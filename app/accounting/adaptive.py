"""Requests that may depend on earlier releases (Chourasia & Shah 2023, Theorem 4.3).

A requester who has seen p earlier releases can encode in the choice of requests what those
releases said about records that were still there. If every earlier release was itself private for
records still present, the loss is bounded by composition: the requests are a function of the p
releases, and given the requests the last release is as private as for requests fixed in advance.

    Gaussian:  mu^2 = mu_deletion^2 + p mu_present^2          Renyi:  D = D_deletion + p D_present

Every release so far counts, and each must have started from the one before (no hidden state).
Without privacy of present records no adaptive guarantee exists (Theorem 4.5).
"""

import math
from dataclasses import replace

from app.accounting.guarantees import (
    ExactGuarantee,
    GaussianGuarantee,
    Guarantee,
    RenyiGuarantee,
)
from app.accounting.terms import Assumption, Support, Terms
from app.domain.checks import require_count
from app.domain.errors import ParameterError

SOURCE = "Chourasia & Shah 2023, Theorem 4.3"


def compose(*, deletion: Guarantee, present: Guarantee, earlier_releases: int) -> Guarantee:
    """Return the guarantee against requesters who saw ``earlier_releases`` releases.

    Args:
        deletion: the guarantee for requests fixed in advance.
        present: privacy, in each earlier release, of all the records forgotten by now.
        earlier_releases: p, every release of the lineage so far.

    Raises:
        ParameterError: a guarantee has no Gaussian or Renyi form, or the count is negative.
    """
    count = require_count("earlier_releases", earlier_releases)
    terms = _adaptive(deletion.terms, count)
    if isinstance(deletion, ExactGuarantee):
        deletion = GaussianGuarantee(terms=deletion.terms, mu=0.0)
    if isinstance(deletion, GaussianGuarantee) and isinstance(present, GaussianGuarantee):
        mu = math.hypot(deletion.mu, math.sqrt(count) * present.mu) * (1 + 1e-15)
        return GaussianGuarantee(terms=terms, mu=mu)
    first, second = _renyi("deletion", deletion), _renyi("present", present)
    return RenyiGuarantee(
        terms=terms,
        curve=lambda order: first.curve(order) + count * second.curve(order),
        highest_order=min(first.highest_order, second.highest_order),
    )


def _renyi(name: str, guarantee: Guarantee) -> RenyiGuarantee:
    if isinstance(guarantee, RenyiGuarantee):
        return guarantee
    if isinstance(guarantee, GaussianGuarantee):
        gaussian = guarantee
        return RenyiGuarantee(
            terms=guarantee.terms, curve=lambda order: gaussian.renyi(order=order)
        )
    raise ParameterError(name, "a Gaussian, Renyi or exact guarantee")


def _adaptive(terms: Terms, count: int) -> Terms:
    return replace(
        terms,
        adaptive=True,
        assumptions=(
            *terms.assumptions,
            Assumption(
                f"all {count} earlier releases were private for records still present",
                Support.ENFORCED,
            ),
        ),
        source=f"{terms.source}; {SOURCE}",
    )
