"""Delete-to-Descent with a secret state (Neel et al. 2021, Theorem 9; Chien et al. 2024, O.1).

    sigma = 4 sqrt(2) M gamma^I
            / (m n (1 - gamma^I) (sqrt(log(1/delta) + eps) - sqrt(log(1/delta))))

The noise-free weights are kept and unlearned further at the next request. That secret state is
what Chourasia & Shah 2023, Theorem 3.2, breaks: a baseline, not a mechanism of this service.

Guarantee: one point (epsilon, delta). Neighbouring relation: add_remove of one record.
Assumptions: 1. loss and step size as in ``neel``; 2. training of I + log(2Rmn/2M)/log(1/gamma)
steps; 3. epsilon at most log(1/delta); 4. the secret state is never released.
"""

import math

from app.accounting.guarantees import PointGuarantee
from app.accounting.published import neel
from app.domain.checks import require_delta, require_noise, require_positive, require_steps

NAME = "neel_theorem_9"
VERSION = 1
TERMS = neel.terms("Theorem 9", "the noise-free weights that are kept are never released")


def account(
    *,
    delta: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    noise_std: float,
    steps: int,
) -> PointGuarantee:
    """Return the theorem's epsilon at ``delta`` after I = ``steps`` steps.

    With k = 4 sqrt(2) M gamma^I/(m n (1 - gamma^I) sigma): epsilon = k^2 + 2 k sqrt(log(1/delta)).

    Raises:
        ParameterError: a parameter is out of its range, or epsilon above log(1/delta).
    """
    log_term = -math.log(require_delta(delta))
    ratio = _reach(weight_decay, smoothness, lipschitz, records, steps)
    ratio /= require_noise("noise_std", noise_std)
    epsilon = (ratio * ratio + 2 * ratio * math.sqrt(log_term)) * (1 + 1e-13)
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
    steps: int,
) -> float:
    """Return the theorem's noise_std, rounded up.

    Raises:
        ParameterError: a parameter is out of its range, or epsilon above log(1/delta).
    """
    log_term = -math.log(require_delta(delta))
    neel.check_range(require_positive("epsilon", epsilon), delta)
    reach = _reach(weight_decay, smoothness, lipschitz, records, steps)
    # sqrt(a + eps) - sqrt(a), without cancellation.
    gap = epsilon / (math.sqrt(log_term + epsilon) + math.sqrt(log_term))
    return reach / gap * (1 + 2e-13)


def _reach(
    weight_decay: float, smoothness: float, lipschitz: float, records: int, steps: int
) -> float:
    setting = neel.Setting(
        weight_decay=weight_decay, smoothness=smoothness, lipschitz=lipschitz, records=records
    )
    return 4 * math.sqrt(2) * setting.reach(require_steps("steps", steps))
