"""Langevin unlearning (Chien et al. 2024b): ``projected_noisy_sgd`` with one batch of all records.

Guarantee: mu-GDP, by ``accounting.histories.history_account``. Source: docs/guarantees.md, section
6.4.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from app.accounting.terms import Terms
from app.planning.mechanisms.projected_noisy_sgd import ProjectedNoisySgd


@dataclass(frozen=True, kw_only=True)
class LangevinUnlearning(ProjectedNoisySgd):
    """Projected noisy SGD on the whole data at once."""

    name: ClassVar[str] = "langevin_unlearning"
    full_batch: ClassVar[bool] = True
    terms: ClassVar[Terms] = replace(
        ProjectedNoisySgd.terms,
        source="Chien et al. 2024b (Langevin unlearning); " + ProjectedNoisySgd.terms.source,
    )
