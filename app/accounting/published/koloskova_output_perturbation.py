"""Koloskova et al. 2025: output perturbation with the classical Gaussian mechanism.

    sigma^2 = 8 C0^2 log(1.25/delta) / eps^2        for eps <= 1

(Dwork & Roth 2014, Theorem A.1, stated for eps < 1; Balle & Wang 2018 show that it still holds at
1, where the paper uses it.) ``output_perturbation`` needs 1.30 times less noise at (1, 1e-5).

Guarantee: one point (epsilon, delta). Neighbouring relation: any two starts. Assumptions: as
``output_perturbation``.
"""

import math

from app.accounting import output_perturbation
from app.accounting.guarantees import PointGuarantee
from app.accounting.terms import Terms
from app.domain.checks import require_delta, require_noise, require_positive
from app.domain.errors import ParameterError

NAME = "koloskova_output_perturbation"
VERSION = 1
TERMS = Terms(
    neighbours=output_perturbation.TERMS.neighbours,
    adaptive=False,
    assumptions=output_perturbation.TERMS.assumptions,
    source="Koloskova et al. 2025, section 4.2; Dwork & Roth 2014, Theorem A.1",
)


def account(*, delta: float, initial_clip: float, noise_std: float) -> PointGuarantee:
    """Return the classical epsilon at ``delta``.

    Raises:
        ParameterError: a parameter is out of its range, or epsilon is above 1.
    """
    product = _product(delta, initial_clip)
    epsilon = product / require_noise("noise_std", noise_std) * (1 + 1e-14)
    _check_range(epsilon)
    return PointGuarantee(terms=TERMS, at_epsilon=epsilon, at_delta=delta)


def calibrate(*, epsilon: float, delta: float, initial_clip: float) -> float:
    """Return the classical noise_std, rounded up.

    Raises:
        ParameterError: a parameter is out of its range, or epsilon is above 1.
    """
    _check_range(require_positive("epsilon", epsilon))
    return _product(delta, initial_clip) / epsilon * (1 + 1e-14)


def _product(delta: float, initial_clip: float) -> float:
    """Return epsilon times sigma."""
    spread = math.sqrt(8 * math.log(1.25 / require_delta(delta)))
    return require_positive("initial_clip", initial_clip) * spread


def _check_range(epsilon: float) -> None:
    if epsilon > 1 + 1e-6:
        raise ParameterError("epsilon", "at most 1")
