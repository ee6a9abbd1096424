"""Delete-to-Descent without a secret state (Neel et al. 2021, Theorem 28; Chien et al. 2024, O.2).

    sigma = 8 M gamma^I / (m n (1 - gamma^I) (sqrt(2 log(2/delta) + 3 eps)
                                              - sqrt(2 log(2/delta) + 2 eps)))
    I >= log(sqrt(2 d)/((1 - gamma) (sqrt(2 log(2/delta) + eps) - sqrt(2 log(2/delta)))))
         / log(1/gamma)

The i-th request runs I + log(log(4 d i/delta))/log(1/gamma) steps from the noisy weights; ``steps``
is that total, ``request`` is i and ``dimension`` is d.

Guarantee: one point (epsilon, delta). Neighbouring relation: add_remove of one record.
Assumptions: 1. loss and step size as in ``neel``; 2. training long enough; 3. epsilon at most
log(1/delta).
"""

import math

from app.accounting.guarantees import PointGuarantee
from app.accounting.published import neel
from app.accounting.search import smallest_noise
from app.domain.checks import require_delta, require_noise, require_positive, require_steps
from app.domain.errors import CalibrationError, ParameterError

NAME = "neel_theorem_28"
VERSION = 1
TERMS = neel.terms("Theorem 28")


def account(
    *,
    delta: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    dimension: int,
    noise_std: float,
    steps: int,
    request: int = 1,
) -> PointGuarantee:
    """Return the theorem's epsilon at ``delta``.

    Raises:
        ParameterError: a parameter is out of its range, or epsilon above log(1/delta).
    """
    log_term = 2 * math.log(2 / require_delta(delta))
    setting = neel.Setting(
        weight_decay=weight_decay, smoothness=smoothness, lipschitz=lipschitz, records=records
    )
    effective = _effective_steps(setting, delta, dimension, steps, request)
    wanted = 8 * setting.reach(effective) / require_noise("noise_std", noise_std)
    # Both conditions ask for an epsilon that is large enough, so the larger of the two holds.
    epsilon = max(
        _invert(wanted, log_term, -math.log(delta)),
        _least_epsilon(setting, effective, log_term, dimension),
    )
    neel.check_range(epsilon, delta)
    return PointGuarantee(terms=TERMS, at_epsilon=epsilon, at_delta=delta)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    dimension: int,
    steps: int,
    request: int = 1,
) -> float:
    """Return the theorem's noise_std, rounded up.

    Raises:
        ParameterError: a parameter is out of its range, or too few steps for the theorem.
        CalibrationError: the search did not converge.
    """
    epsilon = require_positive("epsilon", epsilon)
    neel.check_range(epsilon, require_delta(delta))
    log_term = 2 * math.log(2 / delta)
    setting = neel.Setting(
        weight_decay=weight_decay, smoothness=smoothness, lipschitz=lipschitz, records=records
    )
    effective = _effective_steps(setting, delta, dimension, steps, request)
    if epsilon < _least_epsilon(setting, effective, log_term, dimension):
        raise ParameterError("steps", "more, for this theorem's condition on I")
    reach = 8 * setting.reach(effective)

    def meets(noise_std: float) -> bool:
        return reach / noise_std * (1 + 1e-12) <= _gap(epsilon, log_term)

    return smallest_noise(meets, scale=reach / _gap(epsilon, log_term))


def _gap(epsilon: float, log_term: float) -> float:
    """Return sqrt(a + 3 eps) - sqrt(a + 2 eps), without cancellation."""
    return epsilon / (math.sqrt(log_term + 3 * epsilon) + math.sqrt(log_term + 2 * epsilon))


def _invert(wanted: float, log_term: float, highest: float) -> float:
    """Return the smallest epsilon with ``_gap`` at least ``wanted``; the gap grows with epsilon."""
    if _gap(highest, log_term) < wanted:
        raise ParameterError("epsilon", f"at most log(1/delta) = {highest:g}")
    low, high = 0.0, highest
    for _ in range(200):
        if high - low <= 1e-13 * high:
            return high
        middle = (low + high) / 2
        if _gap(middle, log_term) * (1 - 1e-13) >= wanted:
            high = middle
        else:
            low = middle
    raise CalibrationError("the search for epsilon did not converge")


def _effective_steps(
    setting: neel.Setting, delta: float, dimension: int, steps: int, request: int
) -> float:
    """Return I: the steps that remain after those the theorem spends on the noise."""
    order = 4 * require_steps("dimension", dimension) * require_steps("request", request) / delta
    spent = math.log(math.log(order)) / -math.log(setting.gamma)
    effective = math.floor(require_steps("steps", steps) - spent)
    if effective < 1:
        raise ParameterError("steps", f"at least {math.ceil(spent) + 1} for this theorem")
    return effective


def _least_epsilon(
    setting: neel.Setting, effective: float, log_term: float, dimension: int
) -> float:
    """Return the smallest epsilon for which I = ``effective`` meets the theorem's condition."""
    gap = math.sqrt(2 * dimension) * setting.gamma**effective / (1 - setting.gamma)
    return float(gap * gap + 2 * gap * math.sqrt(log_term)) * (1 + 1e-12)
