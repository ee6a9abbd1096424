"""Tracked release: train and unlearn without noise, add noise once, at release.

    x <- x - learning_rate grad f(x; batch)   K times on the retain set (K = 0 is allowed)
    release x + N(0, noise_std^2 I)

Training without noise makes both worlds deterministic given their seeds, at most D apart; K further
steps over equal data leave c^K D. What earlier releases left of their noise hides it as well, so a
release that was made already may cover a later request without a step, and where it does not, only
the noise that is missing is added.

Guarantee: mu-GDP, by ``history_account``. Assumptions: as there. The noise-free weights are gone
once the noise is added: keeping them would be the secret state that Chourasia & Shah 2023, Theorem
3.2, breaks. Source: Expunge; the drift is Chien et al. 2024, Lemma 3.3.
"""

from collections.abc import Mapping
from typing import Any

from app.accounting.guarantees import GaussianGuarantee
from app.accounting.histories import history_account
from app.accounting.terms import Neighbours, Terms

NAME = "tracked_release"
VERSION = 1

TERMS = Terms(
    neighbours=Neighbours.ZERO_OUT,
    adaptive=False,
    assumptions=history_account.ASSUMPTIONS,
    source="drift: Chien et al. 2024, Lemma 3.3; Bok, Su & Altschuler 2024 for the trade-off "
    "function",
)


def account(*, history: Mapping[str, Any]) -> GaussianGuarantee:
    """Return what a lineage's ``history.History``, as plain JSON values, guarantees.

    Raises:
        ParameterError: it is malformed, or no noise hides the forgotten records.
    """
    return history_account.account(history, TERMS, adaptive=False)
