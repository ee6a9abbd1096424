"""Koloskova et al. 2025: output perturbation with the classical Gaussian mechanism.

    sigma^2 = 8 C0^2 log(1.25/delta) / eps^2        for eps <= 1

(Dwork & Roth 2014, Theorem A.1, stated for eps < 1; Balle & Wang 2018 show that it still holds at
1, where the paper uses it.) ``output_perturbation`` needs 1.30 times less noise at (1, 1e-5).

Guarantee: one point (epsilon, delta). Neighbouring relation: any two starts. Assumptions: as
``output_perturbation``.
"""

import math
from dataclasses import dataclass, replace

from app.accounting import output_perturbation
from app.accounting.published.bound import SolvedBound, functions_of
from app.domain.checks import require_delta, require_noise, require_positive
from app.domain.errors import ParameterError

NAME = "koloskova_output_perturbation"
VERSION = 1
TERMS = replace(
    output_perturbation.TERMS,
    source="Koloskova et al. 2025, section 4.2; Dwork & Roth 2014, Theorem A.1",
)


@dataclass(frozen=True, kw_only=True)
class Parameters(SolvedBound):
    """The parameters of ``output_perturbation``, and delta."""

    TERMS = TERMS

    initial_clip: float

    def epsilon(self) -> float:
        """Return the classical epsilon."""
        return self._product() / require_noise("noise_std", self.noise_std) * (1 + 1e-14)

    def noise(self, *, epsilon: float) -> float:
        """Return the classical noise_std."""
        return self._product() / epsilon * (1 + 1e-14)

    def check_range(self, epsilon: float) -> None:
        """Refuse an epsilon above 1."""
        if epsilon > 1 + 1e-6:
            raise ParameterError("epsilon", "at most 1")

    def _product(self) -> float:
        """Return epsilon times sigma."""
        spread = math.sqrt(8 * math.log(1.25 / require_delta(self.delta)))
        return require_positive("initial_clip", self.initial_clip) * spread


account, calibrate = functions_of(Parameters)
