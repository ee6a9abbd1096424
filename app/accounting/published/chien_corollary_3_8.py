"""Chien et al. 2024, Corollary 3.8: batches drawn at random, requests that do not depend on them.

    epsilon(alpha) = 1/(alpha - 1) log E_j exp(alpha (alpha - 1) Z_j^2 c^{2Kn/b} / (2 eta sigma^2))
    Z_j = min(c^{n/b - j - 1} 2 eta M/(b (1 - c^{n/b})), 2R)     j uniform over the n/b positions

Guarantee: Renyi curve. Neighbouring relation: replacement of one record. Assumptions: 1. as in
``strong_convexity``; 2. projection to radius R; 3. only the final iterate is released; 4. the
partition is uniform, secret, and the request was chosen without knowledge of it.
"""

import math

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.search import smallest_noise
from app.accounting.terms import asserted
from app.domain.checks import require_steps

NAME = "chien_corollary_3_8"
VERSION = 1
TERMS = chien.terms(
    "Corollary 3.8",
    *asserted("the request was chosen without knowledge of the secret partition into batches"),
)


def account(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    batch_size: int,
    records: int,
    noise_scale: float,
    radius: float,
    epochs: int,
) -> RenyiGuarantee:
    """Return the Renyi curve of the release.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    setting = chien.Setting(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        lipschitz=lipschitz,
        batch_size=batch_size,
        records=records,
        noise_scale=noise_scale,
        radius=radius,
    )
    steps = require_steps("epochs", epochs) * setting.batches
    reach = setting.epochs_lost() * setting.shift
    amplification = setting.amplification(steps, sharp=False)
    factors = [
        setting.divergence_factor(min(setting.decay(later) * reach, 2 * radius)) * amplification
        for later in range(setting.batches)
    ]
    highest = max(factors)

    def curve(order: float) -> float:
        # log-mean-exp around the largest term.
        scale = order * (order - 1)
        total = math.fsum(math.exp(scale * (factor - highest)) for factor in factors)
        average = math.log(total / len(factors)) / (order - 1)
        return max(0.0, order * highest + average) + 1e-13 * order * highest + 1e-15 / (order - 1)

    return RenyiGuarantee(terms=TERMS, curve=curve)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    batch_size: int,
    records: int,
    radius: float,
    epochs: int,
) -> float:
    """Return the smallest noise_scale that reaches (epsilon, delta), rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: no noise of reasonable size reaches the target.
    """

    def meets(noise_scale: float) -> bool:
        guarantee = account(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            smoothness=smoothness,
            lipschitz=lipschitz,
            batch_size=batch_size,
            records=records,
            noise_scale=noise_scale,
            radius=radius,
            epochs=epochs,
        )
        return guarantee.epsilon(delta=delta) <= epsilon

    shift = 2 * learning_rate * lipschitz / batch_size
    return smallest_noise(meets, scale=shift / math.sqrt(2 * learning_rate) / epsilon)
