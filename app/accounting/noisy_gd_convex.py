"""Noisy gradient descent with deletion privacy, convex losses (Chourasia & Shah 2023, section 5.1).

    x <- x - learning_rate grad L_D(x) + N(0, noise_std^2 I)      full batch of all records

L_D averages losses that are convex, ``smoothness``-smooth and ``lipschitz``-Lipschitz, plus
(weight_decay/2)|x|^2. The paper writes noise_std^2 = 2 eta sigma^2. All of the training is noisy as
well, so its noise counts. With c = 1 - eta lambda, s = kappa r eta M / n for r forgotten records,
K_A equal steps while they were present and K since, ``history_account`` comes to

    D = c^K s (1 - c^{K_A}) / (1 - c)      W = noise_std^2 (1 - c^{2(K_A + K)}) / (1 - c^2)
    mu = D / sqrt(W)

For every order this is less than half of the paper's Renyi bound
(``published.chourasia_theorem_5_1``), and its exponent is 2 eta lambda K where the paper has
eta lambda K / 2.

Requests may depend on earlier releases. Each of them was itself private for the records present in
it; given them, the last run starts from equal weights and reads no forgotten record. So mu^2 is the
sum of those releases' mu^2, and further steps do not lower it (docs/guarantees.md, section 9).

Guarantee: mu-GDP. Assumptions: as ``history_account``; both worlds start from the same weights.
"""

from collections.abc import Mapping
from typing import Any

from app.accounting.guarantees import GaussianGuarantee
from app.accounting.histories.history import History
from app.accounting.histories.history_account import ASSUMPTIONS, Outlook
from app.accounting.terms import Neighbours, Terms
from app.domain.checks import require_count
from app.domain.errors import ParameterError

NAME = "noisy_gd_convex"
VERSION = 1

TERMS = Terms(
    neighbours=Neighbours.ZERO_OUT,
    adaptive=False,
    assumptions=ASSUMPTIONS,
    source="Chourasia & Shah 2023, section 5.1, by shifted interpolation "
    "(Bok, Su & Altschuler 2024)",
)


def account(
    *, history: Mapping[str, Any], earlier_releases: int | None = None
) -> GaussianGuarantee:
    """Return what a lineage's ``history.History``, as plain JSON values, guarantees.

    ``earlier_releases`` is how many versions were released before this one, where requests may
    depend on them; None is for requests that were fixed in advance.

    Raises:
        ParameterError: the history is malformed, no noise hides the forgotten records, or it lists
            another number of releases.
    """
    read = History.from_json(history)
    if earlier_releases is not None:
        require_count("earlier_releases", earlier_releases)
        if read.releases != earlier_releases + 1:
            raise ParameterError("earlier_releases", "as many as the history has before its last")
    return Outlook(read, TERMS, adaptive=earlier_releases is not None).guarantee()
