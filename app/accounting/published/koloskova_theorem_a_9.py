"""Koloskova et al. 2025, Theorem A.9: gradient clipping by Renyi divergence.

    D_q <= (q/2) [rho^T 2 C0 + s (1 - rho^T)/(1 - rho)]^2 / [sigma^2 (1 - rho^{2T})/(1 - rho^2)]

with rho = 1 - gamma lambda, s = 2 gamma C1, constant parameters. In the theorem the products run
over the steps after t; the printed index is right for constant rho only. Its choice of shifts can
make an intermediate distance negative; the value is then still an upper bound, because an earlier
prefix (``gradient_clipping``, running minimum) is smaller.

Guarantee: Renyi curve. Neighbouring relation: any two starts. Assumptions: as
``gradient_clipping``.
"""

from dataclasses import dataclass, replace

from app.accounting import gradient_clipping
from app.accounting.chains.noisy_chain import prefix_mu
from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published.bound import SearchedBound, functions_of, proportional
from app.domain.checks import require_noise, require_positive, require_steps

NAME = "koloskova_theorem_a_9"
VERSION = 1
TERMS = replace(gradient_clipping.TERMS, source="Koloskova et al. 2025, Theorem A.9")


@dataclass(frozen=True, kw_only=True)
class Parameters(SearchedBound[RenyiGuarantee]):
    """The parameters of ``gradient_clipping``, each constant."""

    initial_clip: float
    gradient_clip: float
    learning_rate: float
    weight_decay: float
    noise_std: float
    steps: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of ``steps`` equal steps."""
        size = gradient_clipping.step_size(
            gradient_clip=self.gradient_clip,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
        )
        mu = prefix_mu(
            distance=2 * require_positive("initial_clip", self.initial_clip),
            contraction=size.contraction,
            shift=size.shift,
            noise_std=require_noise("noise_std", self.noise_std),
            steps=require_steps("steps", self.steps),
        )
        return proportional(TERMS, mu * mu / 2 * (1 + 1e-15))

    def first_guess(self, *, epsilon: float, delta: float) -> float:  # noqa: ARG002
        """Return C0."""
        return require_positive("initial_clip", self.initial_clip)


account, calibrate = functions_of(Parameters)
