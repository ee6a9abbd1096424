"""Langevin unlearning (Chien et al. 2024b): full-batch noisy descent, counted by its drift.

``projected_noisy_sgd`` with one batch that holds all records. Unlike the theorems as published
(``published.chien_theorem_p_2``) this does not assume that training has converged.

Guarantee: mu-GDP. Neighbouring relation: zero_out or replacement. Assumptions: as
``projected_noisy_sgd``.
"""

from dataclasses import replace

from app.accounting import projected_noisy_sgd
from app.accounting.projected_noisy_sgd import account, calibrate, steps_needed

__all__ = ["NAME", "TERMS", "VERSION", "account", "calibrate", "steps_needed"]

NAME = "langevin_unlearning"
VERSION = 1
TERMS = replace(
    projected_noisy_sgd.TERMS,
    source="Chien et al. 2024b (Langevin unlearning); " + projected_noisy_sgd.TERMS.source,
)
