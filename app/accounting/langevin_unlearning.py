"""Langevin unlearning (Chien et al. 2024b): full-batch noisy descent.

``projected_noisy_sgd`` with one batch that holds all records. Unlike the theorems as published
(``published.chien_theorem_p_2``) this does not assume that training has converged.

Guarantee: mu-GDP, by ``history_account``. Assumptions: as there.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.accounting import projected_noisy_sgd
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.histories import history_account

NAME = "langevin_unlearning"
VERSION = 1
TERMS = replace(
    projected_noisy_sgd.TERMS,
    source="Chien et al. 2024b (Langevin unlearning); " + projected_noisy_sgd.TERMS.source,
)


def account(*, history: Mapping[str, Any]) -> GaussianGuarantee:
    """Return what a lineage's ``history.History``, as plain JSON values, guarantees.

    Raises:
        ParameterError: it is malformed, or no noise hides the forgotten records.
    """
    return history_account.account(history, TERMS, adaptive=False)
