"""Chien et al. 2024, Corollary 3.10: merely convex losses (c = 1), T epochs of training.

    epsilon(alpha) = alpha Z^2 / (2 eta sigma^2) b/(K n),   Z = min(2 eta M T/b, 2R)

Guarantee: Renyi curve. Neighbouring relation: replacement of one record. Assumptions: 1. as in
``strong_convexity`` with weight_decay 0; 2. projection to radius R; 3. only the final iterate is
released.
"""

import math

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.search import smallest_noise
from app.domain.checks import require_steps
from app.domain.errors import ParameterError

NAME = "chien_corollary_3_10"
VERSION = 1
TERMS = chien.terms("Corollary 3.10")


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
    training_epochs: int,
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
    if weight_decay != 0:
        raise ParameterError("weight_decay", "0, or use corollary 3.7")
    steps = require_steps("epochs", epochs) * setting.batches
    trained = require_steps("training_epochs", training_epochs)
    distance = min(trained * setting.shift, 2 * radius)
    factor = setting.divergence_factor(distance) / steps * (1 + 1e-15)
    return RenyiGuarantee(terms=TERMS, curve=lambda order: order * factor)


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
    training_epochs: int,
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
            training_epochs=training_epochs,
            epochs=epochs,
        )
        return guarantee.epsilon(delta=delta) <= epsilon

    shift = 2 * learning_rate * lipschitz / batch_size
    return smallest_noise(meets, scale=shift / math.sqrt(2 * learning_rate) / epsilon)
