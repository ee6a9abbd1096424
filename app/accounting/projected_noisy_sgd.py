"""Projected noisy SGD (Chien et al. 2024, Algorithm 1), for strongly convex losses.

    x <- project(x - learning_rate grad f(x; batch) + N(0, noise_std^2 I))

in training and in unlearning; projection is optional. The paper writes noise_std^2 = 2 eta sigma^2
(``noise_std_of``) and starts from the drift as if training had added no noise. Here the noise of
the whole lineage counts, training included.

Guarantee: mu-GDP, by ``history_account``. Assumptions: as there. No convergence of training is
assumed: the reference is the same pipeline without the records.
"""

import math
from collections.abc import Mapping
from typing import Any

from app.accounting.guarantees import GaussianGuarantee
from app.accounting.histories import history_account
from app.accounting.terms import Neighbours, Terms
from app.domain.checks import require_positive

NAME = "projected_noisy_sgd"
VERSION = 1

TERMS = Terms(
    neighbours=Neighbours.ZERO_OUT,
    adaptive=False,
    assumptions=history_account.ASSUMPTIONS,
    source="Chien et al. 2024, Algorithm 1 and Lemma 3.3; "
    "Bok, Su & Altschuler 2024 for the trade-off function",
)


def account(*, history: Mapping[str, Any]) -> GaussianGuarantee:
    """Return what a lineage's ``history.History``, as plain JSON values, guarantees.

    Raises:
        ParameterError: it is malformed, or no noise hides the forgotten records.
    """
    return history_account.account(history, TERMS, adaptive=False)


def noise_std_of(*, learning_rate: float, noise_scale: float) -> float:
    """Return sqrt(2 eta) sigma: the noise of one step in the papers' convention.

    Raises:
        ParameterError: a number is not positive.
    """
    rate = require_positive("learning_rate", learning_rate)
    return math.sqrt(2 * rate) * require_positive("noise_scale", noise_scale)
